"""Makes the tables of README and docs/PERFORMANCE.md: `python -m ops.docs.figures`.

The numbers come from docs/figures.json (`make figures`), docs/growth.json (`make bench-growth`) and those of
`tiering`. The commands make the tables after measuring; tests compare the pages with the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ops.bench import growth_curves
from ops.bench.growth_curves import LOADS, Curves, Point
from ops.docs import tiering
from ops.docs.tables import filled, head, number, row, wrapped

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures.json"
README, PAGE = ROOT / "README.md", ROOT / "docs" / "PERFORMANCE.md"

Figures = Mapping[str, Any]
OURS = ("durable", "os")
CONNECTOR = "Spark's connector"
# What a page calls a load, by its name in ops/bench/scenarios.py.
SMALL = ("produce-100B-1", "produce-100B-8", "produce-100B-64", "produce-100B-256")
# Not over 1,000: Kafka is slow there for its first rounds and as fast as ever after, which no median shows.
SPREAD = ("produce-100B-64-over-64",)
BYTES = {
    "produce-16KiB-8": "16 KiB on 8 connections",
    "produce-16KiB-32": "16 KiB on 32 connections",
    "produce-900KB-1": "900 KB on 1 connection",
    "produce-900KB-8": "900 KB on 8 connections",
    "fetch-1MiB-1": "1 MiB, a fetch on 1 connection",
    "fetch-1MiB-8": "1 MiB, a fetch on 8 connections",
}


def read() -> Figures:
    figures: Figures = json.loads(FIGURES.read_text())
    return figures


def _beside(found: Mapping[str, float], *, more_is_better: bool = True) -> list[str]:
    """Return cells: mpbroker's two figures, Kafka's figure, and two ratios (above 1: mpbroker is better)."""
    kafka = found["kafka"]
    ratios = (found[one] / kafka if more_is_better else kafka / found[one] for one in OURS)
    return [*(number(found[one]) for one in (*OURS, "kafka")), *map(number, ratios)]


BESIDE = ("durable", "os", "Kafka 4.3", "durable : Kafka", "os : Kafka")


def _rates(figures: Figures, load: str) -> dict[str, float]:
    return {one: found["requests_per_s"] for one, found in figures["loads"]["loads"][load].items()}


def _connections(load: str) -> str:
    count = load.split("-")[2]
    return f"{count} connection{'s' if count != '1' else ''}"


def numbers(figures: Figures) -> list[str]:
    """Return the table of the README."""
    lines = head("", *BESIDE)
    lines.append(row("64 connections", *_beside(_rates(figures, SMALL[2]))))
    lines.append(row("1 connection", *_beside(_rates(figures, SMALL[0]))))
    lines.append(row("64 connections, over 64 partitions", *_beside(_rates(figures, SPREAD[0]))))
    start, idle = figures["start"], figures["loads"]["idle"]
    spark = figures["spark"]
    rest = (
        ("ready after a start", f"{start['mpbroker_ready_s']:.2f} s", f"{start['kafka_ready_s']:.1f} s"),
        ("a broker for a test is ready after", f"{start['test_ready_s']:.2f} s", ""),
        ("memory when idle", f"{idle['durable']['pss_mb']:.0f} MB", f"{idle['kafka']['pss_mb']:.0f} MB"),
        ("memory when idle, with `--http`", f"{start['with_exporter_pss_mb']:.0f} MB", ""),
        ("CPU when idle", f"{idle['durable']['cpu_percent']:.1f} %", f"{idle['kafka']['cpu_percent']:.1f} %"),
        ("Spark reads 8 million records", f"{spark['mpbroker, Python']:.1f} s", f"{spark[CONNECTOR]:.1f} s"),
        ("Spark with the JVM reader reads them", f"{spark['mpbroker, JVM']:.1f} s", ""),
    )
    return lines + [row(name, ours, "", kafka, "", "") for name, ours, kafka in rest]


def small(figures: Figures) -> list[str]:
    """Return a table of the rates of small produces, and of mpbroker's CPU compared with Kafka's."""
    lines = head("one record of 100 bytes a request", *BESIDE, "os, CPU : Kafka's")
    for load in (*SMALL, *SPREAD):
        cpu = {one: found["cpu_us"] for one, found in figures["loads"]["loads"][load].items()}
        name = _connections(load) + (f", {load.split('-')[-1]} partitions" if load in SPREAD else "")
        lines.append(row(name, *_beside(_rates(figures, load)), number(cpu["os"] / cpu["kafka"])))
    return lines


def device(figures: Figures) -> list[str]:
    """Return the bare disk's time, and the rate of durable produces that it allows one connection."""
    device_us = figures["loads"]["device_us"]
    rates = _rates(figures, SMALL[0])
    os_us = 1e6 / rates["os"]
    bound = 1e6 / (device_us + os_us)
    return [
        f"The bare device wrote and synced a round of one such request in {device_us:.0f} µs. With the",
        f"{os_us:.0f} µs that one takes with `os`, one connection can have {number(bound)} durable produces",
        f"a second, {number(bound / rates['kafka'])} of Kafka's rate.",
    ]


