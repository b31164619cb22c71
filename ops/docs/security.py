"""Writes the tables of docs/SECURITY.md that are measured: `python -m ops.docs.security`.

docs/attacks.json comes from `python -m tests.security.attack_table --write`, docs/security.json from
`make bench-security ARGS=--write`; both commands also write the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ops.bench.brokers import ROOT
from ops.docs.tables import filled

PAGE = ROOT / "docs" / "SECURITY.md"
COSTS = ROOT / "docs" / "security.json"
ATTACKS = COSTS.with_name("attacks.json")

# Our broker in COSTS, and its form that shows the noise: the same as plain.
OUR_NAME, AGAIN = "mpbroker", "plain again"

Measured = Mapping[str, Any]


# ---- attacks


def _size(size: float) -> str:
    """Return a size in bytes as text for a table, such as `1.5 KB`."""
    if size < 1e3:
        return f"{size} B"
    if size < 1e5:
        return f"{size / 1e3:.1f} KB"
    if size < 10e6:
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e6:,.0f} MB"


def attack(row: Mapping[str, Any]) -> str:
    memory = f"{row['process']} {_size(row['peak_bytes'])}"
    wait = f"{row['longest_ms']:,.0f} ms"
    return f"| {row['attack']} | {row['answer']} | {memory} | {wait} |"


def attacks(found: Measured) -> list[str]:
    return [
        f"Measured on {found['circumstances']}.",
        "",
        "| attack | answered | memory at the peak | longest wait |",
        "|---|---|---|---:|",
        *map(attack, found["attacks"]),
    ]


# ---- costs


def _head(words: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(words)} |", "|---" + "|---:" * (len(words) - 1) + "|"]


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _broker(name: str, rows: Sequence[Measured]) -> list[str]:
    """Return a broker's tables of rates and of CPU: a row per load, a column per security setup."""
    loads = list(dict.fromkeys(row["load"] for row in rows))
    plain, *forms = dict.fromkeys(row["form"] for row in rows)
    of = {(row["load"], row["form"]): row for row in rows}
    rates, cpu = _head([name, f"{plain}, requests/s", *forms]), _head([name, f"{plain}, µs", *forms])
    for load in loads:
        first, others = of[load, plain], [of[load, form] for form in forms]
        figures = [f"{first['requests_per_s']:,.0f}", *(_ratio(row["rate_ratio"]) for row in others)]
        rates.append(f"| `{load}` | {' | '.join(figures)} |")
        figures = [f"{first['broker_cpu_us']:,.1f}", *(f"{row['cpu_ratio']:.2f}" for row in others)]
        cpu.append(f"| `{load}` | {' | '.join(figures)} |")
    return ["", "Requests a second:", "", *rates, "", "CPU of the broker for a request:", "", *cpu]


def _noise(rows: Sequence[Measured]) -> float:
    """Return the largest difference between the rates of two equal brokers, as a share of the first rate."""
    return max(abs(float(row["rate_ratio"]) - 1) for row in rows if row["form"] == AGAIN)


def costs(found: Measured) -> list[str]:
    noise = f"The two plain brokers differed by {100 * _noise(found['brokers'][OUR_NAME]):.1f} % at most."
    lines = [f"Measured on {found['circumstances']}. {noise}"]
    return lines + [line for name, rows in found["brokers"].items() for line in _broker(name, rows)]


# ---- the page

TABLES: Mapping[str, Callable[[Measured], Sequence[str]]] = {"attacks": attacks, "costs": costs}


def _made(name: str, measured: Mapping[str, Measured]) -> Sequence[str]:
    return TABLES[name](measured[name])


def page(text: str, measured: Mapping[str, Measured]) -> str:
    """Return the page with its tables made again. Raises TableError."""
    return filled(text, PAGE, {name: partial(_made, name, measured) for name in TABLES})


def measured() -> Mapping[str, Measured]:
    return {"attacks": json.loads(ATTACKS.read_text()), "costs": json.loads(COSTS.read_text())}


def write() -> None:
    PAGE.write_text(page(PAGE.read_text(), measured()))


if __name__ == "__main__":
    write()
