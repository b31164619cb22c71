"""Timers by name, against the plainest thing that could be right."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.coordinator.runtime.timers import Timers

NAMES = ["cleanup", ("join", "a"), ("join", "b"), ("member", "a", "x"), ("member", "a", "y")]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "postpone", "pass on", "cancel", "due"]),
        st.sampled_from(NAMES),
        st.integers(0, 50),
    ),
    max_size=60,
)


@given(STEPS)
def test_timers_end_once_in_order_and_are_counted_by_kind(steps: list[tuple[str, object, int]]) -> None:
    timers, plain, now_ms = Timers(), dict[object, int](), 0
    ended: list[object] = []
    for what, name, number in steps:
        if what == "set":
            plain[name] = now_ms + number
            timers.set(name, now_ms + number, lambda name=name: ended.append(name))  # type: ignore[misc]
        elif what == "postpone":
            deadline_ms = plain.get(name, now_ms) + number
            assert timers.postpone(name, deadline_ms) == (name in plain)
            plain |= {name: deadline_ms} if name in plain else {}
        elif what == "pass on":
            again = partial(ended.append, name)
            assert timers.pass_on(name, again) == (name in plain)  # type: ignore[arg-type]
        elif what == "cancel":
            plain.pop(name, None)
            timers.cancel(name)
        else:
            now_ms += number
            due = {one for one, at_ms in plain.items() if at_ms <= now_ms}
            times = {one: plain.pop(one) for one in due}
            ended.clear()
            names = []
            for named, action in timers.due(now_ms):
                names.append(named)
                action()
            assert names == ended
            assert set(ended) == due
            assert [times[one] for one in ended] == sorted(times.values())
        assert len(timers) == len(plain)
        assert timers.next_deadline_ms() == min(plain.values(), default=None)
        for kind in ("cleanup", "join", "member"):
            count = sum(one == kind or (isinstance(one, tuple) and one[0] == kind) for one in plain)
            assert timers.count(kind) == count


def test_timers_that_expire_together_run_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call ends when its time is over. Timers that an action sets wait for the next call."""
    timers = Timers()
    ran: list[int] = []

    def again(number: int) -> None:
        ran.append(number)
        timers.set(("member", str(number)), 0, lambda: ran.append(number))

    for number in range(3):
        timers.set(("member", str(number)), 0, partial(again, number))
    timers.run(0, "group", lambda _: None)
    assert ran == [0, 1, 2]
    monkeypatch.setattr("mpbroker.coordinator.runtime.timers.RUN_S", 0)
    for count in (4, 5, 6, 6):
        timers.run(0, "group", lambda _: None)
        assert len(ran) == count
    assert ran == [0, 1, 2, 0, 1, 2]
