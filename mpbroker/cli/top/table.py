"""The table of `mpbroker top`: shows the columns that fit, and its cursor follows a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from mpbroker.cli.top.columns import Column, Kind, View
from mpbroker.cli.top.text import is_right, text_of
from mpbroker.observe.model import Row

ROWS_MAX: Final = 500
"""The first rows, which are shown: Textual writes all cells, and a broker may have 10,000 partitions."""
WIDE_MIN: Final = 12
_WIDTHS: Final = {Kind.RATE: 6, Kind.BYTES: 7, Kind.BYTE_RATE: 9, Kind.MS: 5, Kind.PERCENT: 5}
_GOOD: Final = frozenset({"running", "serving", "Stable", "waiting", "idle"})
_BAD: Final = frozenset({"down", "Dead"})


class Table(DataTable[Text]):
    """A table of one view. `shown` are the rows in it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "cursor_up", show=False),
        Binding("j", "cursor_down", show=False),
        Binding("space", "page_down", show=False),
        Binding("home,g", "scroll_top", show=False),
        Binding("end,G", "scroll_bottom", show=False),
        # A narrow terminal has fewer columns, so none has to be scrolled to.
        Binding("right,l", "app.turn(1)", show=False),
        Binding("left,h", "app.turn(-1)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(cursor_type="row", cursor_foreground_priority="renderable")
        self.shown: list[Row] = []
        self._view: View | None = None
        self._widths: dict[str, int] = {}
        self._layout: object = None
        self._texts: list[list[str]] = []

    def show(self, view: View, rows: list[Row], sorted_by: str | None, *, is_reversed: bool) -> None:
        """Show the first `ROWS_MAX` rows. The cursor stays on its row; a new view begins at the top."""
        at = self.cursor_row
        if view is not self._view:
            self._view, self._widths, at = view, {}, 0
        elif (row := self.selected) is not None:
            name = self._name_of(row)
            at = next((at for at, one in enumerate(rows) if self._name_of(one) == name), at)
        self.shown = rows[:ROWS_MAX]
        room = self.scrollable_content_region.width
        columns = [one for one in view.columns if one.from_columns <= room]
        texts = [[text_of(row[one.key], one.kind) for one in columns] for row in self.shown]
        titles = [_title(one, sorted_by, is_reversed=is_reversed) for one in columns]
        widths = self._fit(columns, [titles, *texts], room)
        layout = (view.key, self.app.theme, titles, widths, len(texts))
        if layout == self._layout:
            self._update(columns, texts)
        else:
            self._layout = layout
            self.clear(columns=True)
            for one, title, width in zip(columns, titles, widths, strict=True):
                label = Text(title, justify="right" if is_right(one.kind) else "left", no_wrap=True)
                self.add_column(label, width=width, key=one.key)
            for number, line in enumerate(texts):
                pairs = zip(columns, line, strict=True)
                self.add_row(*(self._cell(one, number, text) for one, text in pairs))
        self._texts = texts
        if at != self.cursor_row:
            self.move_cursor(row=at)

    @property
    def selected(self) -> Row | None:
        return self.shown[self.cursor_row] if self.cursor_row < len(self.shown) else None

    def _name_of(self, row: Row) -> tuple[Any, ...]:
        assert self._view is not None
        return tuple(row.get(key) for key in (self._view.columns[0].key, "partition"))

    def _fit(self, columns: Sequence[Column], texts: Sequence[Sequence[str]], room: int) -> list[int]:
        """Return the widths of columns. A width only grows while a view is shown, so that nothing jumps."""
        for number, one in enumerate(columns):
            longest = max(len(line[number]) for line in texts)
            self._widths[one.key] = max(self._widths.get(one.key, _WIDTHS.get(one.kind, 0)), longest)
        taken = sum(self._widths[one.key] for one in columns if not one.is_wide)
        wide = max(room - taken - 2 * self.cell_padding * len(columns), WIDE_MIN)
        return [wide if one.is_wide else self._widths[one.key] for one in columns]

    def _update(self, columns: Sequence[Column], texts: Sequence[Sequence[str]]) -> None:
        """Write the cells whose texts have changed."""
        for number, (line, before) in enumerate(zip(texts, self._texts, strict=True)):
            for one, text, old in zip(columns, line, before, strict=True):
                if text != old:
                    row = self.ordered_rows[number]
                    self.update_cell(row.key, one.key, self._cell(one, number, text))

    def _cell(self, column: Column, number: int, text: str) -> Text:
        value = self.shown[number][column.key]
        colour = self.app.theme_variables[_colour_of(column, value)]
        return Text(
            text,
            style="dim" if value in (None, 0, "") else colour,
            justify="right" if is_right(column.kind) else "left",
            no_wrap=True,
            overflow="ellipsis",
        )


def _title(column: Column, sorted_by: str | None, *, is_reversed: bool) -> str:
    if column.key != sorted_by:
        return column.title
    is_ascending = column.kind in (Kind.TEXT, Kind.STATE) or column.key.endswith("_offset")
    return f"{column.title} {'▲' if is_ascending != is_reversed else '▼'}"


def _colour_of(column: Column, value: Any) -> str:
    """Return the theme's variable for the colour of a value."""
    if column.kind in (Kind.BAR, Kind.TREND):
        return "primary"
    if column.kind is Kind.STATE:
        return "success" if value in _GOOD else "error" if value in _BAD else "warning"
    if column.key in ("errors_per_s", "restarts", "ring_full", "memory_full"):
        return "warning"
    return "foreground"
