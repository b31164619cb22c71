"""The bench's table: figures of each broker below each other, and their ratios to Apache Kafka's."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from ops.bench.scenarios import Result, Scenario

WIDTH = 142
YARDSTICK = "Kafka"


@dataclass(frozen=True)
class Column:
    """All that was measured on one broker."""

    title: str
    ready_s: float
    pss_bytes: int
    idle_cpu_percent: float
    results: Mapping[str, Result]


def _ratio(value: float, yardstick: float | None) -> str:
    return f"{value / yardstick:.2f}" if yardstick else ""


def _speed(scenario: Scenario, result: Result) -> str:
    if not scenario.bulk:
        return ""
    return (
        f"{result.mb_per_s / 1e3:,.2f} GB/s" if scenario.kind == "fetch" else f"{result.mb_per_s:,.0f} MB/s"
    )


def _load_row(scenario: Scenario, column: Column, yardstick: Result | None) -> list[str]:
    result = column.results[scenario.name]
    other = None if column.title.startswith(YARDSTICK) else yardstick
    return [
        column.title,
        f"{result.requests_per_s:,.0f}",
        f"{result.p50_us:,.0f}",
        f"{result.p99_us:,.0f}",
        f"{result.p999_us:,.0f}",
        f"{result.broker_cpu_us:,.1f}",
        _speed(scenario, result),
        _ratio(result.requests_per_s, other.requests_per_s if other else None),
        _ratio(result.p99_us, other.p99_us if other else None),
        _ratio(result.broker_cpu_us, other.broker_cpu_us if other else None),
    ]


def table(columns: Sequence[Column], scenarios: Sequence[Scenario]) -> Table:
    """One section per scenario, one row per broker."""
    out = Table(title=f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}")
    out.add_column("load")
    out.add_column("broker", no_wrap=True)
    for heading in (
        "requests/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "CPU µs/req",
        "bytes",
        "rate/Kafka",
        "p99/Kafka",
        "CPU/Kafka",
    ):
        out.add_column(heading, justify="right")
    for scenario in scenarios:
        measured = [column for column in columns if scenario.name in column.results]
        kafka = [c.results[scenario.name] for c in measured if c.title.startswith(YARDSTICK)]
        for column in measured:
            label = scenario.name if column is measured[0] else ""
            out.add_row(label, *_load_row(scenario, column, kafka[0] if kafka else None))
        if measured:
            out.add_section()
    for cells in _size_rows(columns):
        out.add_row(*cells)
    return out


def _size_rows(columns: Sequence[Column]) -> list[tuple[str, str, str]]:
    return [
        *(("ready", column.title, f"{column.ready_s:.2f} s") for column in columns),
        *(("PSS, idle", column.title, f"{column.pss_bytes / 1e6:,.0f} MB") for column in columns),
        *(("CPU, idle", column.title, f"{column.idle_cpu_percent:.2f} %") for column in columns),
    ]


def footnote(seconds: float, rounds: int) -> str:
    return f"""\
Each load ran {rounds} x {seconds:g} s per broker, taking turns, the others stopped.
The load generator shares the machine.
produce-SIZE-CONNECTIONS: one record per request, acks=all, one request in flight per connection.
connect-CONNECTIONS: connect, ApiVersions, reset; so many at a time.
Rates, bytes and CPU are means of the rounds, percentiles medians. CPU is that of the whole process tree.
The last three columns are ratios to Kafka, which does not sync."""
