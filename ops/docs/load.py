"""Runs a broker under load for the pictures in the documentation, with topics like those of a shop.

The rate of writes rises and falls as over a day, but faster. Most groups read too slowly to keep up.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer

from mpbroker.testing import Broker

TOPICS = {"orders": 4, "payments": 2, "clicks": 6, "inventory": 1}
# The topic of each group, and how many records it reads a second: fewer than are written.
GROUPS_OF = {"billing": ("payments", 900), "dashboard": ("clicks", 2500), "warehouse": ("orders", 700)}
WRITTEN_PER_S = {"orders": 900, "payments": 500, "clicks": 3000, "inventory": 60}
_PROCESSES = {"num.network.threads": "2", "num.io.threads": "2"}
_CITIES = ("Basel", "Bergen", "Bologna", "Brno", "Bruges")
_SAMPLES = 64
_HEADERS: dict[str, str | bytes | None] = {"source": "shop"}


class Load:
    """Clients that write and read until they are stopped."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._write, daemon=True)]
        for group, (topic, per_s) in GROUPS_OF.items():
            self._threads.append(threading.Thread(target=self._read, args=(group, topic, per_s), daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 20, "acks": "all"})
        values = _values()
        began, written = time.monotonic(), 0
        while not self._ended.wait(0.05):
            tide = 1 + 0.6 * math.sin((time.monotonic() - began) / 3) + 0.25 * math.sin(time.monotonic() * 2)
            for topic, per_s in WRITTEN_PER_S.items():
                for _ in range(int(per_s * tide * 0.05)):
                    written += 1
                    value = values[written % _SAMPLES]
                    producer.produce(topic, key=f"customer-{written % 997}", value=value, headers=_HEADERS)
            producer.poll(0)
        producer.flush(10)

    def _read(self, group: str, topic: str, per_s: int) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "client.id": f"{group}-app",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 300,
            }
        )
        consumer.subscribe([topic])
        while not self._ended.wait(0.1):
            consumer.consume(per_s // 10, timeout=0.1)
        consumer.close()


def _values() -> list[bytes]:
    """Return values of records, the same ones each time."""
    chance = random.Random(1)
    return [
        json.dumps(
            {
                "id": chance.randrange(10**6),
                "city": chance.choice(_CITIES),
                "amount": round(chance.uniform(1, 500), 2),
                "currency": "EUR",
                "items": [f"A-{chance.randrange(1000)}" for _ in range(3)],
            }
        ).encode()
        for _ in range(_SAMPLES)
    ]


@contextmanager
def loaded(settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
    """Run a broker under load."""
    with Broker({**_PROCESSES, **(settings or {})}) as broker:
        for topic, partitions in TOPICS.items():
            broker.create_topic(topic, partitions=partitions)
        load = Load(broker.bootstrap_servers)
        load.start()
        try:
            yield broker
        finally:
            load.stop()
