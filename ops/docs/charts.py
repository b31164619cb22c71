"""Draws docs/growth-*.svg from docs/growth.json: `python -m ops.docs.charts`.

`make bench-growth` writes the measurements; this module says how they look. A picture has three panels over
one horizontal axis: what a request costs by kind of process, how many there are a second, how long they take.
The colours follow the reader's light or dark mode, on a ground of the picture's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from ops.bench import growth
from ops.bench.growth import GROWTH, Point
from ops.bench.hops import KINDS

DOCS = GROWTH.parent

WIDTH, HEIGHT = 1000, 330
PANEL_WIDTH, PANEL_HEIGHT, PANEL_TOP = 262, 190, 66
LEFTS = (58, 392, 718)
GRID = 4
COLUMN = 0.62
CHARACTER = 6.3
# Room for the number above the highest column.
ABOVE = 1.08
# The part of a column that can be seen.
VISIBLE = 0.02
# The series whose columns are shown.
COLUMNS = "durable"

# Selector, property, light and dark.
COLOURS = (
    (".ground", "fill", "#ffffff", "#0d1117"),
    (".ground", "stroke", "#d0d7de", "#30363d"),
    ("text", "fill", "#1f2328", "#e6edf3"),
    (".small", "fill", "#57606a", "#9da7b3"),
    (".grid", "stroke", "#d8dee4", "#21262d"),
    (".axis", "stroke", "#8c959f", "#6e7681"),
    (".k0", "fill", "#218bff", "#388bfd"),
    (".k1", "fill", "#2da44e", "#3fb950"),
    (".k2", "fill", "#e16f24", "#f0883e"),
    (".k3", "fill", "#8250df", "#a371f7"),
    (".k4", "fill", "#8c959f", "#6e7681"),
    (".s0", "stroke", "#0969da", "#58a6ff"),
    (".s1", "stroke", "#bc4c00", "#f0883e"),
    (".d0", "fill", "#0969da", "#58a6ff"),
    (".d1", "fill", "#bc4c00", "#f0883e"),
)
STYLE = """\
text { font-family: -apple-system, "Segoe UI", "Helvetica Neue", Helvetica, Arial, "DejaVu Sans", sans-serif }
.title { font-size: 15px; font-weight: 600 }
.head { font-size: 12.5px; font-weight: 600 }
.small { font-size: 11.5px }
.line { fill: none; stroke-width: 2; stroke-linejoin: round }
.faint { stroke-dasharray: 3 4 }
"""


class Chart(NamedTuple):
    """A picture: the curve's name in the JSON, its title, its axis, the series that are drawn."""

    curve: str
    title: str
    axis: str
    lines: tuple[str, ...] = ("durable", "os")


CHARTS = (
    Chart("connections", "Connections, all of them busy", "connections"),
    Chart("idle", "One busy connection among idle ones", "connections"),
    Chart("partitions", "Partitions that 64 connections write to", "partitions"),
    Chart("groups", "Groups whose offsets 64 connections commit", "groups", ("durable",)),
    Chart("log-size", "Size of the log that 64 connections write to", "GB", ("durable",)),
    Chart("processors", "Processors", "processes"),
    Chart("handlers", "Handlers", "processes"),
    Chart("log-workers", "Log workers", "processes"),
)


