"""`make bench` and `make bench-kafka`: mpbroker's speed and size as one table, with Apache Kafka's.

    python -m ops.bench.run               # mpbroker, durable (the default) and with log.flush.policy=os
    python -m ops.bench.run --kafka       # and Apache Kafka, which does not sync by default
    python -m ops.bench.run --only 'produce-100B' --seconds 2 --rounds 1 --json figures.json

All brokers are started first, but only the one that is measured runs: SIGSTOP pauses the others. Within a
scenario the brokers take turns, round after round, so that a machine that slows down slows all of them.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil
from rich.console import Console
from rich.table import Table

from ops.bench import frames, scenarios
from ops.bench.brokers import MPBROKER_COMMAND, Broker, BrokerError, Kafka, Mpbroker
from ops.bench.scenarios import SCENARIOS, Door, LoadError, Result, Scenario
from ops.setup.maven import MissingToolError

KAFKA_WARMUP_S = 20.0
# A broker that is paused while others are measured must not be thrown out of its own cluster of one.
KAFKA_PATIENCE = ("broker.session.timeout.ms=3600000",)
WARMUP_CONNECTIONS = (1, 8, 64)
IDLE_SETTLE_S = 2.0
IDLE_S = 8.0

WIDTH = 142
YARDSTICK = "Kafka"
# Heading, field of a result, and how it is shown.
FIGURES = (
    ("requests/s", "requests_per_s", "{:,.0f}"),
    ("p50 µs", "p50_us", "{:,.0f}"),
    ("p99 µs", "p99_us", "{:,.0f}"),
    ("p99.9 µs", "p999_us", "{:,.0f}"),
    ("CPU µs/req", "broker_cpu_us", "{:,.1f}"),
    ("MB/s", "mb_per_s", "{:,.0f}"),
)
RATIOS = (("rate/Kafka", "requests_per_s"), ("p99/Kafka", "p99_us"), ("CPU/Kafka", "broker_cpu_us"))

progress = Console(stderr=True)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Column:
    """All that was measured on one broker."""

    title: str
    ready_s: float
    pss_bytes: int
    idle_cpu_percent: float
    results: Mapping[str, Result]


@dataclass
class Contender:
    """A broker in the run, with the measurements so far."""

    title: str
    broker: Broker
    warmup_s: float
    pss_bytes: int = 0
    idle_cpu_percent: float = 0.0
    rounds: dict[str, list[Result]] = field(default_factory=dict)

    def column(self) -> Column:
        results = {name: scenarios.merged(rounds) for name, rounds in self.rounds.items()}
        return Column(self.title, self.broker.ready_s, self.pss_bytes, self.idle_cpu_percent, results)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ops.bench.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka in the same run")
    parser.add_argument("--without-mpbroker", action="store_true", help="measure Apache Kafka alone")
    parser.add_argument("--only", default="", metavar="REGEX", help="only scenarios whose name matches")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measured run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="turns per broker and scenario (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    parser.add_argument("--directory", type=Path, help="where to keep the brokers' data (TMPDIR)")
    parser.add_argument(
        "--mpbroker", default=MPBROKER_COMMAND, metavar="COMMAND", help="how to start mpbroker"
    )
    chosen = parser.parse_args()
    if chosen.without_mpbroker:
        chosen.kafka = True
    if chosen.seconds <= 0 or chosen.rounds < 1:
        parser.error("--seconds and --rounds must be positive")
    return chosen


def contenders(
    directory: Path,
    *,
    template: str = MPBROKER_COMMAND,
    ours: bool = True,
    kafka: bool = True,
    settings: Sequence[str] = (),
) -> list[Contender]:
    """Return the brokers of a run, none of them started. Apache Kafka comes last.

    `settings`: lines of server.properties for all of them.
    """
    found = []
    if ours:
        flags = [flag for setting in settings for flag in ("-o", setting)]
        policy = ("-o", "log.flush.policy=os")
        durable = Mpbroker(directory / "durable", template=template, flags=flags)
        as_kafka = Mpbroker(directory / "os", template=template, flags=(*flags, *policy))
        found += [Contender("mpbroker durable", durable, 1), Contender("mpbroker os", as_kafka, 1)]
    if kafka:
        theirs = Kafka(directory / "kafka", properties=(*KAFKA_PATIENCE, *settings))
        found.append(Contender("Kafka 4.3", theirs, KAFKA_WARMUP_S))
    return found


def file_system(directory: Path) -> str:
    mounts = [m for m in psutil.disk_partitions(all=True) if directory.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype


def circumstances(directory: Path) -> str:
    """Return one line about the machine, on which absolute figures depend."""
    kernel = platform.release().partition("-")[0]
    return (
        f"{os.cpu_count()} cores shared with others, {platform.machine()}, Linux {kernel}, "
        f"{file_system(directory)}"
    )


def refuse_memory_directory(directory: Path) -> None:
    """Refuse a directory on tmpfs: writes there reach no disk, so durable figures would be worth nothing."""
    if file_system(directory) in ("tmpfs", "ramfs"):
        raise BrokerError(f"{directory} is in memory: point --directory at a disk")


@contextlib.contextmanager
def data_directory(given: Path | None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="mpbroker-bench-", dir=given)).resolve()
    try:
        refuse_memory_directory(path)
        yield path
    finally:
        shutil.rmtree(path)


def warm_up(broker: Broker, seconds: float, topic: str = "warm-up", door: Door | None = None) -> None:
    """Send small produces, because a JVM compiles only code that runs often."""
    scenarios.create_topic(broker, topic)
    request = frames.produce(topic, records=1, value_bytes=100)
    for connections in WARMUP_CONNECTIONS:
        scenarios.run_load(broker, request, connections, seconds / len(WARMUP_CONNECTIONS), door=door)
    scenarios.delete_topic(broker, topic)


def start(contender: Contender) -> None:
    """Start a broker, measure its costs without clients, and warm it up."""
    progress.print(f"[dim]{contender.title}: starting, idle, warm-up")
    broker = contender.broker
    broker.start()
    time.sleep(IDLE_SETTLE_S)
    contender.idle_cpu_percent = broker.tree().idle_cpu_percent(IDLE_S)
    contender.pss_bytes = broker.tree().pss_bytes()
    warm_up(broker, contender.warmup_s)
    broker.tree().pause()


@contextlib.contextmanager
def started(
    parent: Path | None = None,
    *,
    template: str = MPBROKER_COMMAND,
    ours: bool = True,
    kafka: bool = True,
    topic: str = "",
    partitions: int = 1,
    settings: Sequence[str] = (),
) -> Iterator[tuple[list[Contender], Path]]:
    """Start the brokers of a run; yield them, warmed up and paused, and their directory; then kill them.

    `topic`, unless empty, is created on each broker. `settings`: see `contenders`.
    """
    scenarios.build_generator()
    with data_directory(parent) as directory, contextlib.ExitStack() as stack:
        brokers = contenders(directory, template=template, ours=ours, kafka=kafka, settings=settings)
        for contender in brokers:
            stack.callback(contender.broker.kill)
            start(contender)
            if topic:
                with contender.broker.awake() as broker:
                    scenarios.create_topic(broker, topic, partitions)
        yield brokers, directory


def in_turns(
    brokers: Sequence[Contender], rounds: int, what: str, take: Callable[[Broker], Found]
) -> dict[str, list[Found]]:
    """Measure on each broker in turn, round after round; return the results by the brokers' titles."""
    found: dict[str, list[Found]] = {contender.title: [] for contender in brokers}
    for _ in range(rounds):
        for contender in brokers:
            with contender.broker.awake() as broker:
                figure = take(broker)
            shown = f"{figure:,.2f}" if isinstance(figure, float) else "measured"
            progress.print(f"[dim]{what}  {contender.title}: {shown}")
            found[contender.title].append(figure)
    return found


