"""Tests the pipeline's rings, commit rounds and ways of requests, with counters made here."""

from __future__ import annotations

import pytest

from mpbroker.console.pipeline import KINDS, commits, paths, rings
from mpbroker.ipc.counters import Histogram
from mpbroker.ipc.topology import CLEANER, HANDLERS, LOG, LOG_WORKERS, PROCESSES, PROCESSORS, SharedMemory
from mpbroker.metrics.snapshot import NOTHING, Distribution, Snapshot
from tests.support.snapshots import counted, counts, spread

MS = 1_000_000
SLOT = bytes(64)


def of_handler(seconds: float, **values: int) -> Snapshot:
    """A snapshot whose first handler has these counts."""
    return counts(seconds, counters=counted(handler_0=values))


def of_worker(seconds: float, waiting: int, worker: int = LOG, **values: Distribution) -> Snapshot:
    """A snapshot in which a log worker has these histograms."""
    histograms = {index: [NOTHING] * Histogram.HISTOGRAMS for index in range(PROCESSES)}
    for name, found in values.items():
        histograms[worker][Histogram[name]] = found
    return counts(seconds, counters=counted(log_0={"PRODUCES_DELAYED": waiting}), distributions=histograms)


# ---- rings


def test_rings_between_two_kinds_of_processes_are_one_row(memory: SharedMemory) -> None:
    for role in (LOG, CLEANER, *PROCESSORS[:2], *HANDLERS[:2]):
        memory.words("roles").store(role, 1)
    for handler, waiting in zip(HANDLERS[:2], (3, 5), strict=True):
        for _ in range(waiting):
            assert memory.ring(PROCESSORS[0], handler).push(SLOT)
    assert memory.ring(LOG, PROCESSORS[1]).push(SLOT)
    found = {(one["from"], one["to"]): one for one in rings(memory)}
    slots = memory.ring(PROCESSORS[0], HANDLERS[0]).size
    assert found["processor", "handler"] == {
        "from": "processor",
        "to": "handler",
        "rings": 4,
        "waiting": 8,
        "slots": slots,
        "fill": 5 / slots,
    }
    assert (found["log", "processor"]["rings"], found["log", "processor"]["waiting"]) == (2, 1)
    assert found["background", "log"]["rings"] == 1


def test_rings_of_processes_that_are_not_there_are_left_out(memory: SharedMemory) -> None:
    assert rings(memory) == []
    memory.words("roles").store(LOG, 1)
    assert rings(memory) == []
    memory.words("roles").store(HANDLERS[0], 1)
    assert [(one["from"], one["to"]) for one in rings(memory)] == [("handler", "log"), ("log", "handler")]


def test_each_process_has_a_kind() -> None:
    assert {name for name, kind in KINDS.items() if kind == "background"} == {
        "cleaner",
        "scrubber",
        "exporter",
        "tier",
    }
    assert {KINDS[name] for name in ("acceptor", "control-plane acceptor")} == {"acceptor"}
    assert {KINDS[name] for name in ("log 0", "log 1")} == {"log"}
    assert {KINDS[name] for name in ("handler 0", "control-plane handler")} == {"handler"}
    assert {KINDS[name] for name in ("processor 0", "control-plane processor")} == {"processor"}
    assert KINDS["coordinator"] == "coordinator"


# ---- commit rounds


def test_commit_rounds_are_those_between_two_looks() -> None:
    old, new = spread({100 * MS: 50}), spread({100 * MS: 50, 2 * MS: 8, 4 * MS: 2})
    before = of_worker(10, 0, TIME_COMMIT_NS=old, BATCHES_PER_ROUND=spread({1: 50}))
    now = of_worker(15, 7, TIME_COMMIT_NS=new, BATCHES_PER_ROUND=spread({1: 50, 6: 10}))
    found = commits(now, before, LOG_WORKERS)
    assert (found["waiting"], found["rounds_per_s"], found["batches"]) == (7, 2, 6)
    assert found["p50_ms"] == pytest.approx(2, rel=0.125)
    assert found["p99_ms"] == pytest.approx(4, rel=0.125)
    assert "append_p99_ms" not in found


def test_commit_rounds_are_those_of_all_log_workers() -> None:
    now = of_worker(
        2, 0, worker=LOG_WORKERS[1], TIME_COMMIT_NS=spread({MS: 4}), TIME_APPEND_NS=spread({MS: 1})
    )
    found = commits(now, of_worker(0, 0), LOG_WORKERS)
    assert found["rounds_per_s"] == 2
    assert found["append_p99_ms"] == pytest.approx(1, rel=0.125)


def test_without_a_look_before_or_a_round_no_time_is_told() -> None:
    now = of_worker(5, 7, TIME_COMMIT_NS=spread({MS: 4}))
    assert commits(now, None, LOG_WORKERS) == {"waiting": 7}
    assert commits(now, now, LOG_WORKERS) == {"waiting": 7, "rounds_per_s": None}


# ---- ways of requests


def test_fetches_that_wait_are_told_apart() -> None:
    before = of_handler(1, FETCHES=100, FETCHES_FAST=10, FETCHES_PARKED=70)
    now = of_handler(3, FETCHES=300, FETCHES_FAST=90, FETCHES_PARKED=170, PRODUCE_FAST=8)
    assert paths(now, before) == {
        "produce_native": 4,
        "produce_python": 0,
        "fetch_native": 40,
        "fetch_waited": 50,
        "fetch_python": 10,
    }


def test_one_that_waits_since_an_earlier_look_is_no_negative_rate() -> None:
    before = of_handler(0, FETCHES=10)
    assert paths(of_handler(1, FETCHES=10, FETCHES_PARKED=3), before)["fetch_python"] == 0


@pytest.mark.parametrize("before", [None, of_handler(1)])
def test_without_a_look_before_nothing_is_told(before: Snapshot | None) -> None:
    assert paths(of_handler(1), before) == {}
