"""Panels above the table: a line about the broker, its numbers over time, the tabs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Sparkline, Static

from mpbroker.cli.text.sizes import decimal_size
from mpbroker.cli.top.columns import VIEWS, View
from mpbroker.cli.top.text import NOTHING, duration, short
from mpbroker.observe.model import Model
from mpbroker.observe.samples import Health, Sample

CARD_CELLS_MIN: Final = 20
_HEALTH_COLOURS: Final = {Health.RUNNING: "success", Health.RECOVERING: "warning", Health.SILENT: "warning"}


class Number(NamedTuple):
    """A number on a card: its title, its field of `Summary`, its format, and the text after the title."""

    title: str
    name: str
    text: Callable[[float], str]
    side: Callable[[Model], str] = lambda _model: ""


def _latency(model: Model) -> str:
    value = model.summary.produce_p50_ms
    return "" if value is None else f"p50 {short(value)}"


def _records(model: Model) -> str:
    value = model.summary.messages_in_per_s
    return "" if value is None else f"{short(value)} rec/s"


def _connections(model: Model) -> str:
    count = model.sample.broker.connections if model.sample is not None else None
    return "" if count is None else f"{count} conn"


NUMBERS: Final = (
    Number("In", "bytes_in_per_s", lambda one: f"{decimal_size(one)}/s", _records),
    Number("Out", "bytes_out_per_s", lambda one: f"{decimal_size(one)}/s"),
    Number("Requests", "requests_per_s", lambda one: f"{short(one)}/s", _connections),
    Number("Produce", "produce_p99_ms", lambda one: f"p99 {short(one)} ms", _latency),
    Number("CPU", "cpu_percent", lambda one: f"{one:.0f} %"),
    Number("Memory (PSS)", "pss_bytes", decimal_size),
)
"""The most important first: a narrow terminal has no room for the last ones."""


class Card(Vertical):
    """A number and its values over time."""

    def __init__(self, number: Number) -> None:
        super().__init__()
        self._number = number

    def compose(self) -> ComposeResult:
        yield Static()
        yield Sparkline()

    def show(self, model: Model, colours: Mapping[str, str]) -> None:
        width, one = self.size.width, self._number
        value = getattr(model.summary, one.name)
        title = f"{one.title}{one.side(model).rjust(width - len(one.title))}\n"
        number = NOTHING if value is None else one.text(value)
        text = Text.assemble((title, "dim"), (number, f"bold {colours['primary']}"))
        self.query_one(Static).update(text)
        # One value a cell, the newest at the right. A 0 at the left makes 0 the lowest line.
        values = list(model.history[one.name])[1 - width :] if width > 1 else []
        self.query_one(Sparkline).data = [0.0] * (width - len(values)) + values


class Cards(Horizontal):
    """The row of cards. It shows as many cards as its width has room for."""

    def compose(self) -> ComposeResult:
        yield from map(Card, NUMBERS)

    def on_resize(self) -> None:
        for index, card in enumerate(self.query(Card)):
            card.display = index == 0 or (index + 1) * CARD_CELLS_MIN <= self.size.width + 2

    def show(self, model: Model, colours: Mapping[str, str]) -> None:
        for card in self.query(Card):
            card.show(model, colours)


def headline(sample: Sample, colours: Mapping[str, str], *, is_paused: bool) -> Text:
    """Return one line about the broker: health, node, uptime, listeners, version."""
    broker = sample.broker
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(" mpbroker", style=f"bold {colours['primary']}")
    colour = colours[_HEALTH_COLOURS.get(broker.health, "error")]
    line.append(f"  ● {broker.health.value}", style=f"bold {colour}")
    if is_paused:
        line.append("  PAUSED", style=f"bold {colours['warning']}")
    about = [
        "" if broker.node_id is None else f"node {broker.node_id}",
        "" if broker.up_s is None else f"up {duration(broker.up_s)}",
        ", ".join(broker.listeners or broker.log_dirs),
        broker.version,
    ]
    line.append("".join(f"   {one}" for one in about if one), style="dim")
    return line


def tabs(shown: View, views: Sequence[View] = VIEWS) -> str:
    """Return a line of markup with all views and their keys. A click on a view shows it."""
    return " ".join(
        f"[@click=app.view({number})]{'[reverse b]' if view is shown else ''} {number + 1} {view.title} "
        f"{'[/]' if view is shown else ''}[/]"
        for number, view in enumerate(views)
    )
