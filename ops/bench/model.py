"""Predict rates from what the hops of a request cost: docs/PERFORMANCE.md has its tables.

A broker is a closed network of queues. Each kind of process is a station. Its cost has two parts: one for
each request, and one for each turn of its loop, which is a wake-up and is shared by all requests that wait
for it. Mean value analysis (Reiser and Lavenberg, 1980) gives the queues, with Seidmann's approximation for
stations of several processes. Each turn first waits for a core, as in a queue with as many servers as there
are cores (Sakasegawa, 1977), and is shared by all who have come meanwhile. A commit round delays a request by
its own time and, if one is under way, by half of that one's; its cost is shared, too.

The costs are fitted to three measured points (docs/growth.json): one and 64 connections with `os`, and one
connection with durable appends. All other points are predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ops.bench.growth_file import GROWTH, Point

# Hand-overs of a request that sleep: generator, processor, handler, log worker, processor.
HAND_OVERS = 5
# How often a request visits a kind of process: the processor receives it and writes the answer.
VISITS = {"processor": 2, "handler": 1, "log worker": 1, "generator": 1}
# A commit round wakes the flusher, and then the log worker, which answers.
ROUND_VISITS = 2
FITTED_MOST = 64
# Rounds of several log workers at once on one device (docs/PERFORMANCE.md, "The commit journal").
OVERLAP = 1.5
# Fixed-point steps for each population, and halvings of the interval of its rate.
STEPS, HALVINGS = 8, 24
# From this many connections on, the next population is 1/APART larger instead of one more.
APART = 32
# Cores that others may take beside a point that a prediction is compared with.
OTHERS_MOST = 0.75
# Part of the way that each step moves the queues: a whole step would swing.
DAMPING = 0.5


class ModelError(Exception):
    """The measurements lack a point that the costs are fitted to."""


@dataclass(frozen=True)
class Hop:
    """What a kind of process costs: microseconds for each request, and for each of its turns."""

    kind: str
    request_us: float
    turn_us: float
    processes: int = 1

    def per_request_us(self, queue: float) -> float:
        """Return the CPU of a request that finds so many others: they share the turns."""
        return self.request_us + VISITS[self.kind] * self.turn_us / (1 + queue / self.processes)


@dataclass(frozen=True)
class Costs:
    """All that the model knows of a broker. `round_us`: how long a commit round takes, 0 with `os`;
    `round_cpu_us`: the CPU of one. `hand_over_us`: from a wake-up until the woken process runs.
    """

    hops: Sequence[Hop]
    hand_over_us: float
    round_us: float = 0.0
    round_cpu_us: float = 0.0

    def with_processes(self, numbers: Mapping[str, int]) -> Costs:
        """Return the same broker with other numbers of processes. Rounds of log workers share one device."""
        workers = numbers.get("log worker", 1)
        slower = max(workers / OVERLAP, 1.0)
        hops = [replace(hop, processes=numbers.get(hop.kind, hop.processes)) for hop in self.hops]
        return replace(self, hops=hops, round_us=self.round_us * slower)


@dataclass(frozen=True)
class Predicted:
    """What clients get, and the CPU that a request takes of all processes, the generator's included."""

    requests_per_s: float
    mean_us: float
    cpu_us: float


def predict(costs: Costs, connections: int, cores: float) -> Predicted:
    """Return what so many connections get that send their next request when one is answered.

    The generator is a station like the others if it is among the hops: then it shares the cores.
    """
    queues, rate = dict.fromkeys((hop.kind for hop in costs.hops), 0.0), 0.0
    before = 0
    for population in _populations(connections):
        if before:
            # What one connection less would have left.
            queues = {kind: queue * (population - 1) / before for kind, queue in queues.items()}
        rate = _add_one(costs, population, cores, queues, rate)
        before = population
    return Predicted(rate, 1e6 * connections / rate, _cpu_us(costs, queues, rate))


