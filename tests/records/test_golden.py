"""Batches whose bytes are known from elsewhere, built and read."""

import pytest

from mpbroker.records import batch as layout
from mpbroker.records.batch import BATCH_OK, CRC_AT, checksum, checksum_in_software, scan_batch
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.record import NewRecord, Record
from tests.support.record_reading import iterate_records

T = 1700000000000

DATA = bytes.fromhex(
    "00000000000000000000004b0000000002427cfa440000000000010000018bcfe568000000018bcfe56805"
    "ffffffffffffffffffffffffffff0000000212000000026b047631001e000a02010476320402680278026e01"
)
MARKER = bytes.fromhex(
    "00000000000000020000004200000000029d3d22370030000000000000018bcfe5680a0000018bcfe5680a"
    "00000000000003e80003ffffffff000000012000000008000000010c00000000000700"
)


def test_data_batch_is_built_byte_for_byte() -> None:
    records = [NewRecord(b"v1", b"k", T), NewRecord(b"v2", None, T + 5, (("h", b"x"), ("n", None)))]
    assert build_batch(records, leader_epoch=0) == DATA


def test_data_batch_is_read() -> None:
    assert list(iterate_records(DATA)) == [
        Record(0, T, 0, b"k", b"v1"),
        Record(1, T + 5, 0, None, b"v2", (("h", b"x"), ("n", None))),
    ]
    scan = scan_batch(DATA)
    assert (scan.verdict, scan.record_count, scan.max_timestamp, scan.has_null_key) == (
        BATCH_OK,
        2,
        T + 5,
        True,
    )


def test_commit_marker_is_built_and_read() -> None:
    marker = build_transaction_marker(
        COMMIT,
        producer_id=1000,
        producer_epoch=3,
        coordinator_epoch=7,
        timestamp=T + 10,
        base_offset=2,
        leader_epoch=0,
    )
    assert marker == MARKER
    (batch,) = iterate_batches(MARKER)
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.header.producer_id, batch.header.producer_epoch, batch.last_offset) == (1000, 3, 2)
    assert batch.records()[0].key == b"\x00\x00\x00\x01"
    assert list(iterate_records(MARKER)) == []


def test_abort_marker_differs_in_its_type() -> None:
    marker = build_transaction_marker(
        ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=T
    )
    (batch,) = iterate_batches(marker)
    assert batch.records()[0].key == b"\x00\x00\x00\x00"


def test_layout_agrees_with_a_reading_by_hand() -> None:
    assert layout.BATCH_HEADER_BYTES == 61
    assert int.from_bytes(DATA[layout.BATCH_LENGTH_AT :][:4]) == 75
    assert int.from_bytes(DATA[CRC_AT:][:4]) == 0x427CFA44
    assert int.from_bytes(DATA[layout.RECORD_COUNT_AT :][:4]) == 2


@pytest.mark.parametrize("check", [checksum, checksum_in_software])
def test_checksum_of_the_standard_vectors(check: object) -> None:
    assert callable(check)
    assert check(b"123456789") == 0xE3069283
    assert check(bytes(32)) == 0x8A9136AA
    assert check(b"\xff" * 32) == 0x62A8AB43
    assert check(b"") == 0


def test_checksum_paths_agree_at_every_length_and_alignment() -> None:
    import crc32c

    data = bytes(range(251)) * 200
    lengths = [*range(1700), 3 * 4096 - 1, 3 * 4096, 3 * 4096 + 777, 40000]
    for length in lengths:
        piece = data[length % 13 : length % 13 + length]
        expected = crc32c.crc32c(piece, length)
        assert checksum(piece, length) == expected
        assert checksum_in_software(piece, length) == expected
