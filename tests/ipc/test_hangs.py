"""Who hangs and who only works, waits or recovers; and that a supervisor which was away accuses nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.ipc.hangs import LOOK_MAX_S, Patience, Pulse, Verdict, waits_for_disk

LIMIT = 3
SLEEPS, STOPPED, IN_THE_DISK = "S", "T", "D"


def verdicts(looks: list[tuple[int, str, int]], working_limit: float = 0) -> list[Verdict]:
    """One per tick for (turns, state, CPU time)."""
    pulse = Pulse()
    found = []
    for turns, state, cpu in looks:
        found.append(pulse.judge(turns, LIMIT, working_limit, lambda state=state, cpu=cpu: (state, cpu)))
    return found


def test_who_turns_is_alive_and_nobody_looks_closer() -> None:
    pulse = Pulse()
    for turns in range(10):
        assert pulse.judge(turns, LIMIT, 0, lambda: pytest.fail("looked")) is Verdict.ALIVE


@pytest.mark.parametrize("state", [SLEEPS, STOPPED])
def test_who_is_silent_for_the_whole_limit_hangs(state: str) -> None:
    found = verdicts([(7, state, 0)] * (LIMIT + 1))
    assert found == [Verdict.ALIVE] * LIMIT + [Verdict.HANGS]


def test_one_turn_begins_the_limit_anew() -> None:
    silent = [(7, SLEEPS, 0)] * LIMIT
    assert verdicts([*silent, *[(8, SLEEPS, 0)] * LIMIT]) == [Verdict.ALIVE] * 2 * LIMIT


def test_a_slow_disk_is_no_hang() -> None:
    assert verdicts([(7, IN_THE_DISK, 0)] * (LIMIT + 1))[-1] is Verdict.WAITS_FOR_DISK


def test_a_busy_machine_is_no_hang() -> None:
    """What could run and gets no processor neither turns nor uses any CPU."""
    starved = [(7, "R", 0)] * (10 * LIMIT)
    assert set(verdicts(starved)) == {Verdict.ALIVE}
    # Nor does it make a hang look shorter than it is.
    found = verdicts([(7, SLEEPS, 0), *starved, *[(7, SLEEPS, 0)] * LIMIT])
    assert found == [Verdict.ALIVE] * (len(found) - 1) + [Verdict.HANGS]


def test_using_the_cpu_counts_only_for_who_announced_work() -> None:
    busy = [(7, "R", ticks) for ticks in range(LIMIT + 1)]
    assert verdicts(busy)[-1] is Verdict.HANGS
    assert verdicts(busy * 5, working_limit=100)[-1] is Verdict.ALIVE


def test_work_without_end_is_a_hang() -> None:
    busy = [(7, "R", ticks) for ticks in range(1, 100)]
    found = verdicts(busy, working_limit=20)
    assert found.index(Verdict.HANGS) == 1 + 20 + LIMIT - 1


def test_announced_work_that_uses_no_cpu_is_a_hang() -> None:
    assert verdicts([(7, SLEEPS, 5)] * (LIMIT + 2), working_limit=100)[-1] is Verdict.HANGS


def test_recovery_may_take_for_ever() -> None:
    busy = [(7, "R", ticks) for ticks in range(1, 10_000)]
    assert set(verdicts(busy, working_limit=float("inf"))) == {Verdict.ALIVE}


def test_patience_does_not_run_while_its_owner_is_away() -> None:
    now = [0.0]
    patience = Patience(10, clock=lambda: now[0])
    now[0] = 1_000_000.0
    assert not patience.is_over(), "one look counts as a little, however long it took to come"
    for _ in range(3):
        now[0] += LOOK_MAX_S
        assert not patience.is_over()
    now[0] += LOOK_MAX_S
    assert patience.is_over()
    patience.renew()
    assert not patience.is_over()


def test_who_waits_for_the_disk(tmp_path: Path) -> None:
    for number, state in ((1, "S"), (2, "R")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{number} (a) D (b) {state} " + "0 " * 40)
    (tmp_path / "3").mkdir()
    assert not waits_for_disk(tmp_path)
    (tmp_path / "3" / "stat").write_text("3 (a) D " + "0 " * 40)
    assert waits_for_disk(tmp_path)
