"""How many groups there are by protocol and state, and how many rebalances began."""

from __future__ import annotations

from mmap import mmap

import pytest

from mpbroker.coordinator.groups import group_counts
from mpbroker.coordinator.groups.group_counts import COUNT_EVERY_MS
from mpbroker.ipc.counters import Counter, Histogram
from shm.counters import CounterPage, page_bytes
from tests.support.consumer_group_rig import Consumer, settle, settled
from tests.support.group_rig import GroupRig


@pytest.fixture
def page() -> CounterPage:
    sizes = Counter.COUNTERS, Histogram.HISTOGRAMS
    return CounterPage(mmap(-1, page_bytes(*sizes)), *sizes)


def published(rig: GroupRig, page: CounterPage) -> tuple[int, ...]:
    """Classic groups; groups of the consumer protocol that are empty, assigning, reconciling, stable."""
    rig.later(COUNT_EVERY_MS)
    rig.coordinator.counts.publish(page)
    return tuple(page.get(word) for word in group_counts.ALL_WORDS)


def test_groups_are_counted_by_protocol_and_state(
    rig: GroupRig, page: CounterPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert published(rig, page) == (0, 0, 0, 0, 0)
    rig.stable(1)
    consumers = {name: Consumer(rig, "a", group=name) for name in ("empty", "stable", "reconciling")}
    for one in consumers.values():
        settle(rig, one)
    consumers["empty"].leave()
    other = Consumer(rig, "b", group="reconciling")
    other.beat()
    # A job of many slices counts the same.
    monkeypatch.setattr(group_counts, "LOOKED_AT_ONCE", 1)
    assert published(rig, page) == (1, 1, 0, 1, 1)
    assert published(rig, page) == (1, 1, 0, 1, 1)


def test_rebalances_are_epochs_that_begin_for_another_reason_than_a_leave(
    rig: GroupRig, page: CounterPage
) -> None:
    def begun() -> int:
        rig.coordinator.counts.publish(page)
        return page.get(Counter.COUNT_GROUP_REBALANCES)

    a = Consumer(rig, "a", group="named")
    a.beat()
    assert begun() == 1
    settle(rig, a)
    assert begun() == 1
    a.leave()
    assert begun() == 1
    b = settled(rig, "b", group="matched", topics=None, pattern="t.*")
    before = begun()
    assert before > 1
    rig.create("tt", 2)
    rig.later(11_000)
    settle(rig, b)
    assert begun() > before
