"""Writes the tables of docs/MONITORING.md from what the code declares: `python -m ops.docs.monitoring`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from mpbroker.exporter import mpbroker_metrics, partition_metrics
from mpbroker.exporter.exposition import Family

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "MONITORING.md"
RULES = ROOT / "ops" / "prometheus" / "mpbroker.rules.yml"
_ALERT = re.compile(
    r"- alert: (?P<name>\w+)\n +expr: (?P<expr>.+)\n(?: +for: (?P<wait>\w+)\n)?.*\n +annotations:\n"
    r" +summary: .*\n +description: \"(?P<text>.*)\"\n"
)


def _metrics(families: Iterable[Family]) -> str:
    rows = [f"| `{one.name}` | {one.type} | {one.help} |" for one in families]
    return "\n".join(["| metric | type | what it says |", "|---|---|---|", *rows])


def _alerts() -> str:
    rows = []
    for found in _ALERT.finditer(RULES.read_text()):
        text = found["text"].replace('\\"', '"').replace('{{ $value | printf "%.0f" }}', "More than three")
        rows.append(f"| `{found['name']}` | {found['wait'] or 'at once'} | {text} |")
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
