"""The layout of tables for people, without I/O.

A table that is too wide for its terminal gets narrower gaps, then its longest texts are folded. One that is
still too wide becomes a list of its rows, as in the expanded display of psql. Headings are never broken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

# The least that a column is folded to, if its heading is shorter.
FOLDED_MIN = 8
GAPS = (2, 1)


def heading(name: str) -> str:
    """Return a key of JSON as Kafka's tools write headings: end_offset is END-OFFSET."""
    return name.upper().replace("_", "-").replace(" ", "-")


def layout(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int],
    width: int | None,
    emphasis: tuple[str, str] = ("", ""),
) -> list[str]:
    """Return the lines of a table, the headings first. `right`: columns that stand to the right.

    `width`: that of the terminal in characters, None for no limit. `emphasis` stands around headings.
    """
    natural = [max(map(cells_of, column)) for column in zip(headings, *rows, strict=True)]
    for gap in GAPS:
        if width is None or sum(natural) + gap * (len(natural) - 1) <= width:
            return _emphasised(_lines(headings, rows, natural, right, gap), emphasis)
    assert width is not None
    folded = _fold(natural, headings, right, width - GAPS[-1] * (len(natural) - 1))
    if folded is None:
        return _records(headings, rows, emphasis)
    return _emphasised(_lines(headings, rows, folded, right, GAPS[-1]), emphasis)


def cells_of(text: str) -> int:
    """Return the number of a terminal's cells that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fold(text: str, width: int) -> list[str]:
    """Cut a text into pieces that take at most `width` cells each; at least one, which may be empty."""
    pieces, piece, taken = [], "", 0
    for character in text:
        cells = cells_of(character)
        if piece and taken + cells > width:
            pieces.append(piece)
            piece, taken = "", 0
        piece += character
        taken += cells
    return [*pieces, piece]


def _fold(
    natural: Sequence[int], headings: Sequence[str], right: Collection[int], width: int
) -> list[int] | None:
    """Return widths with the widest texts folded so that all fit, None if that is not enough."""
    least = [
        natural[index] if index in right else min(natural[index], max(cells_of(name), FOLDED_MIN))
        for index, name in enumerate(headings)
    ]
    if sum(least) > width:
        return None
    widths = list(natural)
    for _ in range(sum(natural) - width):
        widest = max(range(len(widths)), key=lambda index: (widths[index] > least[index], widths[index]))
        widths[widest] -= 1
    return widths


def _lines(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    right: Collection[int],
    gap: int,
) -> list[str]:
    lines = []
    for row in (headings, *rows):
        folded = [fold(cell, width) for cell, width in zip(row, widths, strict=True)]
        for pieces in zip_longest(*folded, fillvalue=""):
            padded = [
                " " * (widths[index] - cells_of(piece)) + piece
                if index in right
                else piece + " " * (widths[index] - cells_of(piece))
                for index, piece in enumerate(pieces)
            ]
            lines.append((" " * gap).join(padded).rstrip())
    return lines


def _emphasised(lines: list[str], emphasis: tuple[str, str]) -> list[str]:
    return [lines[0].join(emphasis), *lines[1:]]


def _records(headings: Sequence[str], rows: Sequence[Sequence[str]], emphasis: tuple[str, str]) -> list[str]:
    width = max(map(cells_of, headings))
    blocks = [
        [
            f"{name.join(emphasis)}{' ' * (width - cells_of(name))}  {cell}".rstrip()
            for name, cell in zip(headings, row, strict=True)
        ]
        for row in rows
    ]
    lines = [line for block in blocks for line in (*block, "")]
    return lines[:-1]
