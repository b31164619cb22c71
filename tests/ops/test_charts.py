"""The pictures of the growth curves."""

from __future__ import annotations

from ops.docs import charts
from ops.docs.charts import CHARTS


def test_the_pictures_are_up_to_date() -> None:
    for path, text in charts.pictures().items():
        assert path.read_text() == text, "run: python -m ops.docs.charts"


def test_each_curve_of_the_docs_was_measured() -> None:
    assert {chart.path for chart in CHARTS} == set(charts.pictures())


def test_each_picture_is_shown() -> None:
    page = (charts.DOCS / "PERFORMANCE.md").read_text()
    assert [chart.path.name for chart in CHARTS if f"({chart.path.name})" not in page] == []
