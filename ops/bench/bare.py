"""`make bench-bare`: small produces on mpbroker, on Apache Kafka, and on a server that only answers.

    python -m ops.bench.bare
    python -m ops.bench.bare --connections 64 --rounds 5

The bare server (native/bare.c) reads a request, looks at nothing but its size, and writes an answer as long
as a broker's. It appends, checks and hands over nothing. What it takes is the kernel's share and the
generator's share of the machine: no broker with these sockets can be faster. Where it is R times as fast as
Kafka, a bound above R cannot be met on this machine.
"""

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ops.bench import frames, run, scenarios
from ops.bench.brokers import Broker, BrokerError
from ops.bench.maven import MissingToolError
from ops.bench.scenarios import LoadError, Result

CONNECTIONS = (1, 8, 64, 256)
TOPIC = "bare"
# What a broker answers to one such produce: version 3, one topic, one partition.
RESPONSE_BYTES = 4 + 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2 + 8 + 8 + 4


@dataclass
class Bare(Broker):
    """The server of native/bare.c, started and stopped as brokers are."""

    name = "bare server"

    def command(self) -> Sequence[str]:
        return [str(scenarios.compiled("bare")), str(self.port), str(RESPONSE_BYTES)]

    def _wait_ready(self, deadline: float) -> None:
        """Wait until it listens: it knows no ApiVersions."""
        for _ in scenarios.attempts(deadline - time.monotonic()):
            if "ready\n" in self.output():
                return
            if self.process is not None and self.process.poll() is not None:
                raise BrokerError(f"{self.name} exited at its start:\n{self.output()}")


@dataclass(frozen=True)
class Row:
    """The rounds of each contender with so many connections, in turns."""

    connections: int
    bare: Sequence[Result]
    ours: Sequence[Result]
    kafka: Sequence[Result]

    def ratio(self, of: str, to: str, figure: str = "requests_per_s") -> float:
        """Return the median of the ratios of its rounds."""
        pairs = zip(getattr(self, of), getattr(self, to), strict=True)
        found: float = median(getattr(one, figure) / getattr(other, figure) for one, other in pairs)
        return found


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table: rates and CPU of the bare server and of mpbroker as parts of Kafka's."""
    out = [
        "| connections | bare : Kafka | mpbroker : Kafka | mpbroker : bare "
        "| CPU, bare : Kafka | CPU, mpbroker : Kafka |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        rates = (row.ratio("bare", "kafka"), row.ratio("ours", "kafka"), row.ratio("ours", "bare"))
        cpu = (row.ratio("bare", "kafka", "broker_cpu_us"), row.ratio("ours", "kafka", "broker_cpu_us"))
        out.append(f"| {row.connections} | {' | '.join(f'{one:.2f}' for one in (*rates, *cpu))} |")
    return out


def measure(
    field_of: Sequence[run.Contender], connections: int, seconds: float, rounds: int
) -> list[list[Result]]:
    """Let the contenders take the load in turns; return the rounds of each."""
    request = frames.produce(TOPIC, records=1, value_bytes=100)
    found: list[list[Result]] = [[] for _ in field_of]
    for _ in range(rounds):
        for contender, results in zip(field_of, found, strict=True):
            with run.awake(contender) as broker:
                result = scenarios.run_load(broker, request, connections, seconds)
            results.append(result)
            run.progress.print(
                f"[dim]{connections} connections  {contender.title}: "
                f"{result.requests_per_s:,.0f} requests/s, {result.broker_cpu_us:.1f} us of CPU each"
            )
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, nargs="+", default=CONNECTIONS, metavar="N")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    parser.add_argument("--directory", type=Path, help="where to keep the brokers' data (TMPDIR)")
    chosen = parser.parse_args()
    if chosen.seconds <= 0 or chosen.rounds < 1 or min(chosen.connections) < 1:
        parser.error("--connections, --seconds and --rounds must be positive")
    return chosen


def run_all(chosen: argparse.Namespace) -> list[Row]:
    scenarios.build_generator()
    with run.data_directory(chosen.directory) as directory, contextlib.ExitStack() as stack:
        bare = run.Contender("bare server", Bare(directory / "bare"), 0)
        brokers = [one for one in run.contenders(directory) if not one.title.endswith("durable")]
        stack.callback(bare.broker.kill)
        bare.broker.start()
        bare.broker.tree().pause()
        for contender in brokers:
            stack.callback(contender.broker.kill)
            run.start(contender)
            with run.awake(contender) as broker:
                scenarios.create_topic(broker, TOPIC)
        rows = [
            Row(number, *measure([bare, *brokers], number, chosen.seconds, chosen.rounds))
            for number in chosen.connections
        ]
        print(f"{run.circumstances(directory)}; {chosen.rounds} rounds of {chosen.seconds:g} s\n")
        return rows


def main() -> int:
    try:
        rows = run_all(arguments())
    except (BrokerError, LoadError, MissingToolError, OSError, subprocess.SubprocessError) as error:
        print(f"bench-bare: {error}", file=sys.stderr)
        return 1
    print(*table(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
