"""`make figures`: measures the figures of README and PERFORMANCE.

    python -m ops.bench.figures                # all, a quarter of an hour on a quiet machine
    python -m ops.bench.figures --only start   # one part; the others stay as they were recorded

The figures go to docs/figures.json, from which `ops.docs.figures` makes the tables of the pages. Brokers take
turns, and only the one that is measured runs. Each part records when and where it was measured.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from mpbroker.testing import Broker as TestBroker
from ops.bench import clients, device, frames, recorded, run, spark, transactions
from ops.bench.brokers import Broker, BrokerError, Kafka, Mpbroker, running
from ops.bench.recorded import Figures
from ops.bench.run import Contender
from ops.bench.scenarios import SCENARIOS, LoadError
from ops.docs import figures
from ops.docs.figures import FIGURES
from ops.setup.maven import MissingToolError

# The titles of contenders as the file has them.
NAMES = {"mpbroker durable": "durable", "mpbroker os": "os", "Kafka 4.3": "kafka"}
LOAD_S, ROUNDS = 2.0, 3
CLIENTS_SCALE = 0.3
STARTS, KAFKA_STARTS = 7, 2
TOPICS, PARTITIONS = 100, 3
TRANSACTION_S, TRANSACTION_TURNS, RECORDS_EACH = 2.0, 3, 4
SPARK_RECORDS, SPARK_ROUNDS = 8_000_000, 3
SETTLE_S = 5.0

ByBroker = dict[str, float]


def in_turns(
    brokers: Sequence[Contender], rounds: int, what: str, take: Callable[[Broker], float]
) -> ByBroker:
    found = run.in_turns(brokers, rounds, what, take)
    return {NAMES[title]: median(figures) for title, figures in found.items()}


def loads() -> Figures:
    """Measure brokers under load, their memory and CPU when idle, and a commit round on the bare disk."""
    with run.started() as (brokers, directory):
        for scenario in SCENARIOS:
            run.measure(scenario, brokers, directory, LOAD_S, ROUNDS)
        columns = {NAMES[contender.title]: contender.column() for contender in brokers}
        bare = device.measure(directory, device.whole_sectors(200), 2.0)
    return {
        "idle": {
            name: {"pss_mb": column.pss_bytes / 1e6, "cpu_percent": column.idle_cpu_percent}
            for name, column in columns.items()
        },
        "device_us": bare.p50_us,
        "loads": {
            scenario.name: {
                name: {
                    "requests_per_s": column.results[scenario.name].requests_per_s,
                    "mb_per_s": column.results[scenario.name].mb_per_s,
                    "p99_us": column.results[scenario.name].p99_us,
                    "cpu_us": column.results[scenario.name].broker_cpu_us,
                }
                for name, column in columns.items()
            }
            for scenario in SCENARIOS
        },
    }


def stock_clients() -> Figures:
    with run.started(topic=clients.TOPIC) as (brokers, _):
        return {
            row.name: {
                "unit": row.unit,
                "more_is_better": row.more_is_better,
                **in_turns(brokers, ROUNDS, row.name, partial(row.at_scale, CLIENTS_SCALE)),
            }
            for row in clients.ROWS
        }


def starts() -> Figures:
    """Measure the seconds until each kind of broker serves, and mpbroker's memory with its exporter."""
    found: dict[str, list[float]] = {"mpbroker": [], "kafka": [], "test": []}
    pss_mb = []
    with run.data_directory(None) as directory:
        for number in range(STARTS):
            flags = ("--http", "127.0.0.1:0")
            with running(Mpbroker(directory / f"m{number}", flags=flags)) as broker:
                found["mpbroker"].append(broker.ready_s)
                time.sleep(SETTLE_S)
                pss_mb.append(broker.tree().pss_bytes() / 1e6)
            began = time.perf_counter()
            with TestBroker():
                found["test"].append(time.perf_counter() - began)
        for number in range(KAFKA_STARTS):
            with running(Kafka(directory / f"k{number}")) as broker:
                found["kafka"].append(broker.ready_s)
    ready = {f"{name}_ready_s": median(values) for name, values in found.items()}
    return {**ready, "with_exporter_pss_mb": median(pss_mb)}


def topics() -> Figures:
    """Measure the seconds of a request that creates many topics, and of one that deletes them."""
    numbers = itertools.count()

    def make_and_delete(broker: Broker) -> tuple[float, float]:
        # All of one length: the error that is looked at is the first of the response, in any order.
        names = [f"many-{next(numbers):06}" for _ in range(TOPICS)]
        create = frames.create_topics(names, PARTITIONS, timeout_ms=60_000)
        with frames.connected(broker.address) as peer:
            return _seconds(peer, create), _seconds(peer, frames.delete_topics(names, timeout_ms=60_000))

    with run.started() as (brokers, _):
        found = run.in_turns(brokers, ROUNDS, "many topics", make_and_delete)
    took = {NAMES[title]: [median(some) for some in zip(*each, strict=True)] for title, each in found.items()}
    return {
        name: {title: some[number] for title, some in took.items()}
        for number, name in enumerate(("create_s", "delete_s"))
    }


def _seconds(peer: socket.socket, request: frames.Request) -> float:
    began = time.perf_counter()
    code, _ = frames.exchange(peer, request)
    if code:
        raise BrokerError(f"a request for many topics is answered with error code {code}")
    return time.perf_counter() - began


def transaction_rates() -> Figures:
    """Measure the transactions per second of eight producers of librdkafka together, and of a single one."""
    found: Figures = {}
    topic, partitions = transactions.TOPIC, transactions.PARTITIONS
    with run.started(topic=topic, partitions=partitions) as (brokers, _):
        for count in (8, 1):

            def rate(broker: Broker, count: int = count) -> float:
                return len(transactions.take(broker, count, RECORDS_EACH, TRANSACTION_S)) / TRANSACTION_S

            found[str(count)] = in_turns(brokers, TRANSACTION_TURNS, f"{count} producers", rate)
    return found


def spark_readers() -> Figures:
    """Measure the seconds in which each reader reads all columns of eight million 100-byte records."""
    (shape, _) = spark.shapes(SPARK_RECORDS, 0)
    with tempfile.TemporaryDirectory(prefix="mpbroker-bench-") as place:
        return {
            name: one["all"] for name, one in spark.read_by_all(shape, Path(place), SPARK_ROUNDS)[0].items()
        }


PARTS: recorded.Parts = {
    "loads": loads,
    "clients": stock_clients,
    "start": starts,
    "topics": topics,
    "transactions": transaction_rates,
    "spark": spark_readers,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    recorded.add_only(parser, list(PARTS))
    try:
        recorded.measure(PARTS, parser.parse_args().only or list(PARTS), FIGURES)
    except (BrokerError, LoadError, MissingToolError, clients.BenchError, OSError) as error:
        print(f"figures: {error}", file=sys.stderr)
        return 1
    figures.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
