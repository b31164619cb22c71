"""Tables take turns: none waits for the whole way of another one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from spark_integration.tables import turns
from spark_integration.tables.settings import TableSettings
from spark_integration.tables.turns import Outcome, Turns
from tests.support.polling import PATIENCE_S

LONG_S = 3600.0


@pytest.fixture(autouse=True)
def polls_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "POLL_EVERY_S", 0.001)


def tables(*names: str) -> list[TableSettings]:
    return [TableSettings(topic=name, name=name) for name in names]


def never() -> bool:
    return False


class Topics:
    """What each table has yet to get, in commits; and the commits, in their order."""

    def __init__(self, **left: int) -> None:
        self.left = Counter(left)
        self.taken: list[str] = []
        self.beside: list[int] = []

    def take(self, table: TableSettings, at_once: int) -> Outcome:
        self.taken.append(table.name)
        self.beside.append(at_once)
        self.left[table.name] -= 1
        return Outcome(self.left[table.name] <= 0)

    def look(self) -> Sequence[TableSettings]:
        return tables(*self.left)


def test_tables_take_turns() -> None:
    topics = Topics(long=4, short=1, other=2)
    assert Turns(topics.take, 1, LONG_S).run(topics.look, never, once=True) == []
    assert topics.taken == ["long", "short", "other", "long", "other", "long", "long"]
    assert set(topics.beside) == {1}


def test_once_ends_though_a_round_takes_longer_than_the_interval() -> None:
    topics = Topics(a=1, broken=1, b=3)

    def take(table: TableSettings, at_once: int) -> Outcome:
        found = topics.take(table, at_once)
        return Outcome(False, "why") if table.name == "broken" else found

    assert Turns(take, 1, 0.0).run(topics.look, lambda: len(topics.taken) > 20, once=True) == ["why"]
    assert Counter(topics.taken) == {"a": 1, "broken": 1, "b": 3}


def test_several_at_once() -> None:
    """As many as there may be, and each is told of how many."""
    topics = Topics(a=1, b=1, c=1)
    meeting = threading.Barrier(2)

    def take(table: TableSettings, at_once: int) -> Outcome:
        if table.name != "c":
            meeting.wait(PATIENCE_S)
        return topics.take(table, at_once)

    assert Turns(take, 2, LONG_S).run(topics.look, never, once=True) == []
    assert sorted(topics.taken) == ["a", "b", "c"]
    assert topics.beside[:2] == [2, 2]


def test_a_slow_table_and_one_that_fails_hold_up_nobody() -> None:
    topics = Topics(slow=1, broken=1, quick=50)
    is_over = threading.Event()

    def take(table: TableSettings, at_once: int) -> Outcome:
        if table.name == "slow":
            assert is_over.wait(PATIENCE_S)
        found = topics.take(table, at_once)
        if topics.left["quick"] <= 0:
            is_over.set()
        return Outcome(False, "broken: why") if table.name == "broken" else found

    failed = Turns(take, 2, LONG_S).run(topics.look, never, once=True)
    assert failed == ["broken: why"]
    # The slow one ends after all others, and the broken one is not tried again before its time.
    assert Counter(topics.taken) == {"slow": 1, "broken": 1, "quick": 50}
    assert topics.taken[-1] == "slow"


def test_a_table_never_has_two_turns_at_a_time() -> None:
    """Even if it is due again while its turn lasts, or was away from the list."""
    topics = Topics(a=200, b=200)
    now: Counter[str] = Counter()
    looks = 0

    def take(table: TableSettings, at_once: int) -> Outcome:
        now[table.name] += 1
        assert now[table.name] == 1
        found = topics.take(table, at_once)
        now[table.name] -= 1
        return found

    def look() -> Sequence[TableSettings]:
        nonlocal looks
        looks += 1
        return topics.look() if looks % 2 else tables("b")

    def is_stopped() -> bool:
        return not +topics.left

    assert Turns(take, 4, 0.0).run(look, is_stopped, once=False) == []


def test_a_failed_table_is_tried_again() -> None:
    outcomes = [Outcome(False, "why"), Outcome(False, "why"), Outcome(True)]
    turn = Turns(lambda *_: outcomes.pop(0), 1, 0.001)
    assert turn.run(lambda: tables("a"), lambda: not outcomes, once=False) == []


def test_a_stop_waits_for_turns_under_way() -> None:
    """Their outcome counts; no other turn begins."""
    topics = Topics(a=1, b=1)
    stopped, begun = threading.Event(), threading.Event()

    def take(table: TableSettings, at_once: int) -> Outcome:
        begun.set()
        assert stopped.wait(PATIENCE_S)
        topics.take(table, at_once)
        return Outcome(False, f"{table.name}: why")

    def is_stopped() -> bool:
        if begun.is_set():
            stopped.set()
        return begun.is_set()

    assert Turns(take, 1, LONG_S).run(topics.look, is_stopped, once=True) == ["a: why"]
    assert topics.taken == ["a"]


@pytest.mark.parametrize("once", [True, False])
def test_what_ends_the_process_ends_the_turns(once: bool) -> None:
    class Killed(BaseException):
        pass

    def take(_table: TableSettings, _at_once: int) -> Outcome:
        raise Killed

    def run(look: Callable[[], Sequence[TableSettings]]) -> None:
        Turns(take, 1, LONG_S).run(look, never, once=once)

    with pytest.raises(Killed):
        run(lambda: tables("a"))
