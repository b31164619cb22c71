"""The tables of docs/PERFORMANCE.md that are made from measurements."""

from __future__ import annotations

import re

import pytest

from ops.bench import growth_file
from ops.bench.model import AIM
from ops.docs import performance
from ops.docs.performance import PAGE


@pytest.mark.parametrize("name", performance.TABLES)
def test_a_table_is_up_to_date(name: str) -> None:
    found = re.search(rf"<!-- table {name} -->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    lines = performance.TABLES[name](growth_file.read())
    assert found[1].splitlines() == [*lines], "run: python -m ops.docs.performance"


def test_most_points_come_out_as_predicted() -> None:
    """The page says which do not, and why."""
    points = [point for point in performance.checked(growth_file.read()) if not point.fitted]
    assert len([point for point in points if abs(point.apart) <= AIM]) > 0.8 * len(points)
