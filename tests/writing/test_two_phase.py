"""Exactly once, whatever dies where: a driver killed before or after any effect, transactions that time out.

The log of intents and the transactions are played; what the core decides is what it decides in Spark.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.client.transactions import ProducerId
from mpbroker.writing.intents import JOB, Batch, Intent, Outcome, Prepared, SinkError, State
from mpbroker.writing.two_phase import abort, commit, settle

ROWS_PER_TASK = 2


class Killed(Exception):
    """The driver, by the test."""


class World:
    """A cluster: what is durable in it, and a countdown to the death of whoever acts next."""

    def __init__(self) -> None:
        self.recorded: list[bytes] = []
        self.epoch = 0
        self.open: dict[str, tuple[ProducerId, list[int]]] = {}
        self.ended: dict[Prepared, Outcome] = {}
        self.visible: list[int] = []
        self.fuse = -1
        self._next_id = 0

    def step(self) -> None:
        """Called before and after each effect."""
        if self.fuse == 0:
            self.fuse = -1
            raise Killed
        self.fuse -= 1

    def begin(self, name: str, rows: list[int]) -> Prepared:
        if name in self.open:
            self.abort_named(name)
        self._next_id += 1
        producer = ProducerId(self._next_id, 0)
        self.open[name] = producer, rows
        return Prepared(name, producer)

    def abort_named(self, name: str) -> None:
        producer, _rows = self.open.pop(name)
        self.ended[Prepared(name, producer)] = Outcome.ABORTED

    def time_out(self, names: Iterable[str]) -> None:
        for name in names:
            self.abort_named(name)


class Log:
    """Of one driver."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.epoch = -1

    def fence(self) -> None:
        self.world.step()
        self.world.epoch += 1
        self.epoch = self.world.epoch
        self.world.step()

    def latest(self) -> Intent | None:
        self.world.step()
        return Intent.from_json(self.world.recorded[-1]) if self.world.recorded else None

    def record(self, intent: Intent) -> None:
        self.world.step()
        assert self.epoch == self.world.epoch, "fenced"
        self.world.recorded.append(intent.to_json())
        self.world.step()


class Ends:
    def __init__(self, world: World) -> None:
        self.world = world

    def commit(self, transaction: Prepared) -> Outcome:
        self.world.step()
        if self.world.open.get(transaction.transactional_id, (None,))[0] == transaction.producer:
            _, rows = self.world.open.pop(transaction.transactional_id)
            self.world.visible += rows
            self.world.ended[transaction] = Outcome.COMMITTED
        self.world.step()
        return self.world.ended[transaction]

    def abort(self, transactions: Iterable[Prepared]) -> None:
        for one in transactions:
            self.world.step()
            if self.world.open.get(one.transactional_id, (None,))[0] == one.producer:
                self.world.abort_named(one.transactional_id)

    def closed(self, transactions: Iterable[Prepared]) -> list[Prepared]:
        self.world.step()
        opened = self.world.open
        return [one for one in transactions if opened.get(one.transactional_id, (None,))[0] != one.producer]

    def abort_all(self) -> None:
        for name in [*self.world.open]:
            self.world.step()
            self.world.abort_named(name)


def run_batch(world: World, number: int, tasks: int, run: int, dies_as_job: bool) -> None:
    """What Spark does with a batch: plans, tasks and a failed attempt of each, commit; abort if it fails."""
    batch = Batch("query", number)
    known = Log(world).latest()
    skipped = known is not None and known.covers(batch)
    prepared = []
    for task in range(tasks):
        if not skipped:
            rows = [ROWS_PER_TASK * (10 * number + task) + row for row in range(ROWS_PER_TASK)]
            world.begin(f"s/{run}/{task}/failed", rows)
            prepared.append(world.begin(f"s/{run}/{task}/0", rows))
    try:
        commit(Log(world), Ends(world), batch, prepared, skipped)
    except Killed:
        if dies_as_job:
            raise
        # Not the process died but the call failed: Spark tells it to abort, then the query is started again.
        abort(Log(world), Ends(world), batch, prepared)
        raise


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=6),
)
def test_every_row_once(tasks: list[int], deaths: list[tuple[int, bool]]) -> None:
    world = World()
    number = run = 0
    while number < len(tasks):
        world.fuse, dies = deaths.pop(0) if deaths else (-1, False)
        run += 1
        try:
            run_batch(world, number, tasks[number], run, dies)
        except Killed:
            continue
        number += 1
    expected = [
        ROWS_PER_TASK * (10 * number + task) + row
        for number, count in enumerate(tasks)
        for task in range(count)
        for row in range(ROWS_PER_TASK)
    ]
    assert sorted(world.visible) == expected
    assert world.open == {}, "what nobody will end holds up readers until its timeout"


