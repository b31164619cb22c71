"""`.txnindex` files, and which aborted transactions belong to what was read (a model tells)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.storage import transaction_index
from mpbroker.storage.transaction_index import (
    AbortedIndex,
    AbortedTransaction,
    TransactionIndexCorrupt,
    aborted_between,
    add_aborted,
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


def test_of_an_index_that_grows_only_new_entries_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.txnindex"
    entries = [AbortedTransaction(1, 2 * i, 2 * i + 1, 2 * i + 2) for i in range(9)]
    checked: list[int] = []
    check = transaction_index._checked

    def counted(path: Path, data: bytes, last_marker: int) -> Iterator[AbortedTransaction]:
        checked.append(len(data) // ENTRY.size)
        return check(path, data, last_marker)

    monkeypatch.setattr(transaction_index, "_checked", counted)
    monkeypatch.setattr(transaction_index, "_READ_ENTRIES", 5)
    monkeypatch.setattr(transaction_index, "_TAKEN_ENTRIES", 2)
    write(path, *entries[:6])
    with closing(AbortedIndex(path)) as found:
        assert [*found[0:6]] == entries[:6]
        for entry in entries[6:]:
            add_aborted(path, entry)
            assert found.read_on()
        assert found.read_on()
        assert checked == [5, 1, 1, 1, 1]
        assert list(aborted_between([found], 3, 12)) == entries[1:6]
        assert found[8] == entries[8]


def test_another_file_of_the_name_and_one_that_lost_entries_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    write(path, (1, 0, 1, 2), (1, 2, 3, 4))
    with closing(AbortedIndex(path)) as found:
        write(tmp_path / "new", (1, 0, 1, 2), (1, 2, 3, 4)).rename(path)
        assert not found.read_on()
    with closing(AbortedIndex(path)) as found:
        write(path, (1, 0, 1, 2))
        assert not found.read_on()
        with pytest.raises(TransactionIndexCorrupt, match="shorter than 2 entries"):
            found[1]
        path.unlink()
        assert not found.read_on()


def test_corrupt_new_entries_are_refused_each_time(tmp_path: Path) -> None:
    path = write(tmp_path / "0.txnindex", (1, 0, 5, 6))
    with closing(AbortedIndex(path)) as found:
        write(path, (1, 0, 5, 6), (2, 1, 5, 6))
        for _ in range(2):
            with pytest.raises(TransactionIndexCorrupt, match="at 5"):
                found.read_on()
        write(path, (1, 0, 5, 6), rest=b"abc")
        with pytest.raises(TransactionIndexCorrupt, match="within an entry, after 37 bytes"):
            found.read_on()


def test_markers_of_a_segment_that_was_merged_into_the_first_one_do_not_count_twice() -> None:
    first = [AbortedTransaction(1, 0, 5, 6), AbortedTransaction(1, 10, 15, 9)]
    merged = [AbortedTransaction(2, 9, 12, 9), AbortedTransaction(1, 10, 15, 9)]
    later = [AbortedTransaction(3, 11, 30, 31)]
    assert list(aborted_between([first, merged, later], 0, 20, lambda: 20)) == [*first, *later]


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
