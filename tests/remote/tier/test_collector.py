"""The collector deletes old orphans of uploads, and nothing else."""

from __future__ import annotations

import pytest

from mpbroker.remote.cuts.manifest import BUNDLES, CUTS, bundle_name, cut_name
from mpbroker.remote.layout.indexes import IndexSizes
from mpbroker.remote.layout.object_names import SegmentObjects
from mpbroker.remote.ledger.events import CutTaken, SegmentAdded, SegmentsRemoved, TopicSet
from mpbroker.remote.ledger.ledger import Fenced
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.tier.collector import ORPHAN_MS, collect
from mpbroker.remote.tier.store_clock import CLOCK
from tests.support.fault_store import MemoryStore

TOPIC = bytes(16)
NOW_MS = 10 * ORPHAN_MS


def added(base: int) -> SegmentAdded:
    sizes = IndexSizes(0, 0, 0, 0, 0)
    return SegmentAdded(
        TOPIC, 0, "t", bytes([base]) * 16, base, base + 1, 1, 0, ((0, 0),), sizes, False, 0, 0
    )


def nothing() -> None:
    pass


@pytest.fixture
def state() -> RemoteState:
    """One segment, and one that was removed."""
    found = RemoteState()
    found.apply([TopicSet("t", TOPIC, 1, {}), added(1), added(2)], 0)
    found.apply([SegmentsRemoved(TOPIC, 0, (added(1).segment_id,))], 0)
    return found


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    for name in (*added(1).objects.all, *added(2).objects.all, "t/of-somebody", "mpbroker/log/1"):
        made.create(name, b"x")
    return made


def test_old_objects_that_the_ledger_does_not_name_are_deleted(
    state: RemoteState, store: MemoryStore
) -> None:
    stays = set(store.objects)
    for name in added(3).objects.all:
        store.create(name, b"x")
    store.now_ms = NOW_MS - ORPHAN_MS
    young = SegmentObjects("t", TOPIC, 0, 4, bytes(16)).log
    store.create(young, b"x")
    store.now_ms = NOW_MS
    assert collect(store, state, (), nothing, nothing) == 3
    assert set(store.objects) == stays | {young, CLOCK}


def test_nothing_is_deleted_by_who_is_fenced(state: RemoteState, store: MemoryStore) -> None:
    store.create(added(3).objects.log, b"x")
    store.now_ms = NOW_MS

    def fenced() -> None:
        raise Fenced("another one")

    with pytest.raises(Fenced):
        collect(store, state, (), fenced, nothing)
    assert added(3).objects.log in store.objects


def test_old_objects_of_cuts_that_the_ledger_does_not_name_are_deleted(store: MemoryStore) -> None:
    state = RemoteState()
    cut, bundle, other = (bytes([number]) * 16 for number in range(3))
    state.apply([CutTaken(cut, 0, 1, "", 0, (bundle,), ())], 0)
    named = {cut_name(cut), bundle_name(bundle), f"{BUNDLES}x"}
    for name in (*named, cut_name(other), bundle_name(other)):
        store.create(name, b"x")
    store.now_ms = NOW_MS
    collect(store, state, (), nothing, nothing)
    assert {name for name in store.objects if name.startswith((CUTS, BUNDLES))} == named
