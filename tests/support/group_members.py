"""Members of consumer groups, and what a group without any has committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.support.polling import until

# Settings of a broker whose members of the consumer protocol hear soon of what changes.
QUICK = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
}


@contextmanager
def subscriber(bootstrap: str, group: str, topic: str, **settings: Any) -> Iterator[Consumer]:
    """A member that reads from where its partitions begin, and commits nothing by itself. It has none yet."""
    more = {name.replace("_", "."): value for name, value in settings.items()}
    given = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **more}
    with closing(Consumer({**given, "auto.offset.reset": "earliest", "log_level": 0})) as consumer:
        consumer.subscribe([topic])
        yield consumer


@contextmanager
def member(bootstrap: str, group: str, topic: str, **settings: Any) -> Iterator[Consumer]:
    """A subscriber that has got its partitions."""
    with subscriber(bootstrap, group, topic, **settings) as consumer:
        until(consumer.assignment, f"the member of {group} has partitions", lambda: consumer.poll(0.02))
        yield consumer


def commit(bootstrap: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit offsets of these partitions as a consumer that is a member of nothing."""
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group})) as consumer:
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        consumer.commit(offsets=places, asynchronous=False)
