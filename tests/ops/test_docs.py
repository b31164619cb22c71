"""Pages that are made from the code say what the code says."""

from __future__ import annotations

from ops.docs import compatibility, metrics


def test_the_compatibility_page_is_up_to_date() -> None:
    assert compatibility.PAGE.read_text() == compatibility.page(), "run: python -m ops.docs.compatibility"


def test_the_metrics_page_is_up_to_date() -> None:
    assert metrics.PAGE.read_text() == metrics.page(), "run: python -m ops.docs.metrics"