def large(figures: Figures) -> list[str]:
    """Return megabytes a second of large produces and fetches."""
    lines = head("MB/s", *BESIDE)
    for load, name in BYTES.items():
        found = {one: result["mb_per_s"] for one, result in figures["loads"]["loads"][load].items()}
        lines.append(row(name, *_beside(found)))
    return lines


def connects(figures: Figures) -> list[str]:
    """Return how many connections a second are set up and answered."""
    lines = head("connect, ApiVersions, reset, a second", *BESIDE)
    for load in ("connect-1", "connect-8"):
        lines.append(row(f"{load.split('-')[1]} at a time", *_beside(_rates(figures, load))))
    return lines


def clients(figures: Figures) -> list[str]:
    """Return the table of stock clients."""
    lines = head("client", *BESIDE)
    for name, found in figures["clients"].items():
        if name != "circumstances":
            better = found["more_is_better"]
            lines.append(row(f"{name}, {found['unit']}", *_beside(found, more_is_better=better)))
    return lines


def requests(figures: Figures) -> list[str]:
    """Return a table of the seconds to create and delete many topics, and the rates of transactions."""
    lines = head("", *BESIDE)
    made = figures["topics"]
    for label, what in (("created", "create_s"), ("deleted", "delete_s")):
        cells = _beside(made[what], more_is_better=False)
        lines.append(row(f"100 topics of 3 partitions {label} by one request, s", *cells))
    for count in ("1", "8"):
        name = f"transactions a second, {count} producer{'s' if count != '1' else ''}"
        lines.append(row(name, *_beside(figures["transactions"][count])))
    return lines


def idle(figures: Figures) -> list[str]:
    """Return the table of start times, and of the memory and CPU of an idle broker."""
    start, found = figures["start"], figures["loads"]["idle"]
    lines = head("", "mpbroker", "Kafka 4.3")
    lines.append(
        row("ready after a start, s", *(number(start[f"{one}_ready_s"]) for one in ("mpbroker", "kafka")))
    )
    lines.append(row("`mpbroker.testing.Broker` ready, s", number(start["test_ready_s"]), ""))
    for what, label in (("pss_mb", "memory when idle, MB"), ("cpu_percent", "CPU when idle, % of a core")):
        lines.append(row(label, *(number(found[one][what]) for one in ("durable", "kafka"))))
    lines.append(row("memory when idle with the exporter, MB", number(start["with_exporter_pss_mb"]), ""))
    return lines


def spark(figures: Figures) -> list[str]:
    """Return the table of the seconds that Spark takes with each reader, the slowest reader first."""
    found = {name: value for name, value in figures["spark"].items() if name != "circumstances"}
    slowest = sorted(found.items(), key=lambda one: -one[1])
    return [*head("reader", "seconds"), *(row(name, f"{value:.2f}") for name, value in slowest)]


def _shared(circumstances: Mapping[str, str]) -> list[str]:
    """Return what all circumstances share, then each one's load average and what else differs."""
    words = {name: text.replace(";", ",").split(", ") for name, text in circumstances.items()}
    common = [word for word in next(iter(words.values())) if all(word in other for other in words.values())]
    rest = {name: " ".join(word for word in one if word not in common) for name, one in words.items()}
    loads = ", ".join(f"{text.removeprefix('load average ')} ({name})" for name, text in rest.items())
    return wrapped(f"Measured on {', '.join(common)}; load average {loads}.")


def measured(figures: Figures) -> list[str]:
    return _shared({name: part["circumstances"] for name, part in figures.items()})


# ---- growth

HOPS = ("processor", "handler", "log worker")


def _per_second(point: Point) -> float:
    return float(point["requests_per_s"])


def _median_us(point: Point) -> float:
    return float(point["p50_us"])


def _of(figure: str, kind: str) -> Callable[[Point], float]:
    return lambda point: float(point[figure][kind])


