"""Writes the tables of docs/PERFORMANCE.md: `python -m ops.docs.performance`.

They come from docs/growth.json (`make bench-growth`) and docs/figures.json (`make figures`), whose targets
call this when they have measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from ops.bench import growth_file, model
from ops.bench.growth_file import LOADS, Curves, Point
from ops.bench.model import AIM, OTHERS_MOST, Checked
from ops.docs import figures
from ops.docs.tables import filled

PAGE = Path(__file__).parents[2] / "docs" / "PERFORMANCE.md"
HOPS = ("processor", "handler", "log worker")
# What is shown of a small number.
DIGITS = 2
MACHINES, CONNECTIONS = (16, 64), 4000
# A partition for each log worker, and many.
PARTITIONS = (1, 1000)


def _rate(point: Point) -> float:
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
    ("connections", 256, 10_000, "requests/s", _rate),
    ("idle", 1, 10_000, "p50, µs", _median_us),
    ("partitions", 1, 1000, "CPU of the log worker, µs", _of("cpu_us", "log worker")),
    ("partitions", 1, 1000, "requests/s", _rate),
    ("partitions", 1000, 10_000, "CPU of the log worker, µs", _of("cpu_us", "log worker")),
    ("partitions", 1000, 10_000, "requests/s", _rate),
    ("groups", 1, 1000, "CPU of the handler, µs", _of("cpu_us", "handler")),
    ("groups", 1, 100, "CPU of the coordinator, µs", _of("cpu_us", "coordinator")),
    ("groups", 1, 100, "CPU of the log worker, µs", _of("cpu_us", "log worker")),
    ("groups", 100, 1000, "CPU of the log worker, µs", _of("cpu_us", "log worker")),
    ("log-size", 0, 30, "requests/s", _rate),
    ("processors", 1, 3, "requests/s", _rate),
    ("processors", 1, 4, "turns of the processor", _of("turns", "processor")),
    ("processors", 1, 4, "requests/s", _rate),
    ("handlers", 1, 4, "requests/s", _rate),
    ("log-workers", 1, 4, "turns of the log worker", _of("turns", "log worker")),
    ("log-workers", 1, 4, "CPU of the log worker, µs", _of("cpu_us", "log worker")),
    ("log-workers", 1, 4, "requests/s", _rate),
)


def _number(value: float) -> str:
    """Return a number as a table shows it: 1,234, 56, 7.8, 0.09."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{DIGITS}g}" if value >= 0.01 else "0"


def circumstances(curves: Curves) -> list[str]:
    """Return where and when each curve was measured."""
    lines = ["| curve | measured |", "|---|---|"]
    return lines + [f"| {name} | {curve['circumstances']} |" for name, curve in curves.items()]


def bends(curves: Curves) -> list[str]:
    """Return what was measured at both ends of each stretch that the page explains."""
    lines = ["| curve | over | figure, of a request | os | durable |", "|---|---|---|---|---|"]
    for name, first, last, told, value in BENDS:
        points = {(point["series"], point["x"]): point for point in curves[name]["points"]}
        cells = [
            f"{_number(value(points[policy, first]))} → {_number(value(points[policy, last]))}"
            if (policy, first) in points
            else ""
            for policy in ("os", "durable")
        ]
        lines.append(f"| {name} | {first:,} → {last:,} | {told} | {' | '.join(cells)} |")
    return lines


def hops(curves: Curves) -> list[str]:
    """Return what each hop does for a request: CPU, system calls, wake-ups."""
    lines = [f"| request | | {' | '.join(HOPS)} | all |", f"|---|---|{'---|' * len(HOPS)}---:|"]
    for point in curves["hops"]["points"]:
        cells = [
            f"{_number(point['cpu_us'][kind])} µs, {_number(point['system_calls'][kind])} calls, "
            f"{_number(point['sleeps'][kind])} wake-ups"
            for kind in HOPS
        ]
        load, total = LOADS[int(point["x"])], sum(point["cpu_us"].values())
        lines.append(f"| `{load}` | {point['series']} | {' | '.join(cells)} | {_number(total)} µs |")
    return lines


