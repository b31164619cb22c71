"""Lags of one partition, and of groups over all partitions of their topics."""

from __future__ import annotations

import pytest

from mpbroker.observe.lag import Ends, lag_behind


@pytest.mark.parametrize(("committed", "lag"), [(3, 7), (10, 0), (12, 0), (0, 10), (-7, 10)])
def test_a_lag_is_not_below_zero_nor_above_the_log(committed: int, lag: int) -> None:
    assert lag_behind(10, committed) == lag


def test_partitions_of_a_group_are_all_of_its_topics() -> None:
    ends = Ends({("t", 1): 50, ("t", 0): 100, ("other", 0): 7})
    assert ends.places([("t", 1), ("gone", 3)]) == [("gone", 3), ("t", 0), ("t", 1)]
    assert ends.places([]) == []


def test_a_lag_is_of_committed_offsets_of_partitions_that_are_there() -> None:
    ends = Ends({("t", 0): 100, ("t", 1): 50})
    assert ends.lag({("t", 0): 90, ("t", 1): 60, ("gone", 0): 5}) == 10
    assert ends.lag({("t", 1): -1}) == 50
    assert ends.lag({("t", 1): 50}) == 0
    assert ends.lag({("gone", 0): 5}) is None
    assert ends.lag({}) is None
