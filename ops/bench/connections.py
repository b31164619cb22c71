"""What idle connections cost: memory and CPU of ten thousand, and what they take from those that work.

    python -m ops.bench.connections [--idle 10000] [--active 64] [--seconds 2]

One processor, two handlers. Memory is the tree's proportional set size, so without what the kernel keeps per
socket; each idle connection has made one request before. The two loads, alone and among the idle, take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import socket
import sys
import tempfile
from pathlib import Path
from statistics import median

from ops.bench import frames, scenarios
from ops.bench.brokers import Broker, Mpbroker, running
from ops.bench.scenarios import Scenario

IDLE_BYTES_MAX = 12 << 10
IDLE_CPU_PERCENT_MAX = 1.0
ACTIVE_SHARE_MIN = 0.9
SETUPS_PER_S_MIN = 8_000
SETUPS_AT_A_TIME = 8
FLAGS = ("-o", "log.flush.policy=os", "-o", "socket.listen.backlog.size=4096")
# Descriptors that either side needs besides its connections.
SPARE_DESCRIPTORS = 500


def connect(broker: Broker, count: int) -> list[socket.socket]:
    found = [socket.create_connection(broker.address, timeout=30) for _ in range(count)]
    # The last one is served when all are: one processor takes them in order.
    frames.exchange(found[-1], frames.api_versions())
    return found


def exchange_once(connections: list[socket.socket]) -> None:
    """One request of each, so that they have all had buffers."""
    for connection in connections:
        frames.exchange(connection, frames.api_versions())


def measure(broker: Broker, options: argparse.Namespace) -> bool:
    """Prints the figures; whether they are as they should be."""
    scenario = Scenario("active", "produce", 100, options.active)
    request = scenarios.prepare(scenario, broker, "bench-connections")
    setting_up = scenarios.run_load(
        broker, frames.api_versions(), SETUPS_AT_A_TIME, options.seconds, reconnect=True
    )
    alone, among = [], []
    bytes_each = cpu_percent = 0.0
    for _ in range(options.rounds):
        alone.append(scenarios.run_load(broker, request, options.active, options.seconds).requests_per_s)
        before = broker.tree().pss_bytes()
        idle = connect(broker, options.idle)
        with contextlib.ExitStack() as stack:
            for connection in idle:
                stack.enter_context(connection)
            exchange_once(idle)
            bytes_each = max(bytes_each, (broker.tree().pss_bytes() - before) / options.idle)
            cpu_percent = broker.tree().idle_cpu_percent(options.seconds)
            busy = scenarios.run_load(broker, request, options.active, options.seconds)
            among.append(busy.requests_per_s)
    share = median(among) / median(alone)
    print(f"{options.idle} idle connections: {bytes_each / 1024:.1f} KiB each, {cpu_percent:.2f} % of a CPU")
    print(f"set up: {setting_up.requests_per_s:.0f} a second, {SETUPS_AT_A_TIME} at a time")
    print(f"{options.active} active: {median(alone):.0f} requests/s alone, {median(among):.0f} among them")
    print(f"that is {100 * share:.0f} %")
    return (
        bytes_each < IDLE_BYTES_MAX
        and cpu_percent < IDLE_CPU_PERCENT_MAX
        and share >= ACTIVE_SHARE_MIN
        and setting_up.requests_per_s >= SETUPS_PER_S_MIN
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--active", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--directory", type=Path, help="where to keep the broker's data (TMPDIR)")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = options.idle + options.active + SPARE_DESCRIPTORS
    if needed > hard:
        print(f"{options.idle} connections need {needed} descriptors, `ulimit -Hn` allows {hard}")
        return 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    scenarios.build_generator()
    with (
        tempfile.TemporaryDirectory(dir=options.directory) as directory,
        running(Mpbroker(Path(directory), flags=FLAGS)) as broker,
    ):
        return 0 if measure(broker, options) else 1


if __name__ == "__main__":
    sys.exit(main())
