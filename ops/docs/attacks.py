"""Writes the table of attacks in docs/SECURITY.md from docs/attacks.json: `python -m ops.docs.attacks`.

`make attack-table` measures, and calls this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ops.docs import charts

PAGE = charts.DOCS / "SECURITY.md"
MEASURED = charts.DOCS / "attacks.json"
_TABLE = re.compile(r"(<!-- table attacks -->\n).*?(?=<!-- end -->)", re.DOTALL)


def _size(size: float) -> str:
    """Return bytes as a table shows them."""
    if size < 1000:
        return f"{size} B"
    return (
        f"{size / 1e6:,.0f} MB"
        if size >= 10e6
        else f"{size / 1e6:.1f} MB"
        if size >= 1e5
        else f"{size / 1e3:.1f} KB"
    )


def line(row: Mapping[str, Any]) -> str:
    memory = " → ".join(_size(row[name]) for name in ("before_bytes", "peak_bytes", "after_bytes"))
    wait = f"{row['longest_ms']:,.0f} ms, {row['longest_of']} ({row['quiet_ms']:,.0f} ms)"
    sent, process = _size(row["sent_bytes"]), f"{row['process']}: {memory}"
    shared = " → ".join(_size(row[name]) for name in ("shared_before_bytes", "shared_peak_bytes"))
    return f"| {row['attack']} | {sent} | {row['answer']} | {process} | {shared} | {wait} |"


def table(found: Mapping[str, Any]) -> list[str]:
    return [
        f"Measured on {found['circumstances']}.",
        "",
        "| attack | sent | answered | memory | shared memory | longest wait |",
        "|---|---:|---|---|---|---:|",
        *map(line, found["attacks"]),
    ]


def page(text: str, found: Mapping[str, Any]) -> str:
    """Return the page with its table made anew."""
    return _TABLE.sub(lambda match: match[1] + "\n".join(table(found)) + "\n", text)


def measured() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(MEASURED.read_text())
    return found


def write() -> None:
    PAGE.write_text(page(PAGE.read_text(), measured()))


if __name__ == "__main__":
    write()
