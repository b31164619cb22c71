"""The gate of the benchmarks: which ratios to Apache Kafka hold, and which are missed."""

from __future__ import annotations

import pytest

from ops.bench import ratios
from ops.bench.check import RATIOS, all_guarded
from ops.bench.ratios import Measured, Recorded, Verdict

KEPT = {"a": Recorded(ratio=1.5, noise=0.2, rounds=5)}


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        ([1.19, 1.19, 9.0], Verdict.MISSED),
        ([1.21, 0.1, 1.21], Verdict.HELD),
        ([1.79, 1.79, 1.79], Verdict.HELD),
        ([1.81, 1.81, 1.81], Verdict.BETTER),
    ],
)
def test_a_row_holds_within_its_noise(measured: list[float], verdict: Verdict) -> None:
    (row,) = ratios.compare(KEPT, {"a": Measured(measured)})
    assert row.verdict is verdict
    assert row.bound == pytest.approx(1.2)
    assert row.failed == (verdict is Verdict.MISSED)


def test_a_row_that_was_never_recorded_fails() -> None:
    (row,) = ratios.compare(KEPT, {"b": Measured([9.0])})
    assert row.verdict is Verdict.NOT_RECORDED
    assert row.failed


def test_what_was_not_measured_is_not_compared() -> None:
    assert ratios.compare(KEPT, {}) == []


def test_a_slower_device_lowers_the_bound_and_a_faster_one_does_not() -> None:
    kept = Recorded(ratio=1.0, noise=0.1, rounds=5, device_us=100.0)
    assert ratios.bound(kept, 150.0) == pytest.approx(0.6)
    assert ratios.bound(kept, 900.0) == pytest.approx(0.45)
    assert ratios.bound(kept, 50.0) == pytest.approx(0.9)
    assert ratios.bound(kept, 0.0) == pytest.approx(0.9)
    unbounded = Recorded(ratio=1.0, noise=0.1, rounds=5)
    assert ratios.bound(unbounded, 150.0) == pytest.approx(0.9)


def test_each_guarded_row_is_recorded() -> None:
    assert sorted(ratios.load(RATIOS)) == sorted(row for one in all_guarded() for row in one.rows())
