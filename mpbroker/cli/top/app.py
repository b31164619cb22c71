"""The terminal application of `mpbroker top`: shows the model's rows, and takes keys."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static

from mpbroker.cli.top.columns import DRAWN, GROUPS, PARTITIONS, PROCESSES, VIEWS, View, arranged
from mpbroker.cli.top.panels import Cards, headline, tabs
from mpbroker.cli.top.table import ROWS_MAX, Table
from mpbroker.cli.top.text import member_text, text_of
from mpbroker.cli.top.watch import BrokerFlags, GroupWatch, Watch
from mpbroker.client.errors import ClientConfigError
from mpbroker.observe.lag import lag_behind
from mpbroker.observe.model import Model, Row
from mpbroker.observe.samples import Groups, Health, Sample
from mpbroker.protocol.printable import printable
from mpbroker.protocol.topic_names import OWN_TOPICS

TALL_LINES: Final = 34
"""A terminal of this height has room for charts of twice the height."""
DARK: Final = "textual-dark"
LIGHT: Final = "textual-light"
_DARK_BACKGROUNDS: Final = frozenset("0123468")
GROUPS_EVERY_S: Final = 2.0
"""Groups are asked for over the network, and a second makes little difference to a lag."""
HELP: Final = """\
1 … 5          the views; also tab, ← and →
↑ ↓ PgUp PgDn  the rows; also Home, End, j, k, g, G
enter          everything about a row
/              only rows with a text, or of a pattern (* ?)
s, S           sort by the next column, or the one before
r              the other way round
i              partitions of internal topics too, or not
p              pause, or resume
t              light or dark
q              quit

Rates are of the time since the last sample, percentiles of
the last ten seconds. PSS counts memory that processes
share once. CPU is in percent of one CPU.
QUEUED, ANSWERS: requests in a processor's queue, answers
that it found in its rings. WAITING: requests that wait for
a commit, for records or for others. RING FULL, MEM FULL:
how often there was no room."""


def theme_of(environ: Mapping[str, str]) -> str:
    """Return the theme for the terminal's background, which some terminals put into COLORFGBG."""
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    is_light = background.isdecimal() and background not in _DARK_BACKGROUNDS
    return LIGHT if is_light else DARK


