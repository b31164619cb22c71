"""Writes the tables of docs/MONITORING.md from what the code declares: `python -m ops.docs.monitoring`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mpbroker.exporter import mpbroker_metrics, partition_metrics
from mpbroker.exporter.exposition import Family

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


def _metrics(families: Iterable[Family]) -> str:
    rows = [f"| `{one.name}` | {one.type} | {one.help} |" for one in families]
    return "\n".join(["| metric | type | what it says |", "|---|---|---|", *rows])


def _alerts() -> str:
    rows = []
    for rule in alerts():
        text = rule.annotations.description
        if _VALUE.search(text):
            text = _VALUE.sub(INSTEAD[rule.alert], text)
        rows.append(f"| `{rule.alert}` | {rule.wait} | {text} |")
    return "\n".join(["| alert | after | what it means, and what to do |", "|---|---|---|", *rows])


def tables() -> dict[str, str]:
    """Return the tables by the name in the comment that stands before each."""
    return {
        "ours": _metrics(mpbroker_metrics.declared()),
        "partitions": _metrics(partition_metrics.FAMILIES),
        "alerts": _alerts(),
    }


def page() -> str:
    """Return the page with its tables as they should be."""
    text = PAGE.read_text()
    for name, table in tables().items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{table}{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
