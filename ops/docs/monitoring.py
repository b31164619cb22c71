"""Writes the metrics of docs/MONITORING.md from what the code declares: `python -m ops.docs.monitoring`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import fill

from mpbroker.exporter import mpbroker_metrics, partition_metrics
from mpbroker.exporter.exposition import Family
from ops.docs.tables import Made, filled

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "MONITORING.md"


def _metrics(families: Iterable[Family]) -> list[str]:
    names = ", ".join(f"`{one.name}`" for one in families)
    return [f"{fill(names, 120, break_on_hyphens=False)}."]


TABLES: Made = {
    "ours": lambda: _metrics(mpbroker_metrics.declared()),
    "partitions": lambda: _metrics(partition_metrics.FAMILIES),
}


def page() -> str:
    """Return the page with its tables made again. Raises TableError."""
    return filled(PAGE.read_text(), PAGE, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page())
