"""The bench's table: figures of each broker below each other, and their ratios to Apache Kafka's."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from ops.bench.scenarios import Result, Scenario

WIDTH = 142
YARDSTICK = "Kafka"
# Heading, field of a result, and how it is shown.
FIGURES = (
    ("requests/s", "requests_per_s", "{:,.0f}"),
    ("p50 µs", "p50_us", "{:,.0f}"),
    ("p99 µs", "p99_us", "{:,.0f}"),
    ("p99.9 µs", "p999_us", "{:,.0f}"),
    ("CPU µs/req", "broker_cpu_us", "{:,.1f}"),
    ("MB/s", "mb_per_s", "{:,.0f}"),
)
RATIOS = (("rate/Kafka", "requests_per_s"), ("p99/Kafka", "p99_us"), ("CPU/Kafka", "broker_cpu_us"))


@dataclass(frozen=True)
class Column:
    """All that was measured on one broker."""

    title: str
    ready_s: float
    pss_bytes: int
    idle_cpu_percent: float
    results: Mapping[str, Result]


def table(columns: Sequence[Column], scenarios: Sequence[Scenario]) -> Table:
    """One section per scenario, one row per broker."""
    out = Table(title=f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}")
    out.add_column("load")
    out.add_column("broker", no_wrap=True)
    for heading in (*(one[0] for one in FIGURES), *(one[0] for one in RATIOS)):
        out.add_column(heading, justify="right")
    for scenario in scenarios:
        some = {one.title: one.results[scenario.name] for one in columns if scenario.name in one.results}
        kafka = next((result for title, result in some.items() if title.startswith(YARDSTICK)), None)
        for title, result in some.items():
            cells = [shown.format(getattr(result, figure)) for _, figure, shown in FIGURES]
            if kafka is not None and result is not kafka:
                cells += [f"{getattr(result, figure) / getattr(kafka, figure):.2f}" for _, figure in RATIOS]
            out.add_row("" if title != next(iter(some)) else scenario.name, title, *cells)
        out.add_section()
    for column in columns:
        out.add_row("ready", column.title, f"{column.ready_s:.2f} s")
        out.add_row("PSS, idle", column.title, f"{column.pss_bytes / 1e6:,.0f} MB")
        out.add_row("CPU, idle", column.title, f"{column.idle_cpu_percent:.2f} %")
    return out


def footnote(seconds: float, rounds: int) -> str:
    return f"""\
Each load ran {rounds} x {seconds:g} s per broker, taking turns, the others stopped.
The load generator shares the machine.
produce-SIZE-CONNECTIONS: one record per request, acks=all, one request in flight per connection.
connect-CONNECTIONS: connect, ApiVersions, reset; CONNECTIONS at a time.
Rates, bytes and CPU are means of the rounds, percentiles medians. CPU is that of the whole process tree.
The last three columns are ratios to Kafka, which does not sync."""
