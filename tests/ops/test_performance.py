"""The tables of docs/PERFORMANCE.md that are made from measurements."""

from __future__ import annotations

import re

from ops.bench import growth_file
from ops.bench.model import AIM
from ops.docs import figures, performance
from ops.docs.figures import README
from ops.docs.performance import PAGE


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


def test_most_points_come_out_as_predicted() -> None:
    """The page says which do not, and why."""
    points = [point for point in performance.checked(growth_file.read()) if not point.fitted]
    assert len([point for point in points if abs(point.apart) <= AIM]) > 0.8 * len(points)