def costs(curves: Curves) -> list[str]:
    """Return what the model knows."""
    known = model.fitted(curves)["durable"]
    lines = ["| hop | each turn | each request | and among 10,000 connections |", "|---|---:|---:|---:|"]
    for kind, hop in known.hops.items():
        cold = f"{hop.cold_us:.1f} µs more" if hop.cold_us else ""
        lines.append(f"| {kind} | {hop.turn_us:.1f} µs | {hop.request_us:.1f} µs | {cold} |")
    rest = (
        ("a wake-up on an idle core", known.wake_us),
        ("each further partition in a turn of the log worker, of 1,000", known.append_us),
        ("each further partition in a commit round, of 1,000", known.gather_us),
        ("a commit round: CPU", known.round_us),
        ("a commit round: waits for the disk", known.disk_us),
    )
    return [*lines, *(f"| {name} | {cost_us:.1f} µs | | |" for name, cost_us in rest)]


# Several tables are of the same points.
@cache
def _checked(key: str) -> tuple[Checked, ...]:
    return tuple(model.checked(growth_file.parsed(key)))


def checked(curves: Curves) -> tuple[Checked, ...]:
    return _checked(growth_file.as_text(curves))


def verdict(point: Checked) -> str:
    """Return how far a prediction is from its point; nothing where others took much of the cores."""
    told = (
        f"others took {point.others_cores:.1f}"
        if point.others_cores > OTHERS_MOST
        else f"{round(point.apart):+d} %"
    )
    return f"fitted, {told}" if point.fitted else told


def predicted(curves: Curves) -> list[str]:
    """Return each measured point of the connections beside its prediction."""
    lines = ["| connections | | measured/s | predicted/s | |", "|---:|---|---:|---:|---:|"]
    return lines + [
        f"| {point.x:,.0f} | {point.policy} | {point.measured:,.0f} | {point.predicted:,.0f} | "
        f"{verdict(point)} |"
        for point in checked(curves)
        if point.curve == "connections"
    ]


def within(curves: Curves) -> list[str]:
    """Return of each curve how far predictions are from what was measured. Points of the fit do not count."""
    lines = ["| curve | points | within 25 % | from, to | outside |", "|---|---:|---:|---|---|"]
    judged = [one for one in checked(curves) if not one.fitted and one.others_cores <= OTHERS_MOST]
    for name in [*curves, ""]:
        points = [point for point in judged if name in ("", point.curve)]
        if points:
            apart = [point.apart for point in points]
            outside = [point for point in points if abs(point.apart) > AIM]
            told = ", ".join(f"{point.policy} {point.x:,.0f}: {round(point.apart):+d} %" for point in outside)
            lines.append(
                f"| {name or 'all'} | {len(points)} | {len(points) - len(outside)} | "
                f"{round(min(apart)):+d} %, {round(max(apart)):+d} % | {told if name else ''} |"
            )
    return lines


def larger(curves: Curves) -> list[str]:
    """Return the rates of larger machines whose clients are elsewhere, and what limits them."""
    known = model.fitted(curves)
    lines = [
        "| cores | processes | partitions | os | limit | durable | limit |",
        "|---:|---|---:|---:|---|---:|---|",
    ]
    for cores in MACHINES:
        for partitions in PARTITIONS:
            setup = model.machine(cores, partitions, CONNECTIONS)
            cells = []
            for policy in ("os", "durable"):
                rate, limit = model.limited(known[policy], setup)
                cells.append(f"{_rounded(rate)} | {limit}")
            processes = f"{setup.processors} + {setup.handlers} + {setup.log_workers}"
            lines.append(f"| {cores} | {processes} | {setup.partitions:,} | {' | '.join(cells)} |")
    return lines


def _rounded(rate: float) -> str:
    return f"{float(f'{rate:.{DIGITS}g}'):,.0f}"


TABLES: Mapping[str, Callable[[Curves], Sequence[str]]] = {
    "circumstances": circumstances,
    "bends": bends,
    "hops": hops,
    "costs": costs,
    "predicted": predicted,
    "within": within,
    "larger": larger,
}


def page(text: str, curves: Curves, measured: figures.Figures) -> str:
    """Return the page with its tables made anew. Raises TableError, ModelError."""
    made = {name: partial(make, curves) for name, make in TABLES.items()}
    made |= {name: partial(make, measured) for name, make in figures.PERFORMANCE.items()}
    return filled(text, PAGE, made)


def write() -> None:
    PAGE.write_text(page(PAGE.read_text(), growth_file.read(), figures.read()))


if __name__ == "__main__":
    write()