# What the page explains: curve, from, to, figure. Offset commits and logs were measured durable alone.
BENDS: Sequence[tuple[str, int, int, str, Callable[[Point], float]]] = (
    ("connections", 1, 256, "turns of the processor", _of("turns", "processor")),
    ("connections", 1, 256, "CPU of the processor, µs", _of("cpu_us", "processor")),
    ("connections", 256, 10_000, "CPU of the processor, µs", _of("cpu_us", "processor")),
    ("connections", 256, 10_000, "requests/s", _per_second),
    ("idle", 1, 10_000, "p50, µs", _median_us),
    ("partitions", 1, 1000, "CPU of the log worker, µs", _of("cpu_us", "log worker")),
    ("partitions", 1, 1000, "requests/s", _per_second),
    ("partitions", 1000, 10_000, "CPU of the log worker, µs", _of("cpu_us", "log worker")),
    ("partitions", 1000, 10_000, "requests/s", _per_second),
    ("groups", 1, 100, "CPU of the coordinator, µs", _of("cpu_us", "coordinator")),
    ("groups", 1, 100, "CPU of the log worker, µs", _of("cpu_us", "log worker")),
    ("log-size", 0, 30, "requests/s", _per_second),
    ("processors", 1, 4, "requests/s", _per_second),
    ("handlers", 1, 4, "requests/s", _per_second),
    ("log-workers", 1, 4, "CPU of the log worker, µs", _of("cpu_us", "log worker")),
    ("log-workers", 1, 4, "requests/s", _per_second),
)


def _two_digits(value: float) -> str:
    """Return a number as a table of growth shows it: 1,234, 56, 7.8, 0.09."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2g}" if value >= 0.01 else "0"


def circumstances(curves: Curves) -> list[str]:
    return _shared({name: curve["circumstances"] for name, curve in curves.items()})


def bends(curves: Curves) -> list[str]:
    """Return a table with a row for each of BENDS: a curve's figure at both ends of a range."""
    lines = ["| curve | over | figure, of a request | os | durable |", "|---|---|---|---|---|"]
    for name, first, last, figure, value in BENDS:
        points = {(point["series"], point["x"]): point for point in curves[name]["points"]}
        cells = [
            f"{_two_digits(value(points[policy, first]))} → {_two_digits(value(points[policy, last]))}"
            if (policy, first) in points
            else ""
            for policy in ("os", "durable")
        ]
        lines.append(f"| {name} | {first:,} → {last:,} | {figure} | {' | '.join(cells)} |")
    return lines


def hops(curves: Curves) -> list[str]:
    """Return a table of each hop's work per request: CPU, system calls, wake-ups."""
    lines = [f"| request | | {' | '.join(HOPS)} | all |", f"|---|---|{'---|' * len(HOPS)}---:|"]
    for point in curves["hops"]["points"]:
        cells = [
            f"{_two_digits(point['cpu_us'][kind])} µs, {_two_digits(point['system_calls'][kind])}, "
            f"{_two_digits(point['sleeps'][kind])}"
            for kind in HOPS
        ]
        load, total = LOADS[int(point["x"])], sum(point["cpu_us"].values())
        lines.append(f"| `{load}` | {point['series']} | {' | '.join(cells)} | {_two_digits(total)} µs |")
    return lines


PERFORMANCE: Mapping[str, Callable[[Figures], Sequence[str]]] = {
    "measured": measured,
    "small": small,
    "device": device,
    "clients": clients,
    "large": large,
    "connects": connects,
    "requests": requests,
    "idle": idle,
    "spark": spark,
}
GROWTH: Mapping[str, Callable[[Curves], Sequence[str]]] = {
    "circumstances": circumstances,
    "bends": bends,
    "hops": hops,
}


def readme(text: str, figures: Figures) -> str:
    """Return the README with its table made again. Raises TableError."""
    return filled(text, README, {"numbers": partial(numbers, figures)})


def page(text: str, figures: Figures, curves: Curves) -> str:
    """Return PERFORMANCE.md with its tables made again. Raises TableError."""
    made = {name: partial(make, figures) for name, make in PERFORMANCE.items()}
    grown = {name: partial(make, curves) for name, make in GROWTH.items()}
    return filled(text, PAGE, made | grown | tiering.measured())


def write() -> None:
    README.write_text(readme(README.read_text(), read()))
    PAGE.write_text(page(PAGE.read_text(), read(), growth_curves.read()))


if __name__ == "__main__":
    write()
