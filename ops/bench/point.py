"""One measured point of a curve: rate, latencies, and what each kind of process did for a request.

What is counted is counted between the moments at which the load generator begins and ends to measure. What
others took of the cores meanwhile belongs to the point: on a shared machine it explains more than the curve.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ops.bench import frames, scenarios
from ops.bench.brokers import Mpbroker
from ops.bench.hops import KINDS, NS_PER_TICK, Hops, Look, difference
from ops.bench.scenarios import Result

PERF = ("perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter")
NEVER_RAN = "<not counted>"

# Numbers by name, or by name and kind of process.
Point = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """What the generator sends: `partitions` of a topic, or groups, one after the other."""

    request: frames.Request
    connections: int
    seconds: float
    partitions: int = 1


@dataclass
class _Edges:
    """Looks taken when the measuring begins and when it ends."""

    hops: Hops
    at_ns: list[int] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    generator_ns: list[int] = field(default_factory=list)
    busy_ns: list[int] = field(default_factory=list)

    def take(self, generator: int) -> None:
        self.at_ns.append(time.monotonic_ns())
        self.looks.append(self.hops.look())
        self.generator_ns.append(_ran_ns(generator))
        self.busy_ns.append(_busy_ns())


def _ran_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _busy_ns() -> int:
    """Return the time that all cores were not idle, the host's share included."""
    user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    return NS_PER_TICK * sum(map(int, (user, nice, system, *interrupts)))


def take(broker: Mpbroker, load: Load) -> Point:
    """Run the load once. Raises LoadError."""
    edges = _Edges(Hops(broker))
    result = scenarios.run_load(
        broker,
        load.request,
        load.connections,
        load.seconds,
        partitions=load.partitions,
        at_edges=edges.take,
    )
    return _point(result, edges)


def _point(result: Result, edges: _Edges) -> Point:
    took_ns, busy_ns, generator_ns = (
        last - first for first, last in (edges.at_ns, edges.busy_ns, edges.generator_ns)
    )
    work = difference(edges.looks[1], edges.looks[0])
    requests = result.requests_per_s * took_ns / 1e9
    own_ns = sum(one.cpu_ns for one in work.values()) + generator_ns
    log = work["log worker"]
    return {
        "requests_per_s": result.requests_per_s,
        "mb_per_s": result.mb_per_s,
        "p50_us": result.p50_us,
        "p99_us": result.p99_us,
        "cpu_us": {kind: work[kind].cpu_ns / 1e3 / requests for kind in KINDS},
        "system_us": {kind: work[kind].system_ns / 1e3 / requests for kind in KINDS},
        "sleeps": {kind: work[kind].sleeps / requests for kind in KINDS},
        "turns": {kind: work[kind].turns / requests for kind in KINDS},
        "socket_calls": (work["processor"].reads + work["processor"].writes) / requests,
        "rounds": log.rounds / requests,
        "sync_us": log.sync_ns / 1e3 / log.rounds if log.rounds else 0.0,
        "generator_us": generator_ns / 1e3 / requests,
        "others_cores": max(busy_ns - own_ns, 0) / took_ns,
    }


def merged(points: Sequence[Point]) -> Point:
    """Return the medians of the same point, taken several times."""
    out: Point = {}
    for name, value in points[0].items():
        if isinstance(value, Mapping):
            out[name] = merged([point[name] for point in points])
        else:
            out[name] = float(f"{median(point[name] for point in points):.4g}")
    return out


@contextlib.contextmanager
def _counting(pids: Sequence[int]) -> Iterator[list[int]]:
    """Count the system calls of processes while the body runs; the count is there when it has ended.

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
            # Empty where perf has died; what it says is told below.
            os.read(acknowledged[0], 16)
            yield counts
        finally:
            perf.send_signal(signal.SIGINT)
            said = perf.communicate()[1].strip()
            for end in (orders[1], acknowledged[0]):
                os.close(end)
    figure = said.rpartition("\n")[2].split(",")[0]
    if figure != NEVER_RAN and not figure.isdigit():
        raise scenarios.LoadError(f"perf does not count system calls: {said}")
    counts.append(0 if figure == NEVER_RAN else int(figure))


def system_calls(broker: Mpbroker, load: Load) -> dict[str, float]:
    """Return the system calls of each kind of process for a request, warm-up included, as perf counts them.

    Raises LoadError without perf, and if the kernel does not let it count.
    """
    if shutil.which(PERF[0]) is None:
        raise scenarios.LoadError("system calls are counted by perf, which is not there: install linux-perf")
    hops = Hops(broker)
    members = hops.members()
    before = hops.look()["processor"]
    with ExitStack() as stack:
        counts = {
            kind: stack.enter_context(_counting([pid for one, pid in members if one == kind]))
            for kind in KINDS
        }
        scenarios.run_load(broker, load.request, load.connections, load.seconds, partitions=load.partitions)
    requests = (hops.look()["processor"] - before).responses
    return {kind: float(f"{count[0] / requests:.3g}") for kind, count in counts.items()}


def load_average() -> float:
    return os.getloadavg()[0]
