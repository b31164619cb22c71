"""The gate of the benchmarks: which ratios to Apache Kafka hold, and which are missed."""

from __future__ import annotations

from ops.bench import ratios
from ops.bench.check import RATIOS, all_guarded


def test_each_guarded_row_is_recorded() -> None:
    assert sorted(ratios.load(RATIOS)) == sorted(row for one in all_guarded() for row in one.rows())
