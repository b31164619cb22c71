"""The gate of the benchmarks: which ratios to Apache Kafka hold, and which are missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench import ratios
from ops.bench.check import RATIOS, all_guarded
from ops.bench.ratios import Measured, RatiosError, Recorded, Verdict

KEPT = {"a": Recorded(ratio=1.5, noise=0.2, rounds=5)}


def test_the_median_is_recorded_and_how_far_the_rounds_lay_apart() -> None:
    kept = ratios.recorded(Measured([1.0, 1.1, 0.9, 3.0, 1.05], device_us=101.26))
    assert kept == Recorded(ratio=1.05, noise=ratios.NOISE_MOST, rounds=5, device_us=101.3)
    assert ratios.recorded(Measured([2.0, 2.2, 1.9])).noise == pytest.approx(0.15)
    assert ratios.recorded(Measured([2.0, 2.01, 2.0])).noise == ratios.NOISE_LEAST


def test_a_row_without_rounds_is_not_recorded() -> None:
    with pytest.raises(ValueError, match="without rounds"):
        ratios.recorded(Measured([]))


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


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "ratios.json"
    rows = {"a, os, rate": Recorded(1.5, 0.2, 5), "… b, durable, ms": Recorded(0.7, 0.5, 3, 96.5)}
    ratios.save(path, "two cores", rows)
    assert ratios.load(path) == rows


@pytest.mark.parametrize("damaged", ["", "{}", '{"rows": {"a": {"ratio": 1}}}', '{"rows": [1]}'])
def test_a_damaged_file_is_refused(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "ratios.json"
    path.write_text(damaged)
    with pytest.raises(RatiosError, match=r"is damaged .*take it from git"):
        ratios.load(path)


def test_a_file_that_is_not_there_says_how_to_record_it(tmp_path: Path) -> None:
    with pytest.raises(RatiosError, match="record it with --record"):
        ratios.load(tmp_path / "ratios.json")


def test_each_guarded_row_is_recorded() -> None:
    assert sorted(ratios.load(RATIOS)) == sorted(row for one in all_guarded() for row in one.rows())