def measure(
    scenario: Scenario, field_of: Sequence[Contender], directory: Path, seconds: float, rounds: int
) -> None:
    requests = {}
    for contender in field_of:
        with contender.broker.awake() as broker:
            requests[contender.title] = scenarios.prepare(scenario, broker, scenario.name)
    # The first round over many partitions is not counted: Kafka takes seconds to become fast at them.
    warm_ups = 1 if scenario.partitions > 1 else 0
    for number in range(-warm_ups, rounds):
        for contender in field_of:
            result = _measure_once(scenario, contender, requests[contender.title], directory, seconds)
            if number >= 0:
                contender.rounds.setdefault(scenario.name, []).append(result)
    for contender in field_of:
        with contender.broker.awake() as broker:
            scenarios.delete_topic(broker, scenario.name)


def _measure_once(
    scenario: Scenario, contender: Contender, request: frames.Request, directory: Path, seconds: float
) -> Result:
    if scenario.bulk and scenario.kind == "produce":
        scenarios.settle_memory(directory, seconds)
    with contender.broker.awake() as broker:
        result = scenarios.run_load(
            broker,
            request,
            scenario.connections,
            seconds,
            partitions=scenario.partitions,
            reconnect=scenario.kind == "connect",
        )
    progress.print(f"[dim]{scenario.name}  {contender.title}: {result.requests_per_s:,.0f} requests/s")
    return result


