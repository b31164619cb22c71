"""Panels above the table: a line about the broker, its numbers over time, the tabs."""

from __future__ import annotations

from typing import NamedTuple

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from mpbroker.cli.text.sizes import decimal_size
from mpbroker.cli.top.columns import VIEWS, View
from mpbroker.cli.top.text import NOTHING, columns_of, duration, short
from mpbroker.observe.model import Model
from mpbroker.observe.samples import Health, Sample

CARD_CELLS_MIN = 18
CARD_GAP = 2
_HEALTH_COLOURS = {Health.RUNNING: "success", Health.RECOVERING: "warning", Health.SILENT: "warning"}


class Card(NamedTuple):
    """A number over time. `side` is said beside its title, `colour` is a variable of the theme."""

    title: str
    number: str
    side: str
    history: str
    colour: str


def cards(model: Model) -> list[Card]:
    """Return the cards, the most wanted first."""
    seen = model.summary
    p50 = "" if seen.produce_p50_ms is None else f"p50 {short(seen.produce_p50_ms)}"
    records = "" if seen.messages_in_per_s is None else f"{short(seen.messages_in_per_s)} rec/s"
    connections = model.sample.broker.connections if model.sample is not None else None
    return [
        Card("In", _rate(seen.bytes_in_per_s), records, "bytes_in_per_s", "primary"),
        Card("Out", _rate(seen.bytes_out_per_s), "", "bytes_out_per_s", "secondary"),
        Card(
            "Requests",
            NOTHING if seen.requests_per_s is None else f"{short(seen.requests_per_s)}/s",
            "" if connections is None else f"{connections} conn",
            "requests_per_s",
            "accent",
        ),
        Card("Produce", f"p99 {_ms(seen.produce_p99_ms)}", p50, "produce_p99_ms", "latency"),
        Card("CPU", _percent(seen.cpu_percent), "", "cpu_percent", "primary"),
        Card("Memory (PSS)", _bytes(seen.pss_bytes), "", "pss_bytes", "secondary"),
    ]


def _rate(value: float | None) -> str:
    return NOTHING if value is None else f"{decimal_size(value)}/s"


def _bytes(value: float | None) -> str:
    return NOTHING if value is None else decimal_size(value)


def _ms(value: float | None) -> str:
    return NOTHING if value is None else f"{short(value)} ms"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f} %"


class Cards(Widget):
    """The cards beside each other, as many as there is room for."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def render(self) -> Text:
        colours = self.app.theme_variables
        all_of_them = cards(self._model)
        fitting = min(max((self.size.width + CARD_GAP) // (CARD_CELLS_MIN + CARD_GAP), 1), len(all_of_them))
        width = (self.size.width - CARD_GAP * (fitting - 1)) // fitting
        lines = [Text() for _ in range(self.size.height)]
        for number, card in enumerate(all_of_them[:fitting]):
            for line, piece in zip(
                lines, _drawn(card, self._model, width, self.size.height, colours), strict=True
            ):
                line.append(" " * CARD_GAP if number else "")
                line.append_text(piece)
        return Text("\n").join(lines)


def _drawn(card: Card, model: Model, width: int, height: int, colours: dict[str, str]) -> list[Text]:
    """Draw a card of a title, a number, and the values over time below."""
    colour, quiet = colours[card.colour], colours["quiet"]
    title = Text(f"{card.title}{card.side.rjust(width - len(card.title))}", style=quiet)
    number = Text(card.number.ljust(width), style=f"bold {colour}")
    chart = columns_of(list(model.history[card.history]), width, max(height - 2, 1))
    return [title, number, *(Text(line, style=colour) for line in chart)]


class Headline(Widget):
    """The broker in one line: health, who it is, since when, where it listens."""

    def __init__(self) -> None:
        super().__init__()
        self._sample: Sample | None = None
        self._is_paused = False

    def show(self, sample: Sample, *, is_paused: bool) -> None:
        self._sample, self._is_paused = sample, is_paused
        self.refresh()

    def render(self) -> Text:
        colours = self.app.theme_variables
        line = Text(" mpbroker", style=f"bold {colours['primary']}", no_wrap=True, overflow="ellipsis")
        if self._sample is None:
            return line
        broker = self._sample.broker
        colour = colours[_HEALTH_COLOURS.get(broker.health, "error")]
        line.append(f"  ● {broker.health.value}", style=f"bold {colour}")
        if self._is_paused:
            line.append("  PAUSED", style=f"bold {colours['warning']}")
        where = broker.listeners or broker.log_dirs
        about = [
            "" if broker.node_id is None else f"node {broker.node_id}",
            "" if broker.up_s is None else f"up {duration(broker.up_s)}",
            ", ".join(where),
            broker.version,
        ]
        line.append("".join(f"   {one}" for one in about if one), style=colours["quiet"])
        return line


class Tabs(Widget):
    """The views and their keys, in a line."""

    class Chosen(Message):
        def __init__(self, view: View) -> None:
            super().__init__()
            self.view = view

    def __init__(self) -> None:
        super().__init__()
        self.view = VIEWS[0]

    def show(self, view: View) -> None:
        self.view = view
        self.refresh()

    def render(self) -> Text:
        colours = self.app.theme_variables
        is_plain = self.app.console.color_system is None
        line = Text(no_wrap=True, overflow="ellipsis")
        for number, view in enumerate(VIEWS, 1):
            is_shown = view is self.view
            style = (
                f"bold {colours['background']} on {colours['primary']}" if is_shown else colours["foreground"]
            )
            line.append(f" {number} {view.title} ", style="bold reverse" if is_shown and is_plain else style)
            line.append(" ")
        return line

    def on_click(self, event: events.Click) -> None:
        at = 0
        for number, view in enumerate(VIEWS, 1):
            width = len(f" {number} {view.title} ") + 1
            if at <= event.x < at + width:
                self.post_message(self.Chosen(view))
            at += width
