"""Tables for people and JSON for programs.

Names in the output may be chosen by clients, so control characters are escaped.
"""

import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mpbroker.cli.text.tables import heading, layout
from mpbroker.protocol.printable import counted as counted
from mpbroker.protocol.printable import printable

# Headings on a terminal.
BOLD = ("\x1b[1m", "\x1b[0m")

# JSON escapes those below a space; terminals obey these too.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def print_json(value: Any) -> None:
    """Print a value as indented JSON. Its keys are part of a command's stable interface."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    sys.stdout.write(_UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")


def log_offsets(start: int, end: int) -> str:
    """Return text that names both offsets, since a range would not show whether its end is included."""
    return f"log start offset {start:,}, log end offset {end:,}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Print a table. On a terminal it is fitted to the width; piped output is never folded."""
    is_terminal = sys.stdout.isatty()
    table = [list(row) for row in rows]
    right = {index for index, column in enumerate(zip(*table, strict=True)) if _is_numeric(column)}
    if title is not None:
        sys.stdout.write(f"{printable(title)}\n")
    lines = layout(
        list(map(heading, columns)),
        [list(map(_text, row)) for row in table],
        right=right,
        width=shutil.get_terminal_size().columns if is_terminal else None,
    )
    if not any(columns):
        del lines[0]
    elif is_terminal and columns and lines[0].split() == list(map(heading, columns)):
        lines[0] = lines[0].join(BOLD)
    sys.stdout.writelines(f"{line}\n" for line in lines)


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, nothing: str) -> None:
    """Print rows that have the same keys, as JSON or as a table; `nothing` in place of an empty table."""
    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        print(nothing)


def say(text: str, document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the result of a command: `text` for people, or `document` as JSON."""
    if as_json:
        print_json(document)
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in text.splitlines())


def say_each(done: Iterable[tuple[str, Mapping[str, Any]]], *, as_json: bool) -> None:
    """Print results, pairs of text and document: each text as a line, or all documents as one JSON list."""
    pairs = list(done)
    if as_json:
        print_json([document for _, document in pairs])
    else:
        sys.stdout.writelines(f"{printable(text)}\n" for text, _ in pairs)


def print_groups(groups: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Print each group's name on a line of its own, and the group's members on the lines below."""
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


def _is_numeric(column: Iterable[Any]) -> bool:
    """Return whether a column has numbers, and no other values except None."""
    cells = [cell for cell in column if cell is not None]
    return bool(cells) and all(
        isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in cells
    )


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