def table(columns: Sequence[Column], scenarios: Sequence[Scenario]) -> Table:
    """Return a table with one section per scenario, one row per broker."""
    out = Table(title=f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}")
    out.add_column("load")
    out.add_column("broker", no_wrap=True)
    for heading in (*(one[0] for one in FIGURES), *(one[0] for one in RATIOS)):
        out.add_column(heading, justify="right")
    for scenario in scenarios:
        some = {one.title: one.results[scenario.name] for one in columns if scenario.name in one.results}
        kafka = next((result for title, result in some.items() if title.startswith(YARDSTICK)), None)
        for title, result in some.items():
            cells = [shown.format(getattr(result, figure)) for _, figure, shown in FIGURES]
            if kafka is not None and result is not kafka:
                cells += [f"{getattr(result, figure) / getattr(kafka, figure):.2f}" for _, figure in RATIOS]
            out.add_row("" if title != next(iter(some)) else scenario.name, title, *cells)
        out.add_section()
    for column in columns:
        out.add_row("ready", column.title, f"{column.ready_s:.2f} s")
        out.add_row("PSS, idle", column.title, f"{column.pss_bytes / 1e6:,.0f} MB")
        out.add_row("CPU, idle", column.title, f"{column.idle_cpu_percent:.2f} %")
    return out


def footnote(seconds: float, rounds: int) -> str:
    return f"""\
Each load ran {rounds} x {seconds:g} s per broker, taking turns, the others stopped.
The load generator shares the machine.
produce-SIZE-CONNECTIONS: one record per request, acks=all, one request in flight per connection.
connect-CONNECTIONS: connect, ApiVersions, reset; CONNECTIONS at a time.
Rates, bytes and CPU are means of the rounds, percentiles medians. CPU is that of the whole process tree.
The last three columns are ratios to Kafka, which does not sync."""


def run(chosen: argparse.Namespace) -> list[Column]:
    wanted = [s for s in SCENARIOS if re.search(chosen.only, s.name)]
    if not wanted:
        known = ", ".join(s.name for s in SCENARIOS)
        raise LoadError(f"no scenario matches {chosen.only!r}; there are {known}")
    ours, kafka = not chosen.without_mpbroker, chosen.kafka
    with started(chosen.directory, template=chosen.mpbroker, ours=ours, kafka=kafka) as (field_of, directory):
        for scenario in wanted:
            measure(scenario, field_of, directory, chosen.seconds, chosen.rounds)
        for contender in field_of:
            contender.broker.tree().resume()
            contender.broker.stop()
        return [contender.column() for contender in field_of]


def main() -> int:
    chosen = arguments()
    try:
        columns = run(chosen)
    except (BrokerError, LoadError, MissingToolError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    console = Console(width=max(Console().width, WIDTH))
    console.print(table(columns, SCENARIOS))
    console.print(footnote(chosen.seconds, chosen.rounds))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(column) for column in columns], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
