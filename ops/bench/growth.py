"""`make bench-growth`: how the cost of a request grows with what a broker has to carry.

    python -m ops.bench.growth                       # all curves, a quarter of an hour on a quiet machine
    python -m ops.bench.growth --short               # fewer and smaller points, once each
    python -m ops.bench.growth --only 'partitions'   # the other curves stay as they were

The points of a curve take turns, round after round, and a point is the median of its rounds. They are
written to docs/growth.json. From that, `make bench-growth` lets ops.docs.charts draw the pictures of
docs/PERFORMANCE.md, and ops.docs.performance write its tables.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ops.bench import connections, device, frames, growth_file, point, run, scenarios
from ops.bench.brokers import MPBROKER_COMMAND, Broker, BrokerError, Mpbroker
from ops.bench.growth_file import LOADS
from ops.bench.point import Load, Point
from ops.bench.scenarios import LoadError

DESCRIPTORS_LEAST = 12_000
BUSY, FETCHERS = 64, 8
ACCEPTED_WITHIN_S = 300
# So much more than the largest log has to be free.
FREE_FACTOR = 1.3
FILL_BYTES = 900_000
POLICIES = {"durable": "group", "os": "os"}
BACKLOG = ("-o", "socket.listen.backlog.size=4096")
PROCESSES = "--processors 1 --handlers 2"


@dataclass(frozen=True)
class Scale:
    """How far the curves go, and how long a point is measured."""

    seconds: float
    rounds: int
    partitions: Sequence[int]
    connections: Sequence[int]
    groups: Sequence[int]
    log_gigabytes: Sequence[float]
    workers: Sequence[int]


NORMAL = Scale(
    seconds=1.25,
    rounds=3,
    partitions=(1, 10, 100, 1000, 10_000),
    connections=(1, 8, 64, 256, 1000, 4000, 10_000),
    groups=(1, 10, 100, 1000),
    log_gigabytes=(0, 1, 4, 12, 30),
    workers=(1, 2, 3, 4),
)
SHORT = Scale(
    seconds=1.0,
    rounds=1,
    partitions=(1, 10, 100, 1000),
    connections=(1, 8, 64, 256, 1000),
    groups=(1, 10, 100),
    log_gigabytes=(0, 1),
    workers=(1, 2, 4),
)


class Planned(NamedTuple):
    """A point to be measured: where it stands on the curve, and how it is measured."""

    x: float
    series: str
    take: Callable[[], Point]


Prepare = Callable[[ExitStack, Path, Scale], list[Planned]]


def start_broker(stack: ExitStack, directory: Path, policy: str, *, processes: str = PROCESSES) -> Mpbroker:
    """Start a broker; it stands still until it is measured, and is killed with the stack."""
    template = MPBROKER_COMMAND.replace(PROCESSES, processes)
    started = Mpbroker(
        directory, template=template, flags=("-o", f"log.flush.policy={POLICIES[policy]}", *BACKLOG)
    )
    stack.callback(started.kill)
    started.start()
    return started


@contextlib.contextmanager
def awake(broker: Broker) -> Iterator[None]:
    """Let a broker run that otherwise stands still."""
    broker.tree().resume()
    try:
        yield
    finally:
        broker.tree().pause()


def measuring(broker: Mpbroker, load: Load) -> Callable[[], Point]:
    """Return how to take a point while the broker runs and the others do not."""

    def take() -> Point:
        with awake(broker):
            return point.take(broker, load)

    return take


def send_until_accepted(broker: Broker, requests: Iterator[frames.Request]) -> None:
    """Send each until it is accepted: topics and coordinators that were just made are not ready at once."""
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


def over_partitions(stack: ExitStack, directory: Path, scale: Scale) -> list[Planned]:
    planned = []
    for policy in POLICIES:
        broker = start_broker(stack, directory / policy, policy)
        for count in scale.partitions:
            load = Load(small_produces(broker, f"p{count}", count), BUSY, scale.seconds, count)
            planned.append(Planned(count, policy, measuring(broker, load)))
        broker.tree().pause()
    return planned


def over_connections(stack: ExitStack, directory: Path, scale: Scale) -> list[Planned]:
    planned = []
    for policy in POLICIES:
        broker = start_broker(stack, directory / policy, policy)
        request = small_produces(broker, "busy", 1)
        broker.tree().pause()
        planned += [
            Planned(count, policy, measuring(broker, Load(request, count, scale.seconds)))
            for count in scale.connections
        ]
    return planned


def over_idle(stack: ExitStack, directory: Path, scale: Scale) -> list[Planned]:
    """One connection that works, among others that do not."""
    planned = []
    for policy in POLICIES:
        broker = start_broker(stack, directory / policy, policy)
        load = Load(small_produces(broker, "busy", 1), 1, scale.seconds)
        broker.tree().pause()

        def among(count: int, broker: Mpbroker = broker, load: Load = load) -> Point:
            with awake(broker), ExitStack() as idle:
                opened = connections.connect(broker, count - 1) if count > 1 else []
                for connection in opened:
                    idle.enter_context(connection)
                connections.exchange_once(opened)
                return point.take(broker, load)

        for count in scale.connections:
            planned.append(Planned(count, policy, partial(among, count)))
    return planned


def over_groups(stack: ExitStack, directory: Path, scale: Scale) -> list[Planned]:
    """Offset commits of groups without members, which are durable in any case."""
    broker = start_broker(stack, directory, "durable")
    scenarios.create_topic(broker, "groups", 1)
    send_until_accepted(
        broker, (frames.offset_commit("groups", number) for number in range(max(scale.groups)))
    )
    broker.tree().pause()
    request = frames.offset_commit("groups")
    return [
        Planned(count, "durable", measuring(broker, Load(request, BUSY, scale.seconds, count)))
        for count in scale.groups
    ]


def fill(broker: Broker, topic: str, gigabytes: float) -> None:
    """Write so much to partition 0."""
    request = frames.produce(topic, records=1, value_bytes=FILL_BYTES)
    send_until_accepted(broker, (request for _ in range(int(gigabytes * 1e9) // FILL_BYTES)))


def over_log_size(stack: ExitStack, directory: Path, scale: Scale) -> list[Planned]:
    """Small produces to a partition that has grown so much, and fetches of its first large batch."""
    most, free = max(scale.log_gigabytes), shutil.disk_usage(directory).free / 1e9
    if free < FREE_FACTOR * most:
        raise BrokerError(
            f"{directory} has {free:.0f} GB free and needs {FREE_FACTOR * most:.0f}: give --gigabytes"
        )
    broker = start_broker(stack, directory, "durable")
    produce = Load(small_produces(broker, "log", 1), BUSY, scale.seconds)
    fetch = Load(frames.fetch("log", offset=1, bytes_max=FILL_BYTES), FETCHERS, scale.seconds)
    fill(broker, "log", FILL_BYTES / 1e9)
    grown = 0.0

    def take(size: float, load: Load) -> Point:
        nonlocal grown
        fill(broker, "log", size - grown)
        grown = size
        return point.take(broker, load)

    return [
        Planned(size, series, partial(take, size, load))
        for size in scale.log_gigabytes
        for series, load in (("durable", produce), ("fetch", fetch))
    ]


def over_workers(kind: str) -> Prepare:
    """Return the curve over the number of one kind of process, over 64 partitions."""

    def prepare(stack: ExitStack, directory: Path, scale: Scale) -> list[Planned]:
        planned = []
        for policy in POLICIES:
            for count in scale.workers:
                numbers = {"processors": 1, "handlers": 2, "log-workers": 1, kind: count}
                flags = " ".join(f"--{name} {number}" for name, number in numbers.items())
                broker = start_broker(stack, directory / f"{policy}-{count}", policy, processes=flags)
                load = Load(small_produces(broker, "work", BUSY), BUSY, scale.seconds, BUSY)
                broker.tree().pause()
                planned.append(Planned(count, policy, measuring(broker, load)))
        return planned

    return prepare


def over_loads(stack: ExitStack, directory: Path, scale: Scale) -> list[Planned]:
    """Hops of common requests; their system calls are counted in runs of their own, since that takes time."""
    planned = []
    for policy in POLICIES:
        broker = start_broker(stack, directory / policy, policy)
        for number, name in enumerate(LOADS):
            scenario = next(known for known in scenarios.SCENARIOS if known.name == name)
            request = scenarios.prepare(scenario, broker, name)
            load = Load(request, scenario.connections, scale.seconds)

            def counted(broker: Mpbroker = broker, load: Load = load) -> Point:
                with awake(broker):
                    calls = point.system_calls(broker, load)
                    return point.take(broker, load) | {"system_calls": calls}

            planned.append(Planned(number, policy, counted))
        broker.tree().pause()
    return planned


# Those whose points change what is measured cannot take turns.
IN_ORDER = ("log-size",)
CURVES: dict[str, Prepare] = {
    "partitions": over_partitions,
    "connections": over_connections,
    "idle": over_idle,
    "groups": over_groups,
    "log-size": over_log_size,
    "processors": over_workers("processors"),
    "handlers": over_workers("handlers"),
    "log-workers": over_workers("log-workers"),
    "hops": over_loads,
}


def order(name: str, points: int, rounds: int) -> list[tuple[int, int]]:
    """Return the number of the point and of its turn, in the order in which they are measured."""
    turns = [(number, turn) for turn in range(rounds) for number in range(points)]
    return sorted(turns) if name in IN_ORDER else turns


def measure(name: str, directory: Path, scale: Scale) -> list[Point]:
    """Return the points of a curve, series by series, each with its place and the load of the machine."""
    with ExitStack() as stack:
        run.progress.print(f"[dim]{name}: preparing")
        planned = CURVES[name](stack, directory, scale)
        rounds: list[list[Point]] = [[] for _ in planned]
        for number, turn in order(name, len(planned), scale.rounds):
            x, series, take = planned[number]
            measured = take()
            rounds[number].append(measured)
            run.progress.print(
                f"[dim]{name} {x:g} {series}, turn {turn + 1}: "
                f"{measured['requests_per_s']:,.0f}/s, p99 {measured['p99_us']:,.0f} us"
            )
    return [
        {"x": x, "series": series} | point.merged(points)
        for (x, series, _), points in zip(planned, rounds, strict=True)
    ]


def bare_device(directory: Path) -> list[dict[str, float]]:
    return [
        {"bytes": size, "us": round(device.measure(directory, size, 0.5).p50_us, 1)} for size in device.SIZES
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="fewer and smaller points, once each")
    parser.add_argument("--only", default="", metavar="REGEX", help=f"of {', '.join(CURVES)}")
    parser.add_argument(
        "--rounds", type=int, help=f"turns of each point ({NORMAL.rounds}; {SHORT.rounds} if short)"
    )
    parser.add_argument("--gigabytes", type=float, help="of the largest log")
    parser.add_argument("--directory", type=Path, help="where to keep the brokers' data (TMPDIR)")
    return parser.parse_args()


def scale_of(chosen: argparse.Namespace) -> Scale:
    scale = SHORT if chosen.short else NORMAL
    if chosen.gigabytes is not None:
        sizes = [size for size in scale.log_gigabytes if size < chosen.gigabytes]
        scale = replace(scale, log_gigabytes=[*sizes, chosen.gigabytes])
    return replace(scale, rounds=chosen.rounds or scale.rounds)


def main() -> int:
    chosen = arguments()
    wanted = [name for name in CURVES if re.search(chosen.only, name)]
    if not wanted:
        print(f"bench-growth: no curve matches {chosen.only!r}: {', '.join(CURVES)}", file=sys.stderr)
        return 2
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < DESCRIPTORS_LEAST:
        print(
            f"bench-growth: {DESCRIPTORS_LEAST} descriptors are needed, `ulimit -Hn` allows {hard}",
            file=sys.stderr,
        )
        return 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    scale = scale_of(chosen)
    curves = dict(growth_file.read()) if growth_file.GROWTH.exists() else {}
    try:
        scenarios.build_generator()
        for name in wanted:
            with run.data_directory(chosen.directory) as directory:
                before = point.load_average()
                points = measure(name, directory, scale)
                curves[name] = {
                    "circumstances": f"{run.circumstances(directory)}; load average {before:.1f}; "
                    f"{scale.rounds} turns of {scale.seconds:g} s",
                    "cores": os.cpu_count() or 1,
                    "device": bare_device(directory),
                    "points": points,
                }
            growth_file.write(curves)
    except (BrokerError, LoadError, OSError) as error:
        print(f"bench-growth: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
