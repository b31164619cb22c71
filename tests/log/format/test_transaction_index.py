"""`.txnindex` files, and which aborted transactions belong to what was read (a model tells)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.log.format.transaction_index import (
    AbortedTransaction,
    TransactionIndexCorrupt,
    aborted_between,
    read_aborted,
    replace_aborted,
)
from tests.support.full_disk import files_take

ENTRY = struct.Struct(">hqqqq")


def write(path: Path, *entries: tuple[int, int, int, int], version: int = 0, rest: bytes = b"") -> Path:
    path.write_bytes(b"".join(ENTRY.pack(version, *entry) for entry in entries) + rest)
    return path


def test_entries_are_kafkas(tmp_path: Path) -> None:
    """Check the layout: 34 bytes each, big-endian."""
    path = tmp_path / "0.txnindex"
    path.write_bytes(bytes.fromhex("000000000000000003e800000000000000050000000000000009000000000000000a"))
    assert read_aborted(path) == [AbortedTransaction(1000, 5, 9, 10)]


def test_an_empty_file_has_none(tmp_path: Path) -> None:
    assert read_aborted(write(tmp_path / "0.txnindex")) == []


def test_what_is_corrupt_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    with pytest.raises(TransactionIndexCorrupt, match="within an entry, after 37 bytes"):
        read_aborted(write(path, (1, 0, 5, 6), rest=b"abc"))
    with pytest.raises(TransactionIndexCorrupt, match="version 1"):
        read_aborted(write(path, (1, 0, 5, 6), version=1))
    with pytest.raises(TransactionIndexCorrupt, match="at 5"):
        read_aborted(write(path, (1, 0, 5, 6), (2, 1, 5, 6)))
    with pytest.raises(TransactionIndexCorrupt, match="ends before it began"):
        read_aborted(write(path, (0, 0, 0, 0)))


Entries = list[AbortedTransaction]


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Entries], Entries]:
    """Indexes of some segments, and all entries; the last stable offsets are as Kafka writes them."""
    markers = sorted(draw(st.sets(st.integers(1, 60), max_size=12)))
    spans = [(draw(st.integers(0, marker - 1)), marker) for marker in markers]
    entries = []
    for number, (first, last) in enumerate(spans):
        # What is open when the marker is written began before it and ends behind it.
        still_open = [start for start, end in spans if end > last and start < last]
        entries.append(AbortedTransaction(number, first, last, min([*still_open, last + 1])))
    cut = draw(st.integers(0, len(entries)))
    return [entries[:cut], entries[cut:]], entries


@given(found=logs(), start=st.integers(0, 60), length=st.integers(1, 30))
def test_none_is_missing(found: tuple[list[Entries], Entries], start: int, length: int) -> None:
    """Check that the result has every transaction with records in the range, and no other."""
    indexes, entries = found
    end = start + length
    needed = [e for e in entries if e.last_offset >= start and e.first_offset < end]
    assert list(aborted_between(indexes, start, end)) == needed


def test_what_cannot_be_replaced_stays(tmp_path: Path) -> None:
    """Check that the old index stays if a new one cannot be written: its first part is nowhere else."""
    path = tmp_path / f"{0:020d}.txnindex"
    first, second = AbortedTransaction(1, 0, 5, 6), AbortedTransaction(2, 6, 8, 9)
    replace_aborted(path, [first])
    with files_take(0), pytest.raises(OSError, match="too large"):
        replace_aborted(path, [first, second])
    assert read_aborted(path) == [first]
    replace_aborted(path, [first, second])
    assert read_aborted(path) == [first, second]
