"""Records of a producer as it is, for tests of something else."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer

from tests.support.polling import PATIENCE_S


def produce(
    bootstrap: str, topic: str, values: Iterable[bytes | str], partitions: int = 1, **settings: object
) -> None:
    """Write the values to the partitions in turn, and wait until all are acknowledged.

    Names of settings have _ in place of dots.
    """
    named = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": bootstrap, **named})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
