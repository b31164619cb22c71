"""Snapshots save reading; a ledger is the same without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.remote.ledger import ledger as ledger_module
from mpbroker.remote.ledger.events import (
    CutTaken,
    Event,
    LogStartMoved,
    Released,
    SegmentsRemoved,
    SnapshotWritten,
    StandbySet,
    TopicDeleted,
    TopicSet,
)
from mpbroker.remote.ledger.ledger import Ledger
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.snapshots import PREFIX, Snapshot, decode_snapshot, encode_snapshot, snapshot_name
from mpbroker.remote.store.object_store import StoreError
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

OTHER_ID = b"o" * 16


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "SNAPSHOT_EVERY", 3)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ledger(store: MemoryStore, tmp_path: Path) -> Ledger:
    made = opened_ledger(store, tmp_path)
    made.append([TOPIC, TopicSet("other", OTHER_ID, 1, {}), segment(0), segment(10), segment(0, partition=1)])
    made.append([segment(0, topic_id=OTHER_ID), LogStartMoved(TOPIC_ID, 0, 10), TopicDeleted(OTHER_ID)])
    cuts = [
        CutTaken(b"1" * 16, 5, 1, "digest", 3, (b"a" * 16, b"b" * 16), ()),
        CutTaken(b"2" * 16, 6, 1, "digest", 3, (b"c" * 16,), (b"a" * 16,)),
    ]
    standby = StandbySet(2, "h", "r", {"PLAINTEXT": ("h", 9092)})
    others: list[Event] = [standby, SnapshotWritten(2, 1), Released()]
    made.append([SegmentsRemoved(TOPIC_ID, 0, (segment(0).segment_id,)), *cuts, *others])
    return made


def parts(reader: LedgerReader | Ledger) -> object:
    state = reader.state
    return (
        *(reader.seq, state.topics, state.segments, state.removed, state.log_starts),
        *(state.cuts, state.bundles, state.leader, state.is_released, state.standbys, state.snapshots),
        state.firsts,
    )


def names(store: MemoryStore) -> list[str]:
    return [found.name for found in store.list(PREFIX)]


def test_it_has_all_that_the_entries_have(ledger: Ledger, store: MemoryStore) -> None:
    bare = read(store)
    assert snapshot_if_due(ledger)
    assert not snapshot_if_due(ledger)
    counted = FaultStore(store)
    reader = LedgerReader(counted)
    reader.read_to_end()
    assert parts(reader) == parts(bare) == parts(ledger)
    assert (reader.digest, reader.last, reader.snapshot_seq) == (bare.digest, bare.last, 4)
    assert [name for operation, name in counted.calls if operation == "get"] == [
        *(snapshot_name(4), "mpbroker/log/00000000000000000004", "mpbroker/log/00000000000000000005"),
    ]


def test_old_ones_are_deleted(ledger: Ledger, store: MemoryStore) -> None:
    for base in range(20, 120, 10):
        snapshot_if_due(ledger)
        ledger.append([segment(base)])
    assert names(store) == [snapshot_name(10), snapshot_name(13)]
    assert parts(read(store)) == parts(ledger)


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"format":9,"seq":4,"entry":"","body":""}\n', None])
def test_one_that_is_damaged_is_passed_over(ledger: Ledger, store: MemoryStore, damage: bytes | None) -> None:
    snapshot_if_due(ledger)
    for base in (20, 30, 40):
        ledger.append([segment(base)])
    snapshot_if_due(ledger)
    newest = names(store)[-1]
    # None: torn.
    store.objects[newest] = store.objects[newest][:-1] if damage is None else damage
    reader = read(store)
    assert (parts(reader), reader.snapshot_seq) == (parts(ledger), 4)
    for name in names(store):
        store.objects[name] = b""
    reader = read(store)
    assert (parts(reader), reader.snapshot_seq) == (parts(ledger), 0)


def test_every_flipped_bit_is_noticed(ledger: Ledger) -> None:
    data = encode_snapshot(Snapshot(4, "digest", ledger.state))
    found = decode_snapshot(data)
    assert found is not None
    assert found.state.segments == ledger.state.segments
    begin = data.index(b"\n") + 1
    for at in range(begin, len(data)):
        assert decode_snapshot(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]) is None


def test_one_of_another_ledger_is_passed_over(ledger: Ledger, store: MemoryStore, tmp_path: Path) -> None:
    """It may have been left by a ledger that was in the same place before."""
    foreign_store, directory = MemoryStore(), tmp_path / "foreign"
    directory.mkdir()
    foreign = opened_ledger(foreign_store, directory)
    for base in (0, 10, 20):
        foreign.append([*([] if base else [TOPIC]), segment(base, partition=1)])
    assert snapshot_if_due(foreign)
    store.objects[snapshot_name(4)] = foreign_store.objects[snapshot_name(4)]
    assert parts(read(store)) == parts(ledger)
    # Or be ahead of the one that is there.
    store.objects[snapshot_name(9)] = encode_snapshot(Snapshot(9, "digest", foreign.state))
    assert parts(read(store)) == parts(ledger)


def test_a_failure_is_no_failure_of_the_ledger(store: MemoryStore, tmp_path: Path) -> None:
    faulty = FaultStore(store)
    ledger = ledger_of(faulty, tmp_path)
    ledger.start(STARTED)
    for base in (0, 10):
        ledger.append([*([] if base else [TOPIC]), segment(base)])
    for fault in (Fault.ERROR, Fault.LOST):
        faulty.plan("put", fault)
        with pytest.raises(StoreError):
            snapshot_if_due(ledger)
    ledger.append([segment(20)])
    assert snapshot_if_due(ledger)
    assert parts(read(store)) == parts(ledger)


def test_a_reader_of_the_past_takes_no_snapshot_of_later(ledger: Ledger, store: MemoryStore) -> None:
    assert snapshot_if_due(ledger)
    past = LedgerReader(store)
    past.read_to_end(3)
    assert past.seq == 3
    assert [one.base for one in past.state.segments_of(TOPIC_ID, 0)] == [0, 10]
    at_once = LedgerReader(store)
    at_once.read_to_end(ledger.seq)
    assert parts(at_once) == parts(ledger)
