"""Messages of before Kafka 0.11 are recognized, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from mpbroker.records.builder import build_batch
from mpbroker.records.old_format import HEAD_BYTES, old_length, old_magic
from mpbroker.records.record import NewRecord


def message(magic: int, codec: int = 0) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    builder.append(7, 1_400_000_000_000 if magic else None, b"key", b"value" * 20)
    return bytes(builder.build())


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_whole_message_has_its_magic(magic: int, codec: int) -> None:
    data = message(magic, codec)
    assert old_length(data[:HEAD_BYTES]) == len(data)
    assert old_magic(data + b"what follows") == magic
    assert old_magic(memoryview(data)) == magic


@pytest.mark.parametrize("magic", [0, 1])
def test_what_is_not_whole_is_none(magic: int) -> None:
    data = message(magic)
    for length in range(len(data)):
        assert old_magic(data[:length]) is None
    for at in range(8, len(data)):  # the CRC does not cover the offset
        flipped = bytearray(data)
        flipped[at] ^= 1
        assert old_magic(bytes(flipped)) is None


def test_a_batch_and_zeros_are_none() -> None:
    batch = bytes(build_batch([NewRecord(b"v", None, 0)]))
    assert old_length(batch) == 0
    assert old_magic(batch) is None
    assert old_magic(bytes(100)) is None
