"""Messages of magic 0 and 1, as kafka-python writes them, become batches with the same records."""

from __future__ import annotations

import zlib

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from mpbroker.records import legacy
from mpbroker.records.compression import Codec, compress, decompress
from mpbroker.records.errors import CompressionError, CorruptBatch
from mpbroker.records.legacy import batch_of, entry_at, is_old
from tests.support.record_reading import iterate_records

TIME = 1_500_000_000_000
FIELDS = [(b"k0", b"v0" * 50), (None, b"v1"), (b"k2", None), (b"", b""), (b"k4", b"x" * 3000)]


def written(magic: int, codec: Codec, count: int = 5) -> bytes:
    """As a broker has it, with offsets from 0 on: that of a compressed message is the last one in it."""
    builder = LegacyRecordBatchBuilder(magic, int(codec), 1 << 20)
    for offset, (key, value) in enumerate(FIELDS[:count]):
        builder.append(offset, TIME + offset if magic else None, key, value)
    data = builder.build()
    if codec:
        data[:8] = (count - 1).to_bytes(8, "big")
    return bytes(data)


@pytest.fixture(autouse=True)
def old_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their descriptor's checksum was wrong; kafka-python has no hash of its own to be wrong with."""

    def frame(payload: bytes) -> bytes:
        data = bytearray(compress(Codec.LZ4, payload))
        assert not data[4] & 0x08
        data[6] ^= 0x5A
        with pytest.raises(CompressionError):
            decompress(Codec.LZ4, data)
        return bytes(data)

    monkeypatch.setattr("kafka.record.legacy_records.lz4_encode_old_kafka", frame)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_records_stay_what_they_are(magic: int, codec: Codec) -> None:
    data = memoryview(written(magic, codec))
    records, position, entries = [], 0, 0
    while position < len(data):
        assert is_old(data, position)
        entry = entry_at(data, position)
        records += entry.records
        position += entry.length
        entries += 1
        assert entry.codec == codec
    assert entries == (1 if codec else len(FIELDS))
    times = [TIME + offset if magic else -1 for offset in range(len(FIELDS))]
    assert [(one.offset, one.key, one.value) for one in records] == [
        (offset, key, value) for offset, (key, value) in enumerate(FIELDS)
    ]
    assert [one.timestamp for one in records] == times
    assert list(iterate_records(batch_of(records, codec))) == records


def test_offsets_may_have_gaps() -> None:
    """As compaction leaves them; those in a compressed message count back from its own."""
    data = bytearray(written(1, Codec.GZIP))
    data[:8] = (104).to_bytes(8, "big")
    records = entry_at(memoryview(data), 0).records
    assert [one.offset for one in records] == [100, 101, 102, 103, 104]
    kept = [records[0], records[3]]
    assert list(iterate_records(batch_of(kept, Codec.NONE))) == kept


def test_the_time_of_the_broker_counts_for_all() -> None:
    """Its bit, and the time, are the outer message's."""
    data = bytearray(written(1, Codec.GZIP))
    data[17] |= 0x08
    data[18:26] = (TIME + 77).to_bytes(8, "big")
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "big")
    records = entry_at(memoryview(data), 0).records
    assert {(one.timestamp, one.timestamp_type) for one in records} == {(TIME + 77, 1)}
    assert list(iterate_records(batch_of(records, Codec.GZIP))) == records


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_what_is_not_whole_is_none(codec: Codec) -> None:
    data = written(1, codec, 1)
    for length in range(len(data)):
        with pytest.raises(CorruptBatch):
            entry_at(memoryview(data[:length]), 0)
    for at in range(12, len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptBatch):
                entry_at(memoryview(flipped), 0)


def test_what_a_log_has_may_be_larger_than_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy, "DEFAULT_LIMIT_BYTES", 1000)
    assert len(entry_at(memoryview(written(1, Codec.GZIP)), 0).records) == len(FIELDS)


@pytest.mark.parametrize("offsets", [(0, 2, 1), (0, 1 << 32)])
def test_offsets_that_no_batch_can_have_are_damage(offsets: tuple[int, ...]) -> None:
    inner = b""
    for offset in offsets:
        inner += offset.to_bytes(8) + written(0, Codec.NONE, 1)[8:]
    builder = LegacyRecordBatchBuilder(0, 0, 1 << 20)
    builder.append(offsets[-1], None, None, compress(Codec.GZIP, inner))
    wrapper = bytearray(builder.build())
    wrapper[17] = Codec.GZIP
    wrapper[12:16] = zlib.crc32(wrapper[16:]).to_bytes(4)
    with pytest.raises(CorruptBatch, match="out of order"):
        entry_at(memoryview(wrapper), 0)
