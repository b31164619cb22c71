"""A ledger that is not whole is named; a reader follows one that grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.remote.ledger import reader as reader_module
from mpbroker.remote.ledger.entries import NO_DIGEST, LedgerDamaged, Writer, encode_entry, entry_name
from mpbroker.remote.ledger.ledger import SNAPSHOT_EVERY, Ledger
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.store.object_store import ObjectInfo, StoreError
from tests.support.fault_store import Fault, FaultStore, MemoryStore
from tests.support.ledger_parts import (
    STARTED,
    TOPIC,
    TOPIC_ID,
    ledger_of,
    opened_ledger,
    read,
    segment,
    snapshot_if_due,
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ledger(store: MemoryStore, tmp_path: Path) -> Ledger:
    made = opened_ledger(store, tmp_path)
    made.append([TOPIC])
    for base in range(0, 50, 10):
        made.append([segment(base)])
    return made


def bases(reader: LedgerReader) -> list[int]:
    return [found.base for found in reader.state.segments_of(TOPIC_ID, 0)]


def test_a_reader_follows(ledger: Ledger, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "READ_AHEAD", 2)
    reader = read(store)
    assert (reader.seq, bases(reader)) == (7, [0, 10, 20, 30, 40])
    reader.read_to_end()
    ledger.append([segment(50)])
    reader.read_to_end()
    assert bases(reader)[-1] == 50
    assert reader.state.segments == ledger.state.segments


def test_an_empty_store_has_an_empty_ledger(store: MemoryStore) -> None:
    reader = read(store)
    assert (reader.seq, reader.last, reader.digest, reader.read_format()) == (0, None, NO_DIGEST, None)


@pytest.mark.parametrize("left_out", [slice(-3, None), slice(2, 4), slice(None, None, 2)])
def test_entries_that_are_not_listed_yet_are_read(ledger: Ledger, left_out: slice) -> None:
    """Also those before others that are listed: a directory that changes meanwhile does that."""

    class ListsLate(MemoryStore):
        def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
            found = list(super().list(prefix, after))
            del found[left_out]
            yield from found

    store = ListsLate()
    store.objects = ledger._store.objects  # type: ignore[attr-defined]
    assert read(store).seq == 7


@pytest.mark.parametrize("missing", [1, 3])
def test_a_gap_is_named(ledger: Ledger, store: MemoryStore, missing: int) -> None:
    assert ledger.seq == 7
    store.delete([entry_name(missing)])
    why = f"{entry_name(missing)} is missing, {entry_name(missing + 1)} is there"
    with pytest.raises(LedgerDamaged, match=why):
        read(store)


def test_an_entry_of_another_history_is_named(ledger: Ledger, store: MemoryStore) -> None:
    """A store lost an entry, and a try of it from long ago was applied: its successors do not follow it."""
    header = read(store).last
    assert header is not None
    writer = Writer(1, header.owner, header.start)
    other = LedgerReader(store)
    for seq in range(1, 6):
        other.follow(seq, store.get(entry_name(seq)))
    store.objects[entry_name(6)] = encode_entry(writer, 6, other.digest, 0, [segment(30, end=40)])
    with pytest.raises(LedgerDamaged, match=f"{entry_name(7)} follows another {entry_name(6)} than is there"):
        read(store)
    assert ledger.seq == 7


def test_an_entry_that_contradicts_is_named(store: MemoryStore) -> None:
    store.create(entry_name(1), encode_entry(Writer(1, "o", "s"), 1, NO_DIGEST, 0, [segment(0)]))
    with pytest.raises(LedgerDamaged, match=f"{entry_name(1)}: .* is about a topic that is not there"):
        read(store)


def test_a_later_generation_is_refused(store: MemoryStore) -> None:
    store.create(entry_name(1), encode_entry(Writer(2, "o", "s"), 1, NO_DIGEST, 0, []))
    with pytest.raises(LedgerDamaged, match="is of generation 2, those before of 1"):
        read(store)


def test_other_objects_are_passed_over(ledger: Ledger, store: MemoryStore) -> None:
    for name in (f"{entry_name(3)}.bak", "mpbroker/log/readme", "mpbroker/log/00000000000000000009/x"):
        store.create(name, b"?")
    assert read(store).seq == ledger.seq


def test_reading_goes_on_after_an_outage(ledger: Ledger, store: MemoryStore) -> None:
    faulty = FaultStore(store)
    reader = LedgerReader(faulty)
    for operation, *faults in (("list", Fault.ERROR), ("get", None, None, Fault.ERROR), ("get", Fault.ERROR)):
        faulty.plan(operation, *faults)
        with pytest.raises(StoreError):
            reader.read_to_end()
        # What was planned for reads that no longer came.
        faulty._plans.clear()
    reader.read_to_end()
    assert bases(reader) == bases(read(store))
    assert ledger.seq == reader.seq


def test_a_torn_answer_is_no_entry(ledger: Ledger, store: MemoryStore) -> None:
    faulty = FaultStore(store)
    faulty.plan("get", None, Fault.TORN)
    with pytest.raises(LedgerDamaged):
        LedgerReader(faulty).read_to_end()
    assert ledger.seq == 7


def test_a_long_ledger_takes_few_reads(store: MemoryStore, tmp_path: Path) -> None:
    """That is a snapshot, and those entries that are newer."""
    ledger = ledger_of(store, tmp_path)
    ledger.start(STARTED)
    ledger.append([TOPIC])
    for base in range(0, 10 * 2 * SNAPSHOT_EVERY, 10):
        ledger.append([segment(base)])
        snapshot_if_due(ledger)
    counted = FaultStore(store)
    reader = LedgerReader(counted)
    reader.read_to_end()
    assert (bases(reader), reader.seq) == (bases(read(store)), 3 + 2 * SNAPSHOT_EVERY)
    assert reader.snapshot_seq == 2 * SNAPSHOT_EVERY
    assert len(counted.calls) < 10
