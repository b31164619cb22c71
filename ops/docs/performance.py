"""Writes the tables of docs/PERFORMANCE.md that come from docs/growth.json: `python -m ops.docs.performance`.

A table stands between `<!-- table NAME -->` and `<!-- end -->`. `make bench-growth` calls this when it has
measured, so that these tables say what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ops.bench import growth_file, model
from ops.bench.growth_file import LOADS, Curves

PAGE = Path(__file__).parents[2] / "docs" / "PERFORMANCE.md"
_TABLE = re.compile(r"(<!-- table (?P<name>[\w-]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
HOPS = ("processor", "handler", "log worker")
# What is shown of a small number.
DIGITS = 2
MACHINES = (2, 4, 16, 64)
CONNECTIONS = 4000


class TableError(ValueError):
    """The page names a table that is not known, or one whose curve was not measured."""


def _number(value: float) -> str:
    """Return a number as a table shows it: 1,234, 56, 7.8, 0.09."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{DIGITS}g}" if value >= 0.01 else "0"


def circumstances(curves: Curves) -> list[str]:
    """Return where and when each curve was measured."""
    lines = ["| curve | measured |", "|---|---|"]
    return lines + [f"| {name} | {curve['circumstances']} |" for name, curve in curves.items()]


def hops(curves: Curves) -> list[str]:
    """Return what each hop does for a request: CPU, system calls, wake-ups."""
    lines = [f"| request | | {' | '.join(HOPS)} | all |", f"|---|---|{'---|' * len(HOPS)}---:|"]
    for point in curves["hops"]["points"]:
        cells = [
            f"{_number(point['cpu_us'][kind])} µs, {_number(point['system_calls'][kind])} calls, "
            f"{_number(point['sleeps'][kind])} wake-ups"
            for kind in HOPS
        ]
        load, total = LOADS[int(point["x"])], sum(point["cpu_us"].values())
        lines.append(f"| `{load}` | {point['series']} | {' | '.join(cells)} | {_number(total)} µs |")
    return lines


def costs(curves: Curves) -> list[str]:
    return model.hops(model.fitted(curves["connections"]["points"])["durable"])


def predicted(curves: Curves) -> list[str]:
    curve = curves["connections"]
    return model.comparison(curve["points"], curve["cores"])


def larger(curves: Curves) -> list[str]:
    fitted = model.fitted(curves["connections"]["points"])
    return model.larger(fitted, CONNECTIONS, MACHINES)


TABLES: Mapping[str, Callable[[Curves], Sequence[str]]] = {
    "circumstances": circumstances,
    "hops": hops,
    "costs": costs,
    "predicted": predicted,
    "larger": larger,
}


def page(text: str, curves: Curves) -> str:
    """Return the page with its tables made anew. Raises TableError, ModelError."""

    def table(match: re.Match[str]) -> str:
        try:
            return match[1] + "\n".join(TABLES[match["name"]](curves)) + "\n"
        except KeyError as error:
            raise TableError(f"{PAGE.name}: the table {match['name']} lacks {error}") from error

    return _TABLE.sub(table, text)


def write() -> None:
    PAGE.write_text(page(PAGE.read_text(), growth_file.read()))


if __name__ == "__main__":
    write()
