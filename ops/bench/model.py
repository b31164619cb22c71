"""Predict rates from what the hops of a request cost: docs/PERFORMANCE.md has its tables.

The costs are fitted to a few measured points of docs/growth.json. All other points are predictions: a broker
with these costs is played (ops/bench/simulation.py). Fitted are, each to what is named behind it:

* `turn_us` and `request_us` of each hop, `cold_us` of processor and generator: CPU and turns of a request,
  8, 64 and 10,000 connections with `os`.
* `wake_us`: what a request takes longer than its turns, one connection with `os`.
* `round_us` and `disk_us`: CPU of the log worker, and time of a commit round, one connection, durable.
* `append_us` and `gather_us`: CPU of the log worker, 1,000 partitions with `os` and durable.
* `request_us` of requests of 16 KiB: CPU and turns of a request, 8 connections with `os`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mpbroker.config.workers import MAX_LOG_WORKERS, default_workers
from ops.bench.growth_file import GROWTH, LOADS, Curves, Point
from ops.bench.simulation import (
    COLD_CONNECTIONS,
    COLD_PARTITIONS,
    KINDS,
    Costs,
    Hop,
    Setup,
    cold_share,
    play,
)

# Processes that a lone request wakes: generator, processor, handler, log worker, processor.
WAKES = 5
# Of these, a durable one wakes more: the flusher, twice again when the disk is done, and the log worker.
ROUND_WAKES = 4
# Waits for the disk in a round; after each the flusher is woken.
ROUND_WAITS = 2
ALONE, FEW, BUSY, MOST = 1, 8, 64, COLD_CONNECTIONS
LARGE_LOAD = "produce-16KiB-8"
# Curves over the number of one kind of process, with the partitions that they were measured over.
WORKER_CURVES, WORKER_PARTITIONS = ("processors", "handlers", "log-workers"), 64
# Above so many partitions a log worker opens and closes files all the time, which is not modelled.
PARTITIONS_MOST = 1000
# A prediction should be no further away, in percent.
AIM = 25
# Where others took so many cores beside a point, nothing is said of its prediction.
OTHERS_MOST = 0.75
# Doubling what is no limit gains less than this.
GAIN_LEAST = 1.05


class ModelError(Exception):
    """The measurements lack a point that the costs are fitted to."""


@dataclass(frozen=True)
class Checked:
    """A measured point and what the model says of it. `fitted`: the costs come from it."""

    curve: str
    policy: str
    x: float
    measured: float
    predicted: float
    fitted: bool
    others_cores: float

    @property
    def apart(self) -> float:
        """Return how far the prediction is from the measurement, in percent."""
        return 100 * (self.predicted / self.measured - 1)


def _point(curves: Curves, curve: str, policy: str, x: float) -> Point:
    for point in curves.get(curve, {}).get("points", ()):
        if (point["series"], point["x"]) == (policy, x):
            found: Point = point
            return found
    raise ModelError(f"{GROWTH.name} has no point {policy}, {x:g} of {curve}: run make bench-growth")


def _cpu_us(point: Point, kind: str) -> float:
    return float(point["generator_us"] if kind == "generator" else point["cpu_us"][kind])


def _turns(point: Point, kind: str) -> float:
    """Return the turns of a request. The generator's are not counted: it meets a request once where the
    processor meets it twice.
    """
    return float(point["turns"]["processor"] / 2 if kind == "generator" else point["turns"][kind])


def _hop(kind: str, few: Point, busy: Point, most: Point) -> Hop:
    """Solve CPU = turns * turn_us + request_us + cold share * cold_us at the points.

    Only generator and processor know connections: the others have no `cold_us`.
    """
    turns, cpu_us = (
        [of(few, kind) - of(busy, kind), of(most, kind) - of(busy, kind)] for of in (_turns, _cpu_us)
    )
    if kind in ("generator", "processor"):
        cold = [cold_share(x) - cold_share(BUSY) for x in (FEW, MOST)]
        denominator = turns[0] * cold[1] - turns[1] * cold[0]
        turn_us = max((cpu_us[0] * cold[1] - cpu_us[1] * cold[0]) / denominator, 0.0)
        cold_us = max((cpu_us[1] - turns[1] * turn_us) / cold[1], 0.0)
    else:
        turn_us, cold_us = max(cpu_us[0] / turns[0], 0.0), 0.0
    rest_us = _cpu_us(busy, kind) - turn_us * _turns(busy, kind) - cold_us * cold_share(BUSY)
    return Hop(turn_us, max(rest_us, 0.0), cold_us)


def fitted(curves: Curves) -> dict[str, Costs]:
    """Return the costs for both policies. Raises ModelError."""
    alone, few, busy, most = (_point(curves, "connections", "os", x) for x in (ALONE, FEW, BUSY, MOST))
    hops = {kind: _hop(kind, few, busy, most) for kind in KINDS}
    served_us = sum(hop.each_us(1) + hop.turn_us for hop in hops.values()) + hops["processor"].turn_us
    wake_us = max(1e6 / alone["requests_per_s"] - served_us, 0.0) / WAKES
    spread = _point(curves, "partitions", "os", COLD_PARTITIONS)
    append_us = _unexplained_us(hops["log worker"], spread) / (1 - _turns(spread, "log worker"))
    costs = Costs(hops, wake_us, append_us=append_us)
    wake_cpu_us = max(sum(_cpu_us(alone, kind) for kind in KINDS) - served_us, 0.0) / WAKES
    return {"os": costs, "durable": _durable(costs, curves, wake_cpu_us)}


def _unexplained_us(log_worker: Hop, point: Point) -> float:
    """Return the log worker's CPU that is neither its turns nor its requests."""
    explained_us = log_worker.request_us + log_worker.turn_us * _turns(point, "log worker")
    return max(_cpu_us(point, "log worker") - explained_us, 0.0)


