"""Makes tables, and fills a page with them, each between `<!-- table NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Made = Mapping[str, Callable[[], Sequence[str]]]
"""Functions that make the lines of each table, by its name. They raise KeyError for what a table lacks."""
WIDTH = 110
_TABLE = re.compile(r"(<!-- table (?P<name>[\w-]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


class TableError(ValueError):
    """The page has no place for a table, or it names a table that is unknown or lacks its data."""


def filled(text: str, page: Path, made: Made) -> str:
    """Return the text of a page with its tables made again. Raises TableError."""
    there = [match["name"] for match in _TABLE.finditer(text)]
    if missing := [name for name in made if name not in there]:
        raise TableError(f"{page.name}: write <!-- table {missing[0]} --> and <!-- end --> where it belongs")

    def table(match: re.Match[str]) -> str:
        try:
            return match[1] + "\n".join(made[match["name"]]()) + "\n"
        except KeyError as error:
            raise TableError(f"{page.name}: the table {match['name']} lacks {error}") from error

    return _TABLE.sub(table, text)


def number(value: float) -> str:
    """Return a number as a table shows it: 12,345, 67, 8.9, 0.12."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def head(*columns: str) -> list[str]:
    """Return the heading of a table whose first column is text and whose others are numbers."""
    return [row(*columns), "|---|" + "---:|" * (len(columns) - 1)]


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH)
