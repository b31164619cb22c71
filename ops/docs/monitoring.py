"""Writes the tables of docs/MONITORING.md from what the code declares: `python -m ops.docs.monitoring`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mpbroker.exporter import mpbroker_metrics, partition_metrics
from mpbroker.exporter.exposition import Family
from ops.docs.tables import Made, filled

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "MONITORING.md"
RULES = ROOT / "ops" / "prometheus" / "mpbroker.rules.yml"
# Prometheus fills in values; what the page says instead, by alert.
_VALUE = re.compile(r"\{\{.*?\}\}")
INSTEAD = {"MpbrokerRestarts": "More than three"}


class _Texts(msgspec.Struct):
    description: str


class Rule(msgspec.Struct):
    """An alert, as far as the page tells of it."""

    alert: str
    annotations: _Texts
    wait: str = msgspec.field(default="at once", name="for")


class _Group(msgspec.Struct):
    rules: list[Rule]


class _File(msgspec.Struct):
    groups: list[_Group]


def alerts() -> list[Rule]:
    """Return the alerts in their order. Raises msgspec.ValidationError: one lacks what the page needs."""
    found = msgspec.yaml.decode(RULES.read_bytes(), type=_File)
    return [rule for group in found.groups for rule in group.rules]


def _metrics(families: Iterable[Family]) -> list[str]:
    rows = [f"| `{one.name}` | {one.type} | {one.help} |" for one in families]
    return ["| metric | type | what it says |", "|---|---|---|", *rows]


def alert_rows() -> list[str]:
    rows = []
    for rule in alerts():
        text = rule.annotations.description
        if _VALUE.search(text):
            text = _VALUE.sub(INSTEAD[rule.alert], text)
        rows.append(f"| `{rule.alert}` | {rule.wait} | {text} |")
    return ["| alert | after | what it means, and what to do |", "|---|---|---|", *rows]


TABLES: Made = {
    "ours": lambda: _metrics(mpbroker_metrics.declared()),
    "partitions": lambda: _metrics(partition_metrics.FAMILIES),
    "alerts": alert_rows,
}


def page() -> str:
    """Return the page with its tables as they should be. Raises TableError."""
    return filled(PAGE.read_text(), PAGE, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page())