def _durable(costs: Costs, curves: Curves, wake_cpu_us: float) -> Costs:
    """Return the costs with those of commit rounds."""
    log_worker = costs.hops["log worker"]
    alone = {policy: _point(curves, "connections", policy, ALONE) for policy in ("os", "durable")}
    more_us = _cpu_us(alone["durable"], "log worker") - _cpu_us(alone["os"], "log worker")
    round_us = max(more_us / alone["durable"]["rounds"] - log_worker.turn_us - ROUND_WAKES * wake_cpu_us, 0.0)
    disk_us = max(alone["durable"]["sync_us"] - round_us - ROUND_WAITS * costs.wake_us, 0.0)
    spread = _point(curves, "partitions", "durable", COLD_PARTITIONS)
    appends_us = costs.append_us * (1 - _turns(spread, "log worker"))
    gathering_us = _unexplained_us(log_worker, spread) - appends_us - round_us * spread["rounds"]
    gather_us = max(gathering_us, 0.0) / (1 - spread["rounds"])
    return replace(costs, round_us=round_us, disk_us=disk_us, gather_us=gather_us)


def _of_large_requests(costs: Costs, curves: Curves) -> Costs:
    """Return the costs with those of a request of 16 KiB; turns, wake-ups and rounds cost the same."""
    point = _point(curves, "hops", "os", LOADS.index(LARGE_LOAD))
    hops = {
        kind: replace(hop, request_us=max(_cpu_us(point, kind) - hop.turn_us * _turns(point, kind), 0.0))
        for kind, hop in costs.hops.items()
    }
    return replace(costs, hops=hops)


def setups(curves: Curves) -> Iterator[tuple[str, Point, Setup, bool]]:
    """Yield the points that the model says something of: curve, point, what to play, whether it is fitted."""
    for name, cores in ((name, curve["cores"]) for name, curve in curves.items()):
        for point in curves[name]["points"]:
            x, os = int(point["x"]), point["series"] == "os"
            if name == "connections":
                is_fitted = x == ALONE or (os and x in (FEW, BUSY, MOST))
                yield name, point, Setup(x, cores), is_fitted
            elif name == "partitions" and x <= PARTITIONS_MOST:
                yield name, point, Setup(BUSY, cores, partitions=x), x == COLD_PARTITIONS
            elif name in WORKER_CURVES:
                setup = Setup(BUSY, cores, partitions=WORKER_PARTITIONS)
                yield name, point, setup.having(name.replace("-", "_"), x), False
            elif name == "hops" and LOADS[x].startswith("produce"):
                connections = int(LOADS[x].rpartition("-")[2])
                yield name, point, Setup(connections, cores), os and LOADS[x] == LARGE_LOAD


def checked(curves: Curves) -> list[Checked]:
    """Play each point that the model says something of. Raises ModelError."""
    costs = fitted(curves)
    found = []
    for name, point, setup, is_fitted in setups(curves):
        here = costs[point["series"]]
        if name == "hops" and LOADS[int(point["x"])] == LARGE_LOAD:
            here = _of_large_requests(here, curves)
        rate = play(here, setup).requests_per_s
        measured = (point["requests_per_s"], rate, is_fitted, point["others_cores"])
        found.append(Checked(name, point["series"], point["x"], *measured))
    return found


def machine(cores: int, partitions: int, connections: int) -> Setup:
    """Return a broker of its own on so many cores, whose clients are elsewhere.

    Processors and handlers are as many as by default (docs/OPERATING.md), log workers one for 8 cores.
    """
    usual = default_workers(cores)
    log_workers = min(max(cores // 8, 1), MAX_LOG_WORKERS)
    return Setup(
        connections,
        cores,
        processors=usual.processors,
        handlers=usual.handlers,
        log_workers=log_workers,
        partitions=max(partitions, log_workers),
        generator=False,
    )


def limited(costs: Costs, setup: Setup) -> tuple[float, str]:
    """Return the rate, and what would help most if it were doubled: processes, cores, clients, the disk."""
    rate = play(costs, setup).requests_per_s
    doubled = ("processors", "handlers", "log_workers", "cores", "connections")
    rates = {name.replace("_", " "): play(costs, setup.doubled(name)).requests_per_s for name in doubled}
    if costs.disk_us:
        rates["disk"] = play(replace(costs, disk_us=costs.disk_us / 2), setup).requests_per_s
    best = max(rates, key=lambda name: rates[name])
    return rate, best if rates[best] > GAIN_LEAST * rate else "nothing alone"
