"""How fast background work may read and write, and when it rests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from mpbroker.log.io import pace


def test_who_is_late_catches_up_a_little_at_the_rate_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now, rate = [100.0], [1000.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    one = pace.Pace(lambda: rate[0])
    assert one.left_s(one.take(500)) == 0.5, "nothing is saved up before the first byte"
    now[0] = 101.25
    assert one.left_s(one.take(1000)) == 0.25, "0.75 s late"
    now[0] = 200.0
    assert one.left_s(mark := one.take(1000)) == 1.0, "what was not used for long is gone"
    rate[0] = 500.0
    assert one.left_s(one.take(1000)) == 4.0
    assert one.left_s(mark) == 2.0, "who waits already is slower, too"
    rate[0] = 1.7976931348623157e308
    now[0] = 200.5
    assert one.left_s(mark) < 0
    rate[0] = 1000.0
    assert one.left_s(one.take(1000)) == 1.0, "what was allowed without a limit is no credit"


def test_a_stint_ends_with_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    used, rests = [0], []
    monkeypatch.setattr(pace.time, "thread_time_ns", lambda: used[0])
    monkeypatch.setattr(pace.time, "sleep", rests.append)
    stints = pace.Stints()
    for _ in range(10):
        used[0] += pace.STINT_NS // 4
        stints.rest_if_due()
    assert rests == [pace.REST_S] * 3
    used[0] += 5 * pace.STINT_NS
    stints.rest_if_due()
    assert len(rests) == 4


def test_a_thread_that_runs_only_when_idle_is_in_the_background() -> None:
    def step_back() -> bool:
        pace.only_when_idle()
        return pace.is_in_background()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(step_back).result()
    assert not pace.is_in_background()
