"""Which way requests took, by the counters of handlers."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from mpbroker.console.pipeline import paths
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.topology import HANDLERS
from mpbroker.metrics.snapshot import NS, Snapshot

NATIVE, ALL, PARKED = Counter.COUNT_FETCHES_FAST, Counter.COUNT_FETCHES, Counter.COUNT_FETCHES_PARKED


def seen(seconds: int, **counts: int) -> Snapshot:
    """A snapshot whose first handler has these counts."""
    by_number = {Counter[name]: count for name, count in counts.items()}
    counters = {handler: [0] * Counter.COUNTERS for handler in HANDLERS}
    for number, count in by_number.items():
        counters[HANDLERS[0]][number] = count
    snapshot = Mock(spec=Snapshot, now_ns=seconds * NS, counters=counters)
    snapshot.get = lambda process, counter: counters[process][counter]
    return snapshot


def test_fetches_that_wait_are_told_apart() -> None:
    before = seen(1, COUNT_FETCHES=100, COUNT_FETCHES_FAST=10, COUNT_FETCHES_PARKED=70)
    now = seen(3, COUNT_FETCHES=300, COUNT_FETCHES_FAST=90, COUNT_FETCHES_PARKED=170, COUNT_PRODUCE_FAST=8)
    assert paths(now, before) == {
        "produce_native": 4,
        "produce_python": 0,
        "fetch_native": 40,
        "fetch_waited": 50,
        "fetch_python": 10,
    }


def test_one_that_waits_since_an_earlier_look_is_no_negative_rate() -> None:
    before = seen(0, COUNT_FETCHES=10)
    assert paths(seen(1, COUNT_FETCHES=10, COUNT_FETCHES_PARKED=3), before)["fetch_python"] == 0


@pytest.mark.parametrize("before", [None, seen(1)])
def test_without_a_look_before_nothing_is_told(before: Snapshot | None) -> None:
    assert paths(seen(1), before) == {}
