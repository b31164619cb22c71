"""`make bench-growth`: how the cost of a request grows with the load of a broker.

    python -m ops.bench.growth                       # all curves, a quarter of an hour on a quiet machine
    python -m ops.bench.growth --only 'partitions'   # the other curves stay as they were

The points of a curve take turns, round after round, and a point is the median of its rounds. They go to
docs/growth.json, from which ops.docs.figures makes the tables of docs/PERFORMANCE.md. Except for system
calls, counts begin after the generator's warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ops.bench import beside, frames, run, scenarios
from ops.bench.brokers import MPBROKER_COMMAND, Broker, BrokerError, Mpbroker
from ops.bench.growth_curves import LOADS, Point, read, write
from ops.bench.hops import KINDS, Hops, Sample, difference
from ops.bench.scenarios import LoadError
from ops.docs import figures

DESCRIPTORS_LEAST = 12_000
BUSY, FETCHERS = 64, 8
ACCEPTED_WITHIN_S = 300
# So much more than the largest log has to be free.
FREE_FACTOR = 1.3
FILL_BYTES = 900_000
POLICIES = {"durable": "group", "os": "os"}
BACKLOG = ("-o", "socket.listen.backlog.size=4096")
PROCESSES = "--processors 1 --handlers 2"
PERF = ("perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter")
NEVER_RAN = "<not counted>"
SECONDS, ROUNDS = 1.25, 3
# Where the points of each curve are.
PLACES: Mapping[str, Sequence[int]] = {
    "partitions": (1, 10, 100, 1000, 10_000),
    "connections": (1, 8, 64, 256, 1000, 4000, 10_000),
    "groups": (1, 10, 100, 1000),
    "log-size": (0, 1, 4, 12, 30),
    "workers": (1, 2, 3, 4),
}


class Planned(NamedTuple):
    """A point to be measured: where it is on the curve, and how it is measured."""

    x: float
    series: str
    take: Callable[[], Point]


Prepare = Callable[[ExitStack, Path], list[Planned]]


# ---- a point


@dataclass(frozen=True)
class Load:
    """A load of produces to `partitions` partitions in turn, or of commits of that many groups in turn."""

    request: frames.Request
    connections: int
    partitions: int = 1

    def run(self, broker: Broker, at_edges: Callable[[int], None] | None = None) -> scenarios.Result:
        counts = (self.connections, SECONDS)
        return scenarios.run_load(
            broker, self.request, *counts, partitions=self.partitions, at_edges=at_edges
        )


def take(broker: Mpbroker, load: Load) -> Point:
    """Run the load once; return its rate and latency, and each kind of process's work per request.

    Raises LoadError.
    """
    hops, edges = Hops(broker), list[tuple[int, Sample]]()
    result = load.run(broker, lambda _: edges.append((time.monotonic_ns(), hops.sample())))
    (began_ns, before), (ended_ns, after) = edges
    work = difference(after, before)
    requests = result.requests_per_s * (ended_ns - began_ns) / 1e9
    return {
        **{name: getattr(result, name) for name in ("requests_per_s", "p50_us", "p99_us")},
        "cpu_us": {kind: work[kind].cpu_ns / 1e3 / requests for kind in KINDS},
        "sleeps": {kind: work[kind].sleeps / requests for kind in KINDS},
        "turns": {kind: work[kind].turns / requests for kind in KINDS},
    }


def merged(points: Sequence[Point]) -> Point:
    return {
        name: merged([point[name] for point in points])
        if isinstance(value, Mapping)
        else float(f"{median(point[name] for point in points):.4g}")
        for name, value in points[0].items()
    }


@contextlib.contextmanager
def _counting(pids: Sequence[int]) -> Iterator[list[int]]:
    """Count the system calls of processes while the body runs; the list has the count afterwards.

    Raises LoadError if the kernel does not let perf count.
    """
    orders, acknowledged = os.pipe(), os.pipe()
    control = f"fd:{orders[0]},{acknowledged[1]}"
    command = [*PERF, "--delay", "-1", "--control", control, "-p", ",".join(map(str, pids))]
    passed, counts = (orders[0], acknowledged[1]), list[int]()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=passed) as perf:
        for end in passed:
            os.close(end)
        try:
            os.write(orders[1], b"enable\n")
            # Empty where perf has died; its output is in the error below.
            os.read(acknowledged[0], 16)
            yield counts
        finally:
            perf.send_signal(signal.SIGINT)
            output = perf.communicate()[1].strip()
            for end in (orders[1], acknowledged[0]):
                os.close(end)
    figure = output.rpartition("\n")[2].split(",")[0]
    if figure != NEVER_RAN and not figure.isdigit():
        raise LoadError(f"perf does not count system calls: {output}")
    counts.append(0 if figure == NEVER_RAN else int(figure))


def system_calls(broker: Mpbroker, load: Load) -> dict[str, float]:
    """Return each kind of process's system calls per request, as perf counts them, warm-up included.

    Raises LoadError without perf, and if the kernel does not let it count.
    """
    if shutil.which(PERF[0]) is None:
        raise LoadError("system calls are counted by perf, which is not there: install linux-perf")
    hops = Hops(broker)
    members = hops.members()
    before = hops.sample()["processor"]
    with ExitStack() as stack:
        counts = {
            kind: stack.enter_context(_counting([pid for one, pid in members if one == kind]))
            for kind in KINDS
        }
        load.run(broker)
    requests = (hops.sample()["processor"] - before).responses
    return {kind: float(f"{count[0] / requests:.3g}") for kind, count in counts.items()}


# ---- the curves


def start_broker(stack: ExitStack, directory: Path, policy: str, *, processes: str = PROCESSES) -> Mpbroker:
    """Return a started broker, which is paused until it is measured. The stack kills it."""
    template = MPBROKER_COMMAND.replace(PROCESSES, processes)
    flags = ("-o", f"log.flush.policy={POLICIES[policy]}", *BACKLOG)
    started = Mpbroker(directory, template=template, flags=flags)
    stack.callback(started.kill)
    started.start()
    return started


def measuring(broker: Mpbroker, load: Load) -> Callable[[], Point]:
    """Return a function that resumes this broker, measures the load on it and pauses it again."""

    def taken() -> Point:
        with broker.awake():
            return take(broker, load)

    return taken


def send_until_accepted(broker: Broker, requests: Iterator[frames.Request]) -> None:
    """Send each request until it is accepted: new topics and coordinators are not ready at once."""
    with frames.connected(broker.address, timeout_s=ACCEPTED_WITHIN_S) as connection:
        for request in requests:
            for _ in scenarios.attempts(ACCEPTED_WITHIN_S):
                if not frames.exchange(connection, request)[0]:
                    break


def small_produces(broker: Broker, topic: str, partitions: int) -> frames.Request:
    """Make the topic, write to each partition once, and return the request of the load."""
    scenarios.create_topic(broker, topic, partitions, timeout_s=ACCEPTED_WITHIN_S)
    request = frames.produce(topic, records=1, value_bytes=100)
    send_until_accepted(broker, (request.for_partition(number) for number in range(partitions)))
    return request


def over_partitions(stack: ExitStack, directory: Path) -> list[Planned]:
    planned = []
    for policy in POLICIES:
        broker = start_broker(stack, directory / policy, policy)
        for count in PLACES["partitions"]:
            load = Load(small_produces(broker, f"p{count}", count), BUSY, count)
            planned.append(Planned(count, policy, measuring(broker, load)))
        broker.tree().pause()
    return planned


def over_connections(*, busy: bool) -> Prepare:
    """Return measurements for growing numbers of connections: all send requests, or if not `busy` one."""

    def prepare(stack: ExitStack, directory: Path) -> list[Planned]:
        planned = []
        for policy in POLICIES:
            broker = start_broker(stack, directory / policy, policy)
            request = small_produces(broker, "busy", 1)
            broker.tree().pause()

            def among(count: int, broker: Mpbroker = broker, request: frames.Request = request) -> Point:
                idle = 0 if busy else count - 1
                with broker.awake(), beside.idle_connections(broker, idle):
                    return take(broker, Load(request, count - idle))

            planned += [Planned(count, policy, partial(among, count)) for count in PLACES["connections"]]
        return planned

    return prepare


def over_groups(stack: ExitStack, directory: Path) -> list[Planned]:
    """Return the curve over the number of groups that get offset commits, which are always durable."""
    broker = start_broker(stack, directory, "durable")
    scenarios.create_topic(broker, "groups", 1)
    counts = PLACES["groups"]
    send_until_accepted(broker, (frames.offset_commit("groups", number) for number in range(max(counts))))
    broker.tree().pause()
    request = frames.offset_commit("groups")
    loads = [Load(request, BUSY, count) for count in counts]
    return [Planned(load.partitions, "durable", measuring(broker, load)) for load in loads]


def fill(broker: Broker, topic: str, gigabytes: float) -> None:
    request = frames.produce(topic, records=1, value_bytes=FILL_BYTES)
    send_until_accepted(broker, (request for _ in range(int(gigabytes * 1e9) // FILL_BYTES)))


def over_log_size(stack: ExitStack, directory: Path) -> list[Planned]:
    """Return two curves over a partition's size: small produces, and fetches of the first large batch."""
    sizes, free = PLACES["log-size"], shutil.disk_usage(directory).free / 1e9
    if free < FREE_FACTOR * max(sizes):
        needs = FREE_FACTOR * max(sizes)
        raise BrokerError(
            f"{directory} has {free:.0f} GB free and needs {needs:.0f}: choose another --directory"
        )
    broker = start_broker(stack, directory, "durable")
    produce = Load(small_produces(broker, "log", 1), BUSY)
    fetch = Load(frames.fetch("log", offset=1, bytes_max=FILL_BYTES), FETCHERS)
    fill(broker, "log", FILL_BYTES / 1e9)
    grown = 0.0

    def grow(size: float, load: Load) -> Point:
        nonlocal grown
        fill(broker, "log", size - grown)
        grown = size
        return take(broker, load)

    return [
        Planned(size, series, partial(grow, size, load))
        for size in sizes
        for series, load in (("durable", produce), ("fetch", fetch))
    ]