def _populations(connections: int) -> Iterator[int]:
    """Yield each number of connections, and where there are many, those that lie a little apart."""
    population = 1
    while population < connections:
        yield population
        population += max(population // APART, 1)
    yield connections


def limit(costs: Costs, connections: int, cores: float) -> str:
    """Return what would help most if it were doubled: a kind of process, cores, the disk's speed, clients."""
    doubled = {hop.kind: {hop.kind: 2 * hop.processes} for hop in costs.hops}
    rates = {
        f"{kind}s": predict(costs.with_processes(numbers), connections, cores).requests_per_s
        for kind, numbers in doubled.items()
        if kind != "generator"
    }
    rates["cores"] = predict(costs, connections, 2 * cores).requests_per_s
    rates["connections"] = predict(costs, 2 * connections, cores).requests_per_s
    if costs.round_us:
        faster = replace(costs, round_us=costs.round_us / 2)
        rates["disk"] = predict(faster, connections, cores).requests_per_s
    return max(rates, key=lambda what: rates[what])


def _add_one(costs: Costs, population: int, cores: float, queues: dict[str, float], rate: float) -> float:
    """Add one connection, which finds what the others have left: change the queues, return the rate."""
    alone = {hop.kind: _residence_us(hop, queues[hop.kind]) for hop in costs.hops}
    delay_us = HAND_OVERS * costs.hand_over_us + _commit_us(costs, rate)
    unhurried_us = delay_us + sum(alone.values())
    visits = sum(VISITS[hop.kind] for hop in costs.hops) + (ROUND_VISITS if costs.round_us else 0)
    for _ in range(STEPS):
        cpu_us = _cpu_us(costs, queues, rate)
        turn_us = cpu_us / _turns(costs, queues, rate)
        slowest, fastest = 0.0, min(cores * 1e6 / cpu_us, population * 1e6 / unhurried_us)
        for _ in range(HALVINGS):
            rate = (slowest + fastest) / 2
            core_us = _core_us(rate * cpu_us / 1e6 / cores, cores, turn_us, population)
            if rate * (unhurried_us + visits * core_us) > population * 1e6:
                fastest = rate
            else:
                slowest = rate
        for hop in costs.hops:
            waits_us = alone[hop.kind] + VISITS[hop.kind] * core_us
            queues[hop.kind] += DAMPING * (rate * waits_us / 1e6 - queues[hop.kind])
    return rate


def _core_us(used: float, cores: float, turn_us: float, population: int) -> float:
    """Return how long a turn waits for a core. The part `used` of all is in use; one request meets nobody."""
    if population == 1 or used <= 0:
        return 0.0
    return turn_us * math.pow(used, math.sqrt(2 * (cores + 1)) - 1) / (cores * max(1 - used, 1e-6))


def _turns(costs: Costs, queues: Mapping[str, float], rate: float) -> float:
    """Return the turns of all processes for a request, those around commit rounds included."""
    hops = sum(VISITS[hop.kind] / (1 + queues[hop.kind] / hop.processes) for hop in costs.hops)
    return hops + (ROUND_VISITS / _in_a_round(costs, rate) if costs.round_us else 0.0)


def _in_a_round(costs: Costs, rate: float) -> float:
    return max(rate * costs.round_us / 1e6, 1.0)


def _residence_us(hop: Hop, queue: float) -> float:
    """Return how long a request is at a hop: behind those that it finds, and for the turns that it shares."""
    return hop.request_us * (1 + queue / hop.processes) + VISITS[hop.kind] * hop.turn_us


def _commit_us(costs: Costs, rate: float) -> float:
    under_way = min(rate * costs.round_us / 1e6, 1.0)
    return costs.round_us * (1 + under_way / 2)


def _cpu_us(costs: Costs, queues: Mapping[str, float], rate: float) -> float:
    hops = sum(hop.per_request_us(queues[hop.kind]) for hop in costs.hops)
    return hops + costs.round_cpu_us / _in_a_round(costs, rate)


def fitted(points: Sequence[Point]) -> dict[str, Costs]:
    """Return the costs for both policies. Raises ModelError."""
    by_place = {(point["series"], point["x"]): point for point in points}
    try:
        alone, busy = by_place["os", 1], by_place["os", FITTED_MOST]
        durable = by_place["durable", 1]
    except KeyError as error:
        raise ModelError(
            f"{GROWTH.name} has no point {error} of connections: run make bench-growth"
        ) from error
    hops = [_hop(kind, alone, busy) for kind in ("processor", "handler", "log worker")]
    # Turns of the generator are not counted: alone it has one for each request, busy next to none.
    least = min(point["generator_us"] for point in points)
    hops.append(Hop("generator", least, max(alone["generator_us"] - least, 0.0)))
    served_us = sum(_residence_us(hop, 0.0) for hop in hops)
    costs = Costs(hops, max(alone["p50_us"] - served_us, 0.0) / HAND_OVERS)
    more_us = durable["cpu_us"]["log worker"] - alone["cpu_us"]["log worker"]
    round_cpu_us = more_us / durable["rounds"]
    return {"os": costs, "durable": replace(costs, round_us=durable["sync_us"], round_cpu_us=round_cpu_us)}


def _hop(kind: str, alone: Point, busy: Point) -> Hop:
    """Fit a line through two points: CPU of a request over turns of a request."""
    turns = alone["turns"][kind] - busy["turns"][kind]
    slope = max((alone["cpu_us"][kind] - busy["cpu_us"][kind]) / turns, 0.0) if turns > 0 else 0.0
    least = max(busy["cpu_us"][kind] - slope * busy["turns"][kind], 0.0)
    if not least:
        slope = busy["cpu_us"][kind] / busy["turns"][kind]
    visits = VISITS[kind]
    return Hop(kind, least, slope * alone["turns"][kind] / visits)


def comparison(points: Sequence[Point], cores: int) -> list[str]:
    """Return a table: each measured point beside its prediction, with the cores that others left.

    The model has no scheduler: where others took much of the cores, nothing is said of a prediction.
    """
    costs = fitted(points)
    lines = ["| connections | | cores left | measured/s | predicted/s | |", "|---:|---|---:|---:|---:|---:|"]
    for point in points:
        left = max(cores - point["others_cores"], 0.1)
        told = predict(costs[point["series"]], int(point["x"]), left).requests_per_s
        apart = 100 * (told / point["requests_per_s"] - 1)
        used = point["x"] == 1 or (point["series"] == "os" and point["x"] == FITTED_MOST)
        cells = (f"{left:.1f}", f"{point['requests_per_s']:,.0f}", f"{told:,.0f}")
        verdict = f"{apart:+.0f} %"
        if point["others_cores"] > OTHERS_MOST:
            verdict = f"others took {point['others_cores']:.1f}"
        verdict = f"{'fitted, ' if used else ''}{verdict}"
        lines.append(f"| {point['x']:,} | {point['series']} | {' | '.join(cells)} | {verdict} |")
    return lines


def workers(cores: int) -> dict[str, int]:
    """Return how a broker of its own on so many cores would be set up."""
    return {"processor": max(cores // 4, 1), "handler": max(cores // 4, 1), "log worker": max(cores // 8, 1)}


def larger(costs: Mapping[str, Costs], connections: int, machines: Sequence[int]) -> list[str]:
    """Return a table: rates on larger machines, whose clients are elsewhere."""
    lines = ["| cores | processes | os | limit | durable | limit |", "|---:|---|---:|---|---:|---|"]
    for cores in machines:
        numbers = workers(cores)
        cells = []
        for policy in ("os", "durable"):
            own = replace(costs[policy], hops=[hop for hop in costs[policy].hops if hop.kind != "generator"])
            here = own.with_processes(numbers)
            told = predict(here, connections, cores)
            cells.append(f"{told.requests_per_s:,.0f} | {limit(here, connections, cores)}")
        lines.append(f"| {cores} | {' + '.join(map(str, numbers.values()))} | {' | '.join(cells)} |")
    return lines


def hops(costs: Costs) -> list[str]:
    """Return a table of what the model knows."""
    lines = ["| hop | each request | each turn |", "|---|---:|---:|"]
    for hop in costs.hops:
        lines.append(f"| {hop.kind} | {hop.request_us:.1f} µs | {hop.turn_us:.1f} µs |")
    return [
        *lines,
        f"| a wake-up until it runs | | {costs.hand_over_us:.1f} µs |",
        f"| a commit round: time | | {costs.round_us:.0f} µs |",
        f"| a commit round: CPU | | {costs.round_cpu_us:.0f} µs |",
    ]
