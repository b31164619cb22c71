"""The bench of growth: what is measured, how far, in which order. What a point says is in test_hops."""

from __future__ import annotations

from argparse import Namespace

import pytest

from ops.bench import growth, point
from ops.docs.charts import CHARTS


def test_each_picture_has_a_curve() -> None:
    assert [chart.curve for chart in CHARTS if chart.curve not in growth.CURVES] == []


def test_points_take_turns_but_for_a_log_that_grows() -> None:
    assert growth.order("partitions", 2, 2) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert growth.order("log-size", 2, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("gigabytes", "sizes"),
    [(None, [0, 1, 4, 12, 30]), (4, [0, 1, 4]), (6, [0, 1, 4, 6]), (50, [0, 1, 4, 12, 30, 50])],
)
def test_the_largest_log_is_chosen(gigabytes: float | None, sizes: list[float]) -> None:
    scale = growth.scale_of(Namespace(short=False, rounds=None, gigabytes=gigabytes))
    assert list(scale.log_gigabytes) == sizes
    assert scale.rounds == growth.NORMAL.rounds


def test_a_point_is_the_median_of_its_turns() -> None:
    turns = [{"rate": rate, "cpu_us": {"handler": cpu_us}} for rate, cpu_us in ((1, 9), (300_004, 7), (5, 8))]
    assert point.merged(turns) == {"rate": 5, "cpu_us": {"handler": 8}}
    assert point.merged(turns[1:2])["rate"] == 300_000, "four digits are enough"
