"""The pictures of the growth curves."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from ops.docs import charts
from ops.docs.charts import CHARTS, Chart, ChartError, Panel


def test_the_pictures_are_up_to_date() -> None:
    for path, text in charts.pictures().items():
        assert path.read_text() == text, "run: python -m ops.docs.charts"


def test_each_curve_of_the_docs_was_measured() -> None:
    assert {chart.path for chart in CHARTS} == set(charts.pictures())


def test_each_picture_is_shown() -> None:
    page = (charts.DOCS / "PERFORMANCE.md").read_text()
    assert [chart.path.name for chart in CHARTS if f"({chart.path.name})" not in page] == []


@pytest.mark.parametrize(
    ("largest", "marks"),
    [(0, [0, 1]), (1, [0, 0.5, 1]), (7, [0, 2, 4, 6, 8]), (100_000, [0, 50_000, 100_000])],
)
def test_marks_are_round_numbers_up_to_the_largest_value(largest: float, marks: list[float]) -> None:
    assert charts.steps(largest) == pytest.approx(marks)


def test_decades_hold_all_values() -> None:
    assert charts.decades(90, 1100) == [10, 100, 1000, 10_000]
    assert charts.decades(100, 100) == [100, 1000]


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0"), (0.5, "0.5"), (64, "64"), (1500, "1.5k"), (10_000, "10k"), (2_000_000, "2M")],
)
def test_numbers_are_short(value: float, told: str) -> None:
    assert charts.short(value) == told


def test_heights_are_shares_of_the_axis() -> None:
    top, bottom = charts.PANEL_TOP, charts.PANEL_TOP + charts.PANEL_HEIGHT
    linear = Panel(0, [0, 50, 100])
    assert (linear.height(0), linear.height(50), linear.height(100)) == (bottom, (top + bottom) / 2, top)
    logarithmic = Panel(0, [10, 100, 1000], logarithmic=True)
    assert logarithmic.height(100) == pytest.approx((top + bottom) / 2)
    assert logarithmic.height(1) == bottom


def point(x: float, **cpu_us: float) -> dict[str, Any]:
    used = dict.fromkeys(charts.KINDS, 0.0) | cpu_us
    return {"x": x, "series": "durable", "cpu_us": used, "requests_per_s": 5, "p50_us": 10, "p99_us": 99}


def test_columns_are_stacked_and_only_kinds_that_can_be_seen_are_explained() -> None:
    chart = Chart("any", "Any & all", "things", lines=("durable",))
    svg = charts.picture(chart, {"points": [point(1, processor=54, handler=36), point(10, processor=45)]})
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"Any & all", "things", "processor", "handler", "durable"} <= set(texts)
    assert "log worker" not in texts
    columns = [one for one in root.iter() if one.tag.endswith("rect") and "width" in one.attrib]
    heights = [float(one.attrib["height"]) for one in columns if one.attrib["class"] in ("k0", "k1")]
    assert heights[:3] == pytest.approx([102.6, 68.4, 85.5]), "54, 36 and 45 of an axis to 100"


def test_a_curve_without_points_is_named() -> None:
    with pytest.raises(ChartError, match=r"growth.json: the curve any has no points of durable"):
        charts.picture(Chart("any", "", "", lines=("durable",)), {"points": []})
