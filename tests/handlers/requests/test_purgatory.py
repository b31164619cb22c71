"""The purgatory against a model: each operation ends exactly once, on time, and nothing is left behind."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mpbroker.handlers.requests.purgatory import PURGE_INTERVAL, Purgatory, Watch
from tests.support.forms import rounds

KEYS = range(5)


class Wait:
    """Is complete as soon as one of its keys has reached a level."""

    def __init__(self, levels: dict[int, int], keys: list[int], wanted: int) -> None:
        self.levels, self.keys, self.wanted = levels, keys, wanted
        self.ended: list[str] = []

    def met(self) -> bool:
        return any(self.levels[key] >= self.wanted for key in self.keys)

    def try_complete(self) -> bool:
        assert not self.ended
        if self.met():
            self.ended.append("completed")
        return bool(self.ended)

    def expire(self) -> None:
        self.ended.append("expired")


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.levels = dict.fromkeys(KEYS, 0)
        self.now_ms = 0
        self.marked: set[int] = set()
        self.purgatory: Purgatory[int, Wait] = Purgatory(self.marked.add, self.marked.remove)
        self.waiting: list[tuple[Wait, Watch[int, Wait]]] = []
        self.ended: list[Wait] = []

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        more=st.integers(0, 3),
        wait_ms=st.integers(0, 50),
    )
    def watch(self, keys: list[int], more: int, wait_ms: int) -> None:
        wait = Wait(self.levels, keys, max(self.levels[k] for k in keys) + more)
        watch = self.purgatory.watch(wait, keys, self.now_ms + wait_ms)
        self.waiting.append((wait, watch))
        if more == 0:
            # What came before the watch is found by the next try.
            self.move(keys[0], 0)

    @rule(key=st.sampled_from(KEYS), more=st.integers(0, 2))
    def move(self, key: int, more: int) -> None:
        self.levels[key] += more
        due = [wait for wait, _ in self.waiting if key in wait.keys and wait.met()]
        assert self.purgatory.check(key) == len(due)
        self._expect(due, "completed")

    @rule(passed_ms=st.integers(1, 40))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        due = [wait for wait, watch in self.waiting if watch.deadline_ms <= self.now_ms]
        assert self.purgatory.expire(self.now_ms) == len(due)
        self._expect(due, "expired")

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if not self.waiting:
            return
        wait, watch = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        assert self.purgatory.cancel(watch)
        assert not self.purgatory.cancel(watch)
        wait.ended.append("cancelled")
        self.ended.append(wait)

    def _expect(self, due: list[Wait], how: str) -> None:
        for wait in due:
            assert wait.ended == [how]
        self.ended += due
        self.waiting = [entry for entry in self.waiting if entry[0] not in due]

    @invariant()
    def nothing_is_lost_or_left(self) -> None:
        assert len(self.purgatory) == len(self.waiting)
        assert all(not wait.ended for wait, _ in self.waiting)
        assert all(len(wait.ended) == 1 for wait in self.ended)
        assert (
            set(self.purgatory.watched()) == self.marked == {k for wait, _ in self.waiting for k in wait.keys}
        )
        assert self.purgatory.entries == sum(len(set(wait.keys)) for wait, _ in self.waiting)
        deadlines = [watch.deadline_ms for _, watch in self.waiting]
        assert self.purgatory.next_deadline_ms() == min(deadlines, default=None)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=rounds(60), stateful_step_count=40, deadline=None)


def test_an_operation_may_cancel_its_own_wait() -> None:
    purgatory: Purgatory[int, Cancelled] = Purgatory()

    class Cancelled(Wait):
        def try_complete(self) -> bool:
            assert purgatory.cancel(watch) is self
            return True

    watch = purgatory.watch(Cancelled({1: 0}, [1], 1), [1], 100)
    assert purgatory.check(1) == 1
    assert len(purgatory) == 0
    assert purgatory.next_deadline_ms() is None


@pytest.mark.parametrize("interval", [1, 10, PURGE_INTERVAL])
def test_timers_of_ended_operations_are_purged(interval: int) -> None:
    levels = {1: 0}
    purgatory: Purgatory[int, Wait] = Purgatory(purge_interval=interval)
    for _ in range(3 * interval):
        watch = purgatory.watch(Wait(levels, [1], 1), [1], 10**9)
        purgatory.cancel(watch)
        assert len(purgatory._timers) <= interval + 1
    assert purgatory.entries == len(purgatory) == 0


def test_expiry_is_exact_to_the_millisecond() -> None:
    purgatory: Purgatory[int, Wait] = Purgatory()
    wait = Wait({1: 0}, [1], 1)
    purgatory.watch(wait, [1], 1000)
    assert purgatory.expire(999) == 0
    assert purgatory.expire(1000) == 1
    assert wait.ended == ["expired"]