def over_workers(kind: str) -> Prepare:
    """Return the curve over the number of processes of a kind. The load produces to 64 partitions."""

    def prepare(stack: ExitStack, directory: Path) -> list[Planned]:
        planned = []
        for policy in POLICIES:
            for count in PLACES["workers"]:
                numbers = {"processors": 1, "handlers": 2, "log-workers": 1, kind: count}
                flags = " ".join(f"--{name} {number}" for name, number in numbers.items())
                broker = start_broker(stack, directory / f"{policy}-{count}", policy, processes=flags)
                load = Load(small_produces(broker, "work", BUSY), BUSY, BUSY)
                broker.tree().pause()
                planned.append(Planned(count, policy, measuring(broker, load)))
        return planned

    return prepare


def over_loads(stack: ExitStack, directory: Path) -> list[Planned]:
    """Return a planned point for each flush policy and load. Its figures include system calls."""
    planned = []
    for policy in POLICIES:
        broker = start_broker(stack, directory / policy, policy)
        for number, name in enumerate(LOADS):
            scenario = next(known for known in scenarios.SCENARIOS if known.name == name)
            request = scenarios.prepare(scenario, broker, name)
            load = Load(request, scenario.connections)

            def counted(broker: Mpbroker = broker, load: Load = load) -> Point:
                with broker.awake():
                    calls = system_calls(broker, load)
                    return take(broker, load) | {"system_calls": calls}

            planned.append(Planned(number, policy, counted))
        broker.tree().pause()
    return planned


