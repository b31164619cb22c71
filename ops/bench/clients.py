"""Measures stock clients with mpbroker and with Apache Kafka: `python -m ops.bench.clients`.

One client runs at a time, with the defaults of its library unless a row names other settings: Kafka's own
producer (five requests in flight on one connection), and consumers of librdkafka that commit as they go. Each
row is measured on every broker in turn. mpbroker runs twice: with appends as durable as Kafka's (page cache,
`os`), and with appends on the disk. For the runs with appends on the disk, the lines below the table have the
times of a commit round, and the times that the bare device needs for rounds of that size.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ops.bench import device, run
from ops.bench.brokers import Broker, Mpbroker
from ops.bench.hops import Hops
from ops.bench.scenarios import create_topic
from ops.setup import maven

TOPIC = "perf"
RATE = re.compile(r"([\d.]+) records/sec")
LATENCY = re.compile(r"([\d.]+) ms avg latency")
LZ4 = ("batch.size=65536", "linger.ms=5", "compression.type=lz4")
ZSTD = ("batch.size=65536", "linger.ms=5", "compression.type=zstd")
PATIENCE_S = 120
# librdkafka hands these on for a commit: its caller has to try again.
NOT_YET = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
)
SYNCHRONOUS_COMMITS = 200
COMMITS = 3000


class Row(NamedTuple):
    """A row of the table; `measure(broker, scale)` returns its figure."""

    name: str
    unit: str
    more_is_better: bool
    measure: Callable[[Broker, float], float]

    def at_scale(self, scale: float, broker: Broker) -> float:
        return self.measure(broker, scale)


class BenchError(Exception):
    """A client did not finish its task; the message has its output."""


def java_producer(
    records: int, size: int, *properties: str, rate: int = -1, figure: re.Pattern[str] = RATE
) -> Callable[[Broker, float], float]:
    """Return a function that runs Kafka's ProducerPerformance and returns the number that `figure` finds."""

    def measure(broker: Broker, scale: float) -> float:
        command = [maven.java(), "-Xmx512m", "-cp", maven.kafka_classpath()]
        command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", TOPIC]
        command += ["--num-records", str(int(records * scale)), "--record-size", str(size)]
        command += ["--throughput", str(rate), "--producer-props", f"bootstrap.servers={broker.bootstrap}"]
        done = subprocess.run([*command, *properties], capture_output=True, text=True, check=False)
        found = figure.search(done.stdout.strip().rpartition("\n")[2])
        if done.returncode or found is None:
            raise BenchError(f"ProducerPerformance at {broker.name}: {done.stdout}{done.stderr}")
        return float(found[1])

    return measure


def producing_cpu(records: int, size: int, *properties: str) -> Callable[[Broker, float], float]:
    """Return a function that measures how many seconds of CPU time a broker needs for a GB of records."""
    produce = java_producer(records, size, *properties)

    def measure(broker: Broker, scale: float) -> float:
        before = broker.tree().cpu_seconds()
        produce(broker, scale)
        return (broker.tree().cpu_seconds() - before) / (records * scale * size / 1e9)

    return measure


def committing(broker: Broker, **settings: object) -> Consumer:
    group = f"group-{time.time_ns()}"
    return Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, **settings})


