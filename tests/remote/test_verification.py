"""A store that is checked by itself: each kind of loss and damage is found, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.remote.ledger.entries import LedgerDamaged, entry_name
from mpbroker.remote.ledger.events import LogStartMoved
from mpbroker.remote.ledger.reader import FORMAT_NAME
from mpbroker.remote.ledger.snapshots import snapshot_name
from mpbroker.remote.tier.collector import ORPHAN_MS
from mpbroker.remote.verification import NoLedger, Problem, Verified, verify
from tests.support.fault_store import MemoryStore
from tests.support.ledger_parts import STARTED, TOPIC, TOPIC_ID, ledger_of, segment, snapshot_if_due
from tests.support.tier_world import TierWorld


@pytest.fixture
def store(world: TierWorld) -> MemoryStore:
    """Of a partition with three segments."""
    world.turn()
    return world.memory_store


def check(store: MemoryStore, *, deep: bool = True) -> Verified:
    return verify(store, deep=deep, progress=lambda _done, _total: None)


def names(store: MemoryStore, suffix: str) -> list[str]:
    return sorted(name for name in store.objects if name.endswith(suffix))


def test_a_store_in_good_order(store: MemoryStore) -> None:
    found = check(store)
    assert found.problems == []
    assert (found.segments, found.topics, found.orphans) == (3, 1, 0)
    assert found.bytes == sum(len(store.objects[name]) for name in names(store, ".log"))


@pytest.mark.parametrize("suffix", [".log", ".indexes", ".rsm-manifest"])
def test_an_object_that_is_missing(store: MemoryStore, suffix: str) -> None:
    name = names(store, suffix)[1]
    del store.objects[name]
    assert check(store, deep=False).problems == [Problem(name, "it is missing")]


def test_an_object_that_was_cut(store: MemoryStore) -> None:
    name = names(store, ".log")[0]
    size = len(store.objects[name])
    store.objects[name] = store.objects[name][:-1]
    says = f"it has {size - 1:,} bytes; the ledger says {size:,}"
    assert check(store, deep=False).problems == [Problem(name, says)]


@pytest.mark.parametrize("suffix", [".log", ".indexes"])
def test_a_flipped_bit_is_found_by_who_reads_it(store: MemoryStore, suffix: str) -> None:
    name = names(store, suffix)[2]
    body = bytearray(store.objects[name])
    body[len(body) // 2] ^= 1
    store.objects[name] = bytes(body)
    assert check(store, deep=False).problems == []
    found = check(store).problems
    assert {one.name for one in found} == {name}
    assert "checksum" in found[0].what
    # The batch is named, too.
    assert len(found) == (2 if suffix == ".log" else 1)


def test_an_orphan_of_a_day_is_counted_and_no_problem(store: MemoryStore) -> None:
    name = names(store, ".log")[0]
    store.put(f"{name[:-26]}{'A' * 22}.log", [], 0)
    found = check(store)
    assert (found.orphans, found.problems) == (0, []), "it may be of an upload under way"
    store.now_ms += ORPHAN_MS + 1
    store.put("other", [], 0)
    found = check(store)
    assert (found.orphans, found.problems) == (1, [])


def test_a_ledger_without_an_entry(store: MemoryStore) -> None:
    del store.objects[entry_name(1)]
    with pytest.raises(LedgerDamaged, match=entry_name(1)):
        check(store)


def test_the_snapshots_that_the_ledger_names(tmp_path: Path) -> None:
    store = MemoryStore()
    ledger = ledger_of(store, tmp_path)
    ledger.start(STARTED)
    while not snapshot_if_due(ledger):
        ledger.renew()
    name = snapshot_name(ledger.seq - 1)
    assert check(store).problems == []
    store.objects[name] = store.objects[name][:-1]
    assert check(store).problems == [Problem(name, "it is damaged")]
    store.delete([name])
    assert check(store).problems == [Problem(name, "it is missing")]


def test_where_nobody_was_is_no_ledger(store: MemoryStore) -> None:
    del store.objects[FORMAT_NAME]
    with pytest.raises(NoLedger):
        check(store)


def test_offsets_between_two_segments_that_nobody_has(tmp_path: Path) -> None:
    store = MemoryStore()
    ledger = ledger_of(store, tmp_path)
    ledger.start(STARTED)
    ledger.append([TOPIC, segment(0), segment(20)])
    name = segment(20).objects.log
    gap = Problem(name, "offsets 10 to 19 before it are in no segment")
    assert gap in check(store, deep=False).problems
    ledger.append([LogStartMoved(TOPIC_ID, 0, 20)])
    assert gap not in check(store, deep=False).problems