CURVES: dict[str, Prepare] = {
    "partitions": over_partitions,
    "connections": over_connections(busy=True),
    "idle": over_connections(busy=False),
    "groups": over_groups,
    "log-size": over_log_size,
    "processors": over_workers("processors"),
    "handlers": over_workers("handlers"),
    "log-workers": over_workers("log-workers"),
    "hops": over_loads,
}


def measure(name: str, directory: Path) -> list[Point]:
    """Measure a curve. Return its points: each has x, series, and the median of each figure over rounds."""
    with ExitStack() as stack:
        run.progress.print(f"[dim]{name}: preparing")
        planned = CURVES[name](stack, directory)
        rounds: list[list[Point]] = [[] for _ in planned]
        order = [(number, turn) for turn in range(ROUNDS) for number in range(len(planned))]
        # Its points change the broker, so they cannot take turns.
        for number, turn in sorted(order) if name == "log-size" else order:
            x, series, taken = planned[number]
            measured = taken()
            rounds[number].append(measured)
            run.progress.print(
                f"[dim]{name} {x:g} {series}, turn {turn + 1}: "
                f"{measured['requests_per_s']:,.0f}/s, p99 {measured['p99_us']:,.0f} us"
            )
    return [
        {"x": x, "series": series} | merged(points)
        for (x, series, _), points in zip(planned, rounds, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="REGEX", help=f"of {', '.join(CURVES)}")
    parser.add_argument("--directory", type=Path, help="where to keep the brokers' data (TMPDIR)")
    chosen = parser.parse_args()
    wanted = [name for name in CURVES if re.search(chosen.only, name)]
    if not wanted:
        parser.error(f"no curve matches {chosen.only!r}: {', '.join(CURVES)}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < DESCRIPTORS_LEAST:
        parser.error(f"{DESCRIPTORS_LEAST} descriptors are needed, `ulimit -Hn` allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    curves = dict(read())
    try:
        scenarios.build_generator()
        for name in wanted:
            with run.data_directory(chosen.directory) as directory:
                before, points = os.getloadavg()[0], measure(name, directory)
                curves[name] = {
                    "circumstances": f"{run.circumstances(directory)}; load average {before:.1f}; "
                    f"{ROUNDS} turns of {SECONDS:g} s",
                    "points": points,
                }
            write(curves)
    except (BrokerError, LoadError, OSError) as error:
        print(f"bench-growth: {error}", file=sys.stderr)
        return 1
    figures.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