class TextScreen(ModalScreen[None]):
    """A text that covers the application until a key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark", "dismiss", show=False)]

    def __init__(self, title: str, text: Text) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="paper") as paper:
            paper.border_title = self._title
            paper.border_subtitle = "esc"
            yield Static(self._text)


class TopApp(App[None]):
    """The application of `mpbroker top`. `first` is the first sample, which the caller has taken."""

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "mpbroker top"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"view({number - 1})", show=False) for number in range(1, len(VIEWS) + 1)),
        # These take precedence over the screen's bindings, which would move the focus.
        Binding("tab", "turn(1)", show=False, priority=True),
        Binding("shift+tab", "turn(-1)", show=False, priority=True),
        Binding("slash", "filter", show=False),
        Binding("escape", "no_filter", show=False),
        Binding("s", "sort(1)", show=False),
        Binding("S", "sort(-1)", show=False),
        Binding("r", "reverse", show=False),
        Binding("i", "internal", show=False),
        Binding("p", "pause", show=False),
        Binding("t", "turn_theme", show=False),
        Binding("question_mark", "help", show=False),
        Binding("q,ctrl+c", "quit", show=False),
    ]

    def __init__(
        self,
        watch: Watch,
        wanted: BrokerFlags,
        first: Sample,
        *,
        interval_s: float = 1.0,
        view: View = PROCESSES,
    ) -> None:
        super().__init__()
        self.theme = theme_of(os.environ)
        self.model = Model()
        self.model.add(first)
        self.is_paused = False
        self.hides_internal = True
        self.view = view
        self.wanted_text = ""
        self.sorting: dict[str, tuple[str | None, bool]] = {one.key: (one.sorted_by, False) for one in VIEWS}
        self._watch, self._group_watch = watch, GroupWatch(wanted)
        self._interval_s = interval_s
        self._ended, self._wants_groups = threading.Event(), threading.Event()

    def compose(self) -> ComposeResult:
        yield Static(id="headline")
        yield Static(id="note")
        yield Cards()
        yield Static(id="tabs")
        yield Table()
        yield Static(id="more")
        yield Static(id="keys")
        text = Input(
            id="filter", placeholder="text, or a pattern with * and ?; enter: keep, esc: all", compact=True
        )
        text.display = False
        yield text

    def on_mount(self) -> None:
        self.query_one(Table).focus()
        for work in (self._take_samples, self._ask_for_groups):
            # The program ends without waiting for a broker that does not answer.
            threading.Thread(target=work, name=f"mpbroker top: {work.__name__}", daemon=True).start()
        self._choose(self.view)

    def on_unmount(self) -> None:
        self._ended.set()
        self._wants_groups.set()

    def on_resize(self) -> None:
        self.query_one(Cards).styles.height = 4 if self.size.height < TALL_LINES else 6
        self.call_after_refresh(self._show)

    # ---- samples, by threads

    def _take_samples(self) -> None:
        self.call_later(self._add, None, self._watch.groups_at_rest())
        while not self._ended.wait(self._interval_s):
            sample = self._watch.sample()
            self.call_later(self._add, sample, self._watch.groups_at_rest())

    def _ask_for_groups(self) -> None:
        """Ask the broker for groups while the view of groups is shown, until the application ends."""
        while self._wants_groups.wait() and not self._ended.is_set():
            broker = self.model.sample.broker if self.model.sample is not None else None
            pause_s = self._interval_s
            if broker is not None and broker.health in (Health.RUNNING, Health.NOT_READY):
                try:
                    groups = self._group_watch.groups(broker)
                except ClientConfigError as error:  # of --command-config
                    groups = Groups(time.monotonic_ns(), problem=str(error))
                self.call_later(self._add, None, groups)
                pause_s = max(pause_s, GROUPS_EVERY_S)
            self._ended.wait(pause_s)
        self._group_watch.close()

    def _add(self, sample: Sample | None, groups: Groups | None) -> None:
        if sample is not None:
            self.model.add(sample)
        if groups is not None:
            self.model.add_groups(groups)
        self._show_unless_paused()

    def _show_unless_paused(self) -> None:
        # At the end Textual removes the widgets one by one before the last messages come.
        with suppress(NoMatches):
            if not self.is_paused:
                self._show()

    def _show(self) -> None:
        sample, colours = self.model.sample, self.theme_variables
        assert sample is not None, "the first one was given"
        self.query_one("#headline", Static).update(headline(sample, colours, is_paused=self.is_paused))
        self._show_note(sample)
        self.query_one(Cards).show(self.model, colours)
        self.query_one("#tabs", Static).update(tabs(self.view))
        key, is_reversed = self.sorting[self.view.key]
        found = self.view.rows(self.model)
        if self.view is PARTITIONS and self.hides_internal:
            found = [row for row in found if row["topic"] not in OWN_TOPICS]
        rows = arranged(found, self.view, self.wanted_text, key, is_reversed=is_reversed)
        self.query_one(Table).show(self.view, rows, key, is_reversed=is_reversed)
        more = f"and {len(rows) - ROWS_MAX:,} more: / filters them" if len(rows) > ROWS_MAX else ""
        self.query_one("#more", Static).update(Text(more if rows else self._nothing()))
        self.query_one("#more").display = bool(more or not rows)
        self._show_keys()

    def _show_note(self, sample: Sample) -> None:
        groups = self.model.groups
        problem = groups.problem if groups is not None and self.view is GROUPS else ""
        note = self.query_one("#note", Static)
        text = "; ".join(filter(None, (sample.broker.note, problem)))
        note.display = bool(text)
        note.update(Text(f" {printable(text)}"))
        note.set_class(sample.broker.health in (Health.STOPPED, Health.UNKNOWN, Health.NOT_READY), "bad")

    def _nothing(self) -> str:
        if self.wanted_text:
            return f"nothing has {self.wanted_text!r}; esc shows all"
        assert self.model.sample is not None
        if self.model.sample.counts is None and self.view.key in ("processes", "requests", "memory"):
            return "the broker does not run; 4 shows the partitions in its directories"
        if self.view is GROUPS:
            return "no groups yet" if self.model.groups is not None else "asking the broker …"
        return "nothing yet"

    def _show_keys(self) -> None:
        key, _ = self.sorting[self.view.key]
        sort = next((f"sort: {one.title}" for one in self.view.columns if one.key == key), "sort")
        shown = f"filter: {printable(self.wanted_text)}" if self.wanted_text else "filter"
        pause = "resume" if self.is_paused else "pause"
        theme_key = ("t", "light" if self._is_dark() else "dark")
        # A narrow terminal has no room for the last ones.
        pairs = (
            *(("/", shown), ("s", sort), ("enter", "details"), ("p", pause), ("?", "help"), ("q", "quit")),
            *(("r", "reverse"), ("i", "internal topics"), theme_key),
        )
        text, room = Text(no_wrap=True), self.size.width
        for name, what in pairs:
            if len(text.plain) + len(name) + len(what) + 3 > room:
                break
            text.append(f" {name}", style=f"bold {self.theme_variables['primary']}")
            text.append(f" {what} ", style="dim")
        self.query_one("#keys", Static).update(text)

    def _is_dark(self) -> bool:
        return self.theme == DARK

    # ---- keys

    def action_view(self, number: int) -> None:
        self._choose(VIEWS[number])

    def action_turn(self, by: int) -> None:
        self._choose(VIEWS[(VIEWS.index(self.view) + by) % len(VIEWS)])

    def _choose(self, view: View) -> None:
        self.view = view
        if view is GROUPS:
            self._wants_groups.set()
        else:
            self._wants_groups.clear()
        self._show()

    def action_internal(self) -> None:
        self.hides_internal = not self.hides_internal
        self._show()

    def action_sort(self, by: int) -> None:
        """Sort by another column, `by` places to the right. The place before the first one is "unsorted"."""
        room = self.query_one(Table).size.width
        keys: list[str | None] = [None]
        keys += [
            one.key
            for one in self.view.columns
            if one.title and one.kind not in DRAWN and one.from_columns <= room
        ]
        key, _ = self.sorting[self.view.key]
        at = keys.index(key) if key in keys else 0
        self.sorting[self.view.key] = (keys[(at + by) % len(keys)], False)
        self._show()

    def action_reverse(self) -> None:
        key, is_reversed = self.sorting[self.view.key]
        self.sorting[self.view.key] = (key, not is_reversed)
        self._show()

    def on_data_table_header_selected(self, message: DataTable.HeaderSelected) -> None:
        key, is_reversed = self.sorting[self.view.key]
        column = next(one for one in self.view.columns if one.key == message.column_key.value)
        if column.title and column.kind not in DRAWN:
            self.sorting[self.view.key] = (column.key, key == column.key and not is_reversed)
            self._show()

    def action_filter(self) -> None:
        text = self.query_one("#filter", Input)
        text.value = self.wanted_text
        text.display, self.query_one("#keys").display = True, False
        text.focus()

    def action_no_filter(self) -> None:
        self._end_filter("")

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.display:
            self.wanted_text = event.value
            self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._end_filter(event.value)

    def _end_filter(self, text: str) -> None:
        self.wanted_text = text
        self.query_one("#filter").display, self.query_one("#keys").display = False, True
        self.query_one(Table).focus()
        self._show()

    def action_pause(self) -> None:
        self.is_paused = not self.is_paused
        self._show()

    def action_turn_theme(self) -> None:
        self.theme = LIGHT if self._is_dark() else DARK
        self._show()

    def action_help(self) -> None:
        self.push_screen(TextScreen("mpbroker top", Text(HELP)))

    def on_data_table_row_selected(self, _message: DataTable.RowSelected) -> None:
        row = self.query_one(Table).selected
        if row is not None:
            self.push_screen(TextScreen(self.view.title, self._details(row)))

    def _details(self, row: Row) -> Text:
        """Return all values of a row as text, also the values that have no column on this terminal."""
        kinds = {one.key: one.kind for one in self.view.columns}
        titled = [one.key for one in self.view.columns if one.kind not in DRAWN and one.title]
        pairs = [(key, text_of(row[key], kinds[key])) for key in titled]
        others = [(key, value) for key, value in row.items() if value is not None and key not in kinds]
        pairs += [(key, printable(str(value))) for key, value in others]
        width = max(len(key) for key, _ in pairs)
        text = Text()
        for key, value in pairs:
            text.append(f"{key.ljust(width)}  ", style="dim")
            text.append(f"{value}\n")
        if self.view is GROUPS:
            text.append(f"\n{self._lags(row['group'])}")
            for member in self.model.members_of(row["group"]):
                text.append(f"\n\n{member_text(member)}")
        return text

    def _lags(self, group: str) -> str:
        lines = []
        for topic, partition, offset, end in self.model.committed_of(group):
            lag = "- (nothing is committed)" if offset is None else f"{lag_behind(end, offset):,}"
            at = "-" if offset is None else f"{offset:,}"
            lines.append(f"{topic}-{partition}: {at} of {end:,}, lag {lag}")
        return "\n".join(map(printable, lines))
