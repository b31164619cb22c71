"""A table that draws only the rows that are seen: a broker may have ten thousand partitions."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from mpbroker.cli.top.columns import Column, Kind, View
from mpbroker.cli.top.text import is_right, text_of
from mpbroker.observe.model import Row

GAP: Final = "  "
WIDE_MIN: Final = 12
HEADER_LINES: Final = 1
_WIDTHS: Final = {Kind.RATE: 6, Kind.BYTES: 7, Kind.BYTE_RATE: 9, Kind.MS: 5, Kind.PERCENT: 5}
_GOOD: Final = frozenset({"running", "serving", "Stable", "waiting", "idle"})
_BAD: Final = frozenset({"down", "Dead"})


class Table(ScrollView, can_focus=True):
    """Rows of one view, with a cursor that stays on its row wherever the row goes."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *("table--header", "table--sorted", "table--cursor", "table--good", "table--warning"),
        *("table--bad", "table--drawn", "table--quiet", "table--name"),
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "move(-1000000000)", show=False),
        Binding("end,G", "move(1000000000)", show=False),
        Binding("enter", "open", show=False),
        # Columns are left out rather than scrolled to.
        Binding("right,l", "app.turn(1)", show=False),
        Binding("left,h", "app.turn(-1)", show=False),
    ]

    class Opened(Message):
        """Somebody wants to see everything about a row."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    class HeaderClicked(Message):
        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.nothing = ""
        self._view: View | None = None
        self._sorted_by: str | None = None
        self._is_reversed = False
        self._cursor = 0
        self._widths: dict[str, int] = {}

    def show(
        self, view: View, rows: list[Row], sorted_by: str | None, *, is_reversed: bool, nothing: str
    ) -> None:
        """Show these rows; `nothing` stands there if there are none."""
        if view is not self._view:
            self._view, self._cursor, self._widths = view, 0, {}
            self.scroll_to(y=0, animate=False)
        else:
            self._keep_cursor(rows)
        self.rows, self._sorted_by, self._is_reversed, self.nothing = rows, sorted_by, is_reversed, nothing
        self._cursor = min(self._cursor, max(len(rows) - 1, 0))
        self.virtual_size = Size(self.size.width, len(rows) + HEADER_LINES)
        self.refresh()

    @property
    def selected(self) -> Row | None:
        return self.rows[self._cursor] if self._cursor < len(self.rows) else None

    # ---- keys and clicks

    def action_move(self, by: int) -> None:
        self._cursor = min(max(self._cursor + by, 0), max(len(self.rows) - 1, 0))
        top, lines = int(self.scroll_offset.y), self.size.height - HEADER_LINES
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + lines:
            self.scroll_to(y=self._cursor - lines + 1, animate=False)
        self.refresh()

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(self.size.height - HEADER_LINES - 1, 1))

    def action_open(self) -> None:
        if self.selected is not None:
            self.post_message(self.Opened(self.selected))

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            at = 0
            for column, width in self._layout():
                if at <= event.x < at + width + len(GAP):
                    self.post_message(self.HeaderClicked(column.key))
                at += width + len(GAP)
            return
        row = event.y - HEADER_LINES + int(self.scroll_offset.y)
        if row < len(self.rows):
            self._cursor = row
            self.refresh()

    def _keep_cursor(self, rows: list[Row]) -> None:
        if self.selected is None or self._view is None:
            return
        name = self._name_of(self.selected)
        found = next((at for at, row in enumerate(rows) if self._name_of(row) == name), None)
        if found is not None and found != self._cursor:
            offset = self._cursor - int(self.scroll_offset.y)
            self._cursor = found
            if self._cursor >= self.size.height - HEADER_LINES:
                self.scroll_to(y=max(found - offset, 0), animate=False)

    def _name_of(self, row: Row) -> tuple[Any, ...]:
        assert self._view is not None
        return tuple(row.get(key) for key in (self._view.columns[0].key, "partition"))

    # ---- drawing

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        if self._view is None:
            return Strip.blank(self.size.width, base)
        layout = self._layout()
        if y == 0:
            return self._line(self._header(layout), self.get_component_rich_style("table--header"))
        at = y - HEADER_LINES + int(self.scroll_offset.y)
        if not self.rows and y == HEADER_LINES + 1:
            quiet = self.get_component_rich_style("table--quiet")
            return self._line([Segment(f" {self.nothing}", quiet)], base)
        if at >= len(self.rows):
            return Strip.blank(self.size.width, base)
        is_cursor = at == self._cursor and self.has_focus
        style = self.get_component_rich_style("table--cursor") if is_cursor else base
        return self._line(self._cells(self.rows[at], layout, style), style)

    def _line(self, segments: list[Segment], style: Style) -> Strip:
        return Strip(segments).extend_cell_length(self.size.width, style).crop(0, self.size.width)

    def _layout(self) -> list[tuple[Column, int]]:
        """Return the columns that fit, and their widths.

        Widths only grow while a view is shown: nothing jumps.
        """
        assert self._view is not None
        room = self.scrollable_content_region.width
        shown = [column for column in self._view.columns if column.from_columns <= room]
        top = int(self.scroll_offset.y)
        visible = self.rows[top : top + self.size.height]
        for column in shown:
            longest = max((len(text_of(row[column.key], column.kind)) for row in visible), default=0)
            least = max(len(column.title) + 2 * bool(column.title), _WIDTHS.get(column.kind, 0))
            self._widths[column.key] = max(self._widths.get(column.key, 0), longest, least)
        taken = sum(self._widths[one.key] for one in shown if not one.is_wide) + len(GAP) * (len(shown) - 1)
        left = max(room - taken, WIDE_MIN)
        return [(one, left if one.is_wide else self._widths[one.key]) for one in shown]

    def _header(self, layout: list[tuple[Column, int]]) -> list[Segment]:
        segments = []
        for number, (column, width) in enumerate(layout):
            is_sorted = column.key == self._sorted_by
            name = "table--sorted" if is_sorted else "table--header"
            arrow = ("▲" if self._points_up(column) else "▼") if is_sorted else ""
            title = f"{column.title} {arrow}".rstrip()
            segments.append(Segment(_fitted(title, width, right=is_right(column.kind)), self._style(name)))
            if number < len(layout) - 1:
                segments.append(Segment(GAP, self._style("table--header")))
        return segments

    def _points_up(self, column: Column) -> bool:
        return (column.kind in (Kind.TEXT, Kind.STATE) or column.key.endswith("_offset")) != self._is_reversed

    def _cells(self, row: Row, layout: list[tuple[Column, int]], line: Style) -> list[Segment]:
        segments = []
        for number, (column, width) in enumerate(layout):
            value = row[column.key]
            text = _fitted(text_of(value, column.kind), width, right=is_right(column.kind))
            name = _look_of(column, value)
            style = line + Style(color=self._style(name).color) if name else line
            segments.append(Segment(text, style))
            if number < len(layout) - 1:
                segments.append(Segment(GAP, line))
        return segments

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(name)


def _fitted(text: str, width: int, *, right: bool) -> str:
    if len(text) > width:
        return text[: max(width - 1, 0)] + "…"
    return text.rjust(width) if right else text.ljust(width)


def _look_of(column: Column, value: Any) -> str:
    """Return the component class whose colour a cell has; "" for the text's own."""
    if value is None or value == 0 or value == "":
        return "table--quiet"
    if column.kind in (Kind.BAR, Kind.TREND):
        return "table--drawn"
    if column.kind is Kind.STATE:
        return "table--good" if value in _GOOD else "table--bad" if value in _BAD else "table--warning"
    if column.key in ("errors_per_s", "restarts", "ring_full", "memory_full"):
        return "table--warning"
    return "table--name" if column.is_wide else ""
