"""Records of a batch a piece at a time: the same as all at once, and damage is told."""

from __future__ import annotations

import pytest

from mpbroker.records.batch import BATCH_HEADER_BYTES
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import PIECE_RECORDS, Batch, iterate_batches
from mpbroker.records.record import NewRecord


def made(count: int, codec: Codec = Codec.NONE) -> bytearray:
    some = (NewRecord(b"v" * (n % 300), b"%d" % n, timestamp=n) for n in range(count))
    return bytearray(build_batch(list(some), codec=codec))


def batch_of(data: bytearray) -> Batch:
    return next(iterate_batches(data, check_crc=False))


@pytest.mark.parametrize("count", [1, PIECE_RECORDS, PIECE_RECORDS + 1, 3 * PIECE_RECORDS + 7])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_pieces_are_the_records(count: int, codec: Codec) -> None:
    batch = batch_of(made(count, codec))
    pieces = list(batch.pieces(batch.stream()))
    assert [record for piece in pieces for record in piece] == batch.records()
    assert all(len(piece) <= PIECE_RECORDS for piece in pieces)


def test_pieces_before_a_position_are_left_out() -> None:
    batch = batch_of(made(3 * PIECE_RECORDS))
    pieces = list(batch.pieces(batch.stream(), 2 * PIECE_RECORDS - 1))
    assert [piece[0].offset for piece in pieces] == [PIECE_RECORDS, 2 * PIECE_RECORDS]


@pytest.mark.parametrize("length", [b"\xff" * 10, b"\x01", b"\xfe\xff\xff\xff\x0f"])
def test_a_wrong_length_is_told(length: bytes) -> None:
    data = made(3 * PIECE_RECORDS)
    at = BATCH_HEADER_BYTES
    data[at : at + len(length)] = length
    batch = batch_of(data)
    with pytest.raises(CorruptBatch):
        list(batch.pieces(batch.stream()))


def test_what_stands_behind_the_last_record_is_told() -> None:
    batch = batch_of(made(2 * PIECE_RECORDS))
    with pytest.raises(CorruptBatch, match=f"after the first {PIECE_RECORDS} records"):
        list(batch.pieces(bytes(batch.stream()) + b"\0"))
