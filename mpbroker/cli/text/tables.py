"""The layout of tables for people, without I/O.

The library rich wraps the cells of a table that is too wide for its terminal. If the table is too wide even
then, it becomes a list of its rows, as in the expanded display of psql. Headings are never broken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from io import StringIO

# The least width of a folded column, if its heading is shorter.
FOLDED_MIN = 8
GAP = 2


def heading(name: str) -> str:
    """Return the heading for a JSON key, in the style of Kafka's tools: END-OFFSET for end_offset."""
    return name.upper().replace("_", "-").replace(" ", "-")


def layout(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int], width: int | None
) -> list[str]:
    """Return the lines of a table. `right`: indexes of right-aligned columns. `width`: None for no limit."""
    widths = [max(map(cells_of, column)) for column in zip(headings, *rows, strict=True)]
    gaps = GAP * (len(widths) - 1)
    if width is None or sum(widths) + gaps <= width:
        table = [
            [
                " " * (widths[index] - cells_of(cell)) + cell
                if index in right
                else cell + " " * (widths[index] - cells_of(cell))
                for index, cell in enumerate(row)
            ]
            for row in (headings, *rows)
        ]
        return [(" " * GAP).join(row).rstrip() for row in table]
    least = [
        widths[index] if index in right else min(widths[index], max(cells_of(name), FOLDED_MIN))
        for index, name in enumerate(headings)
    ]
    if sum(least) + gaps > width:
        return _records(headings, rows)
    for _ in range(sum(widths) + gaps - width):
        widest = max(range(len(widths)), key=lambda index: (widths[index] > least[index], widths[index]))
        widths[widest] -= 1
    return _folded(headings, rows, widths, right, width)


def cells_of(text: str) -> int:
    """Return the number of terminal cells that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _folded(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    right: Collection[int],
    width: int,
) -> list[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for index, (name, cells) in enumerate(zip(headings, widths, strict=True)):
        is_right = index in right
        table.add_column(
            name,
            width=cells,
            justify="right" if is_right else "left",
            no_wrap=is_right,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    lines = StringIO()
    Console(file=lines, width=width, color_system=None).print(table)
    return [line.rstrip() for line in lines.getvalue().splitlines()]


def _records(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    width = max(map(cells_of, headings))
    lines = []
    for row in rows:
        pairs = zip(headings, row, strict=True)
        lines += [f"{name}{' ' * (width - cells_of(name))}  {cell}".rstrip() for name, cell in pairs]
        lines.append("")
    return lines[:-1]
