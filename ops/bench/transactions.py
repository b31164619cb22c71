"""Transactions a second and their times, compared with Apache Kafka: `python -m ops.bench.transactions`.

Some producers of librdkafka, each with a transactional id of its own, write some records to two partitions
and commit, again and again; the brokers take turns. mpbroker answers a commit when the decision is on the
disk or, for `mpbroker os`, in the page cache, as in Kafka. The time of a transaction is from begin to commit,
including the pauses that librdkafka makes when a broker asks it to retry.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence

from confluent_kafka import Producer

from ops.bench import run
from ops.bench.brokers import Broker

TOPIC = "written"
PARTITIONS = 2
PATIENCE_S = 30
VALUE = b"x" * 100


def transactions(producer: Producer, records: int, until: float) -> list[float]:
    """Return how many seconds each transaction took."""
    took: list[float] = []
    while (began := time.monotonic()) < until:
        producer.begin_transaction()
        for number in range(records):
            producer.produce(TOPIC, VALUE, partition=number % PARTITIONS)
        producer.commit_transaction(PATIENCE_S)
        took.append(time.monotonic() - began)
    return took


def made(broker: Broker, count: int) -> list[Producer]:
    producers = [
        Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"bench-{n}", "linger.ms": 0})
        for n in range(count)
    ]
    for producer in producers:
        producer.init_transactions(PATIENCE_S)
    return producers


def turn(producers: Sequence[Producer], records: int, seconds: float) -> list[float]:
    """Run the producers concurrently; return how many seconds each transaction took."""
    took: list[float] = []
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=lambda p=producer: took.extend(transactions(p, records, until)))
        for producer in producers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def take(broker: Broker, count: int, records: int, seconds: float) -> list[float]:
    """Warm up with some transactions; then return how many seconds each further transaction took."""
    producers = made(broker, count)
    turn(producers, records, seconds / 4)
    return turn(producers, records, seconds)


def line_of(name: str, turns: Sequence[Sequence[float]], seconds: float) -> str:
    took = sorted(one for each in turns for one in each)
    per_s = len(took) / (len(turns) * seconds)
    p50, p99 = (took[len(took) * percent // 100] * 1000 for percent in (50, 99))
    return f"{name}: {per_s:,.0f} transactions/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--records", type=int, default=4, help="of each transaction")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="without Kafka")
    given = parser.parse_args()
    with run.started(kafka=not given.alone, topic=TOPIC, partitions=PARTITIONS) as (brokers, _):
        counts = (given.producers, given.records, given.seconds)
        found = run.in_turns(brokers, given.turns, "transactions", lambda broker: take(broker, *counts))
    for title, turns in found.items():
        print(line_of(title, turns, given.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
