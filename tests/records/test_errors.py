"""What a batch that cannot be read says of its offsets."""

from __future__ import annotations

import pytest

from mpbroker.records.builder import build_batch
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import NewRecord

MAGIC_AT, ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT = 16, 21, 23


def batch() -> bytearray:
    return bytearray(build_batch([NewRecord(b"a"), NewRecord(b"b")], base_offset=7))


def test_one_with_a_wrong_crc_has_those_of_its_header() -> None:
    data = batch()
    data[-1] ^= 1
    with pytest.raises(CorruptBatch) as caught:
        list(iterate_batches(data))
    assert caught.value.offsets == range(7, 9)


@pytest.mark.parametrize(("at", "byte"), [(MAGIC_AT, 9), (LAST_OFFSET_DELTA_AT, 0x80)])
def test_a_header_that_makes_no_sense_says_nothing(at: int, byte: int) -> None:
    data = batch()
    data[at] = byte
    with pytest.raises(CorruptBatch) as caught:
        list(iterate_batches(data))
    assert caught.value.offsets is None


def test_one_whose_records_cannot_be_read_has_those_of_its_header() -> None:
    data = batch()
    data[ATTRIBUTES_AT + 1] = 7
    (found,) = iterate_batches(data, check_crc=False)
    with pytest.raises(CorruptBatch, match="codec is 7") as caught:
        found.records()
    assert caught.value.offsets == range(7, 9)
