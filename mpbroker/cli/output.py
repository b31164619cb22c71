"""Tables for people and JSON for programs. Colours appear on a terminal only; Rich sees to that."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec


def print_json(value: Any) -> None:
    """One document, indented; keys are as stable as the command."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def counted(count: int, one: str, many: str = "") -> str:
    """With the word that goes with so many."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def log_offsets(start: int, end: int) -> str:
    """By Kafka's names: a range would leave open whether its last offset is there, and a log may be empty."""
    return f"log start offset {start:,}, log end offset {end:,}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Numbers to the right. Piped output is never cut at a terminal's width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    is_terminal = console.is_terminal
    if not is_terminal:
        console = Console(width=10_000)
    texts = [list(row) for row in rows]
    table = Table(
        title=title,
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
        table.add_row(*(_text(cell) for cell in row))
    if is_terminal:
        console.print(table)
        return
    with console.capture() as printed:
        console.print(table)
    # A cell is as wide as its column, also the last one of a line.
    sys.stdout.writelines(line.rstrip() + "\n" for line in printed.get().splitlines())


def print_groups(groups: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Each name on a line of its own, what belongs to it below: names of any length fit any terminal."""
    for name, members in groups:
        width = max(map(len, members), default=0)
        sys.stdout.write(f"{name}\n")
        sys.stdout.writelines(f"  {key:<{width}}  {_text(value)}\n" for key, value in members.items())


def print_document(document: Mapping[str, Any]) -> None:
    """Any JSON object: plain members as a list, lists of objects as one table each."""
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
        return ", ".join(f"{name}={_text(part)}" for name, part in cell.items())
    return str(cell)