def short(value: float) -> str:
    """Return a number as an axis shows it: 0, 0.5, 20, 1.5k, 10k, 2M."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.4g}M"
    if value >= 1000:
        return f"{value / 1000:.4g}k"
    return f"{value:.3g}"


def steps(largest: float) -> list[float]:
    """Return the marks of a linear axis from 0 on: one, two or five times a power of ten apart."""
    rough = largest / GRID
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [number * step for number in range(math.ceil(largest / step - 1e-9) + 1)]


def decades(smallest: float, largest: float) -> list[float]:
    """Return the powers of ten from below the smallest to above the largest value."""
    low, high = math.floor(math.log10(smallest)), math.ceil(math.log10(largest))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


@dataclass(frozen=True)
class Panel:
    """A place in the picture with its vertical axis. `marks`: lowest first; places on a logarithmic axis
    are those of the logarithms.
    """

    left: int
    marks: Sequence[float]
    logarithmic: bool = False

    def height(self, value: float) -> float:
        low, high = self.marks[0], self.marks[-1]
        if self.logarithmic:
            share = math.log10(max(value, low) / low) / math.log10(high / low)
        else:
            share = value / high
        return PANEL_TOP + PANEL_HEIGHT * (1 - share)

    def frame(self, head: str, places: Sequence[str]) -> Iterator[str]:
        """Yield the grid, the marks and the names of the places on the horizontal axis."""
        yield _text("head", self.left, PANEL_TOP - 12, head, "start")
        for mark in self.marks:
            y = self.height(mark)
            kind = "axis" if mark == self.marks[0] else "grid"
            yield f'<path class="{kind}" d="M{self.left} {y:.1f} h{PANEL_WIDTH}"/>'
            yield _text("small", self.left - 6, y + 4, short(mark), "end")
        for number, name in enumerate(places):
            yield _text("small", self.place(number, len(places)), PANEL_TOP + PANEL_HEIGHT + 17, name)

    def place(self, number: int, places: int) -> float:
        return self.left + PANEL_WIDTH * (number + 0.5) / places

    def line(self, kind: str, dot: str, values: Sequence[tuple[int, float]], places: int) -> Iterator[str]:
        points = [(self.place(number, places), self.height(value)) for number, value in values]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        yield f'<path class="line {kind}" d="M{path}"/>'
        for x, y in points:
            yield f'<circle class="{dot}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'


def _text(kind: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    shown = escape(text, quote=False)
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{shown}</text>'


def _cost(points: Sequence[Point], places: Sequence[float], names: Sequence[str]) -> Iterator[str]:
    """Yield the columns: microseconds of CPU for a request, kind above kind."""
    most = max(sum(point["cpu_us"][kind] for kind in KINDS) for point in points)
    panel = Panel(LEFTS[0], steps(most * ABOVE))
    yield from panel.frame("CPU of a durable request, µs", names)
    width = PANEL_WIDTH / len(places) * COLUMN
    for point in points:
        x, below = panel.place(places.index(point["x"]), len(places)) - width / 2, 0.0
        for number, kind in enumerate(KINDS):
            above = below + point["cpu_us"][kind]
            top, bottom = panel.height(above), panel.height(below)
            if bottom - top >= 0.1:
                yield (
                    f'<rect class="k{number}" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" '
                    f'height="{bottom - top:.1f}"/>'
                )
            below = above
        yield _text("small", x + width / 2, panel.height(below) - 5, short(below))


def _lines(
    panel: Panel,
    head: str,
    series: Sequence[tuple[str, str, Sequence[Point]]],
    places: Sequence[float],
    names: Sequence[str],
    field: Sequence[str],
) -> Iterator[str]:
    yield from panel.frame(head, names)
    for fieldname, faint in zip(field, ("", " faint"), strict=False):
        for kind, dot, points in series:
            values = [(places.index(point["x"]), point[fieldname]) for point in points]
            yield from panel.line(kind + faint, dot, values, len(places))


def _legend(chart: Chart, columns: Sequence[Point]) -> Iterator[str]:
    x, y = LEFTS[0], HEIGHT - 20
    for number, kind in enumerate(KINDS):
        # What a reader can see in some column.
        if all(one["cpu_us"][kind] <= sum(one["cpu_us"].values()) * VISIBLE for one in columns):
            continue
        yield f'<rect class="k{number}" x="{x}" y="{y - 9}" width="11" height="11"/>'
        yield _text("small", x + 16, y + 1, kind, "start")
        x += 16 + int(len(kind) * CHARACTER) + 9
    x = LEFTS[1]
    entries = [(f"s{number}", name) for number, name in enumerate(chart.lines)]
    for kind, name in [*entries, ("s0", "p50"), ("s0 faint", "p99")]:
        x = LEFTS[2] if name == "p50" else x
        yield f'<path class="line {kind}" d="M{x} {y - 4} h24"/>'
        yield _text("small", x + 30, y + 1, name, "start")
        x += 30 + int(len(name) * CHARACTER) + 18


def picture(chart: Chart, curve: Mapping[str, Any]) -> str:
    """Return the SVG of a curve."""
    points = [point for point in curve["points"] if point["series"] in chart.lines]
    places = sorted({point["x"] for point in points})
    names = [short(place) for place in places]
    series = [
        (f"s{number}", f"d{number}", [point for point in points if point["series"] == name])
        for number, name in enumerate(chart.lines)
    ]
    rate = Panel(LEFTS[1], steps(max(point["requests_per_s"] for point in points)))
    slowest, fastest = max(one["p99_us"] for one in points), min(one["p50_us"] for one in points)
    latency = Panel(LEFTS[2], decades(fastest, slowest), logarithmic=True)
    columns = [point for point in points if point["series"] == COLUMNS]
    light, dark = ("".join(f"{one[0]} {{ {one[1]}: {one[at]} }}\n" for one in COLOURS) for at in (2, 3))
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<!-- Made from {GROWTH.name} by `python -m ops.docs.charts`. -->",
            f"<title>{escape(chart.title, quote=False)}: cost, rate and latency of a request</title>",
            f"<style>\n{STYLE}{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n</style>",
            f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
            _text("title", 20, 28, chart.title, "start"),
            *_cost(columns, places, names),
            *_lines(rate, "requests a second", series, places, names, ("requests_per_s",)),
            *_lines(latency, "latency, µs", series, places, names, ("p50_us", "p99_us")),
            *(_text("small", left + PANEL_WIDTH / 2, HEIGHT - 42, chart.axis) for left in LEFTS),
            *_legend(chart, columns),
            "</svg>\n",
        )
    )


def pictures() -> dict[Path, str]:
    """Return what each picture should be."""
    curves = growth.read()
    return {DOCS / f"growth-{chart.curve}.svg": picture(chart, curves[chart.curve]) for chart in CHARTS}


def draw() -> None:
    for path, text in pictures().items():
        path.write_text(text)


if __name__ == "__main__":
    draw()