def find_coordinator(consumer: Consumer) -> None:
    """Repeat a commit until it is accepted: the broker first has to create the topic of group offsets."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)
            return
        except KafkaException as error:
            if error.args[0].code() not in NOT_YET or time.monotonic() > until:
                raise BenchError(f"a commit was refused: {error}") from error
            time.sleep(0.1)


def synchronous_commits(broker: Broker, scale: float) -> float:
    """Return the commits per second of a consumer that waits for the answer to each commit."""
    consumer, count = committing(broker), int(SYNCHRONOUS_COMMITS * scale)
    find_coordinator(consumer)
    began = time.monotonic()
    for offset in range(count):
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    took = time.monotonic() - began
    consumer.close()
    return count / took


def asynchronous_commits(broker: Broker, scale: float) -> float:
    """Return the commits per second of a consumer that sends all commits without waiting for answers.

    Raises BenchError if a commit gets an error or no answer.
    """
    errors: list[object] = []
    consumer, count = (
        committing(broker, on_commit=lambda error, _: errors.append(error)),
        int(COMMITS * scale),
    )
    find_coordinator(consumer)
    errors.clear()
    began = time.monotonic()
    for offset in range(count):
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=True)
    while len(errors) < count and time.monotonic() < began + PATIENCE_S:
        consumer.poll(0.01)
    took = time.monotonic() - began
    consumer.close()
    failed = [error for error in errors if error is not None]
    if failed or len(errors) < count:
        raise BenchError(f"{len(errors)} of {count} commits at {broker.name} were answered: {failed[:3]}")
    return count / took


def backlog(broker: Broker, scale: float) -> float:
    """Return the seconds in which a consumer reads a backlog, with a commit after each message.

    Raises BenchError if the consumer loses its partitions meanwhile.
    """
    topic, count = f"backlog-{time.time_ns()}", int(30_000 * scale)
    create_topic(broker, topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number)
        producer.poll(0)
    producer.flush(PATIENCE_S)
    answered: list[object] = []
    lost: list[object] = []
    consumer = committing(
        broker,
        **{"auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 10_000},
        on_commit=lambda error, _: answered.append(error),
    )
    consumer.subscribe([topic], on_lost=lambda _, partitions: lost.append(partitions))
    seen, began = 0, 0.0
    while seen < count or len(answered) < count:
        message = consumer.poll(0.2)
        began = began or time.monotonic()
        if time.monotonic() > began + PATIENCE_S:
            raise BenchError(f"{len(answered)} of {count} commits at {broker.name} after {PATIENCE_S} s")
        if message is not None and message.error() is None:
            seen += 1
            consumer.commit(message=message, asynchronous=True)
    took = time.monotonic() - began
    consumer.close()
    if lost:
        raise BenchError(f"the consumer at {broker.name} lost its partitions after {len(answered)} commits")
    return took


ROWS = (
    Row("Java producer, 100 B", "records/s", True, java_producer(2_000_000, 100)),
    Row("Java producer, 1 KB", "records/s", True, java_producer(300_000, 1024)),
    Row("Java producer, 1 KB, lz4, 64 KB batches", "records/s", True, java_producer(300_000, 1024, *LZ4)),
    Row("Java producer, 1 KB, zstd, 64 KB batches", "records/s", True, java_producer(300_000, 1024, *ZSTD)),
    Row(
        "Java producer, 1 KB, lz4, 64 KB batches: broker's CPU",
        "s per GB",
        False,
        producing_cpu(300_000, 1024, *LZ4),
    ),
    Row(
        "Java producer, 1 KB, zstd, 64 KB batches: broker's CPU",
        "s per GB",
        False,
        producing_cpu(300_000, 1024, *ZSTD),
    ),
    Row(
        "Java producer, 5,000/s of 100 B, linger 0: mean latency",
        "ms",
        False,
        java_producer(25_000, 100, "linger.ms=0", rate=5000, figure=LATENCY),
    ),
    Row("commits, asynchronous", "commits/s", True, asynchronous_commits),
    Row("commits, each waited for", "commits/s", True, synchronous_commits),
    Row("backlog of 30,000, each committed", "s", False, backlog),
)


def line_of(row: Row, found: Sequence[Sequence[float]]) -> str:
    """Return a row of the table: the brokers' medians, with ratios to the last one (above 1: better)."""
    medians = [median(values) for values in found]
    cells = [f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in medians]
    last = medians[-1]
    for number, value in enumerate(medians[:-1]):
        ratio = value / last if row.more_is_better else last / value
        cells[number] += f" ({ratio:.2f})"
    return f"| {row.name}, {row.unit} | " + " | ".join(cells) + " |"


def measure(rows: Sequence[Row], turns: int, scale: float, *, kafka: bool) -> None:
    """Print the table, and below it the times of the commit rounds during the durable runs."""
    with run.started(kafka=kafka, topic=TOPIC) as (brokers, place):
        durable, on_disk = brokers[0].broker, []
        assert isinstance(durable, Mpbroker)
        hops = Hops(durable)
        print(f"| | {' | '.join(one.title for one in brokers)} |\n|---|{'---|' * len(brokers)}")
        for row in rows:
            before = hops.sample()["log worker"]
            found = run.in_turns(brokers, turns, row.name, partial(row.at_scale, scale))
            print(line_of(row, [values[1:] or values for values in found.values()]), flush=True)
            work = hops.sample()["log worker"] - before
            bare = device.compared(place, work.rounds, work.bytes, work.sync_ns)
            on_disk.append(f"{row.name}: {bare}")
        print("", *on_disk, sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression of the rows' names")
    parser.add_argument("--turns", type=int, default=3, help="of each row and broker; the first one warms up")
    parser.add_argument("--short", action="store_true", help="a tenth of the records")
    parser.add_argument("--alone", action="store_true", help="without Kafka")
    given = parser.parse_args()
    rows = [row for row in ROWS if re.search(given.only, row.name)]
    try:
        measure(rows, given.turns, 0.1 if given.short else 1, kafka=not given.alone)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
