"""Tables for people and JSON for programs. Rich colours tables on a terminal only.

Names in them are what clients have chosen: they reach a terminal without control characters.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mpbroker.protocol.printable import printable

# JSON escapes those below a space; terminals obey these too.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def print_json(value: Any) -> None:
    """Print one document, indented. Its keys are as stable as the command."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    sys.stdout.write(_UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")


def counted(count: int, one: str, many: str = "") -> str:
    """Return the number with the singular or plural that goes with it."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def log_offsets(start: int, end: int) -> str:
    """Name both ends in Kafka's words.

    A range leaves open whether it includes its end, and a log may be empty.
    """
    return f"log start offset {start:,}, log end offset {end:,}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Print a table with numbers to the right. Piped output is never cut at a terminal's width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    is_terminal = console.is_terminal
    if not is_terminal:
        console = Console(width=10_000)
    texts = [list(row) for row in rows]
    table = Table(
        title=None if title is None else Text(printable(title)),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        show_header=any(columns),
    )
    for index, column in enumerate(columns):
        numeric = bool(texts) and all(isinstance(row[index], (int, float)) for row in texts)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in texts:
        table.add_row(*(Text(_text(cell)) for cell in row))
    if is_terminal:
        console.print(table)
        return
    with console.capture() as printed:
        console.print(table)
    # Rich pads every cell to its column's width, also the last one of a line.
    sys.stdout.writelines(line.rstrip() + "\n" for line in printed.get().splitlines())


def print_groups(groups: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Print each name on a line of its own and its members below: long names fit any terminal."""
    for name, members in groups:
        width = max(map(len, members), default=0)
        sys.stdout.write(f"{printable(name)}\n")
        sys.stdout.writelines(f"  {key:<{width}}  {_text(value)}\n" for key, value in members.items())


def print_document(document: Mapping[str, Any]) -> None:
    """Print any JSON object: plain members as a list, lists of objects as one table each."""
    plain = [(name, value) for name, value in document.items() if not _is_table(value)]
    if plain:
        print_table(["", ""], plain)
    for name, rows in document.items():
        if _is_table(rows):
            columns = list(dict.fromkeys(column for row in rows for column in row))
            print()
            print_table(columns, [[row.get(column) for column in columns] for row in rows], title=name)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.1f}"
    if isinstance(cell, (list, tuple)):
        return ", ".join(_text(part) for part in cell)
    if isinstance(cell, dict):
        return ", ".join(f"{printable(str(name))}={_text(part)}" for name, part in cell.items())
    return printable(str(cell))
