"""The tables of docs/PERFORMANCE.md that are made from measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ops.bench import growth_file
from ops.bench.model import AIM, Checked
from ops.docs import figures, performance
from ops.docs.figures import README
from ops.docs.performance import PAGE
from ops.docs.tables import TableError


def test_pages_say_what_was_measured() -> None:
    """README and PERFORMANCE have the figures of the recorded runs, and no table of others."""
    text = README.read_text()
    assert figures.readme(text, figures.read()) == text, "run: python -m ops.docs.figures"
    text = PAGE.read_text()
    made = performance.page(text, growth_file.read(), figures.read())
    assert made == text, "run: python -m ops.docs.performance"
    by_hand = re.sub(r"<!-- table .*?<!-- end -->", "", text, flags=re.DOTALL)
    with_figures = [line for line in by_hand.splitlines() if re.match(r"\|.*\| *[\d.,]+ *\|", line)]
    assert with_figures == []


def test_a_curve_that_was_not_measured_is_named() -> None:
    with pytest.raises(TableError, match=r"PERFORMANCE.md: the table bends lacks 'connections'"):
        performance.page(PAGE.read_text(), {}, figures.read())


def test_a_point_that_others_disturbed_has_no_verdict() -> None:
    point = Checked("connections", "os", 64, 100.0, 150.0, fitted=True, others_cores=1.2)
    assert performance.verdict(point) == "fitted, others took 1.2"
    quiet = replace(point, fitted=False, others_cores=0.1)
    assert performance.verdict(quiet) == "+50 %"


def test_most_points_come_out_as_predicted() -> None:
    """The page says which do not, and why."""
    points = [point for point in performance.checked(growth_file.read()) if not point.fitted]
    assert len([point for point in points if abs(point.apart) <= AIM]) > 0.8 * len(points)


def test_measuring_does_not_depend_on_how_it_is_told() -> None:
    """ops/docs imports ops/bench, and not the other way round."""
    bench = Path(growth_file.__file__).parent
    assert [path.name for path in bench.rglob("*.py") if "ops.docs import" in path.read_text()] == []