@given(st.integers(0, 40), st.sets(st.integers(0, 2)))
def test_what_times_out_is_neither_lost_nor_doubled_in_silence(fuse: int, late: set[int]) -> None:
    """The driver dies, some transactions time out, the query is started until it works or asks for help."""
    world = World()
    world.fuse = fuse
    try:
        run_batch(world, 0, 3, 1, dies_as_job=True)
    except Killed:
        world.time_out([name for name in world.open if name[-1] == "0" and int(name.split("/")[2]) in late])
    world.fuse = -1
    expected = list(range(3 * ROWS_PER_TASK))
    for run in (2, 3):
        try:
            run_batch(world, 0, 3, run, dies_as_job=False)
        except SinkError as error:
            if "start with another sinkId" in str(error):
                assert world.visible != expected
                assert len(world.visible) == len(set(world.visible))
                return
            assert world.visible == []
    assert sorted(world.visible) == expected


def test_transactions_that_are_gone_before_the_decision_leave_nothing() -> None:
    world = World()
    prepared = [world.begin("s/1/0/0", [1]), world.begin("s/1/1/0", [2])]
    world.time_out(["s/1/1/0"])
    with pytest.raises(SinkError, match=r"1 of 2 transactions are no longer open.*s/1/1/0"):
        commit(Log(world), Ends(world), Batch("query", 0), prepared, False)
    abort(Log(world), Ends(world), Batch("query", 0), prepared)
    assert (world.visible, world.open, world.recorded) == ([], {}, [])


def test_a_query_that_takes_anothers_sink_id_is_refused() -> None:
    world = World()
    commit(Log(world), Ends(world), Batch("query", 7), [world.begin("s/1/0/0", [1])], False)
    with pytest.raises(SinkError, match="belongs to query query, whose batch 7 is committed"):
        commit(Log(world), Ends(world), Batch("other", 0), [world.begin("s/2/0/0", [2])], False)
    assert world.visible == [1]


def test_jobs_follow_each_other_and_finish_what_one_has_left() -> None:
    world = World()
    first = world.begin("s/1/0/0", [1])
    Log(world).world.recorded.append(Intent(Batch(f"{JOB}1", 0), State.DECIDED, (first,)).to_json())
    commit(Log(world), Ends(world), Batch(f"{JOB}2", 0), [world.begin("s/2/0/0", [2])], False)
    assert world.visible == [1, 2]


def test_an_old_batch_is_not_written_again() -> None:
    world = World()
    commit(Log(world), Ends(world), Batch("query", 7), [world.begin("s/1/0/0", [1])], False)
    commit(Log(world), Ends(world), Batch("query", 6), [world.begin("s/1/0/1", [2])], False)
    assert (world.visible, world.open) == ([1], {})


@pytest.mark.parametrize("decided", [False, True])
def test_a_query_that_was_stopped_leaves_no_transaction_open(decided: bool) -> None:
    world = World()
    first = world.begin("s/1/0/0", [1])
    if decided:
        world.recorded.append(Intent(Batch("query", 0), State.DECIDED, (first,)).to_json())
    world.begin("s/1/1/0", [2])
    settle(Log(world), Ends(world))
    assert (world.visible, world.open) == ([1] if decided else [], {})
