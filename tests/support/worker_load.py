"""A load beside which numbers of workers change."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from ops.bench.brokers import Mpbroker
from tests.support.polling import PATIENCE_S, until
from tests.support.real_brokers import control


def pids(broker: Mpbroker) -> dict[str, int]:
    return {each["name"]: each["pid"] for each in control(broker).call("status")["processes"]}


def names(broker: Mpbroker, kind: str) -> set[str]:
    return {name for name in pids(broker) if name.startswith(kind)}


class Load:
    """An idempotent producer and a reader, as applications use them: any error they are told of is a
    failure.
    """

    def __init__(
        self, bootstrap: str, topic: str, settings: Mapping[str, str] | None = None, value_bytes: int = 0
    ) -> None:
        self.errors: list[str] = []
        self.acked = self.read = self.sent = 0
        self._topic = topic
        self._value_bytes = value_bytes
        self._config = {"bootstrap.servers": bootstrap, "log_level": 0, **(settings or {})}
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        producer = Producer({**self._config, "enable.idempotence": True, "linger.ms": 0})
        while not self._ending.is_set():
            value = (b"%d" % self.sent).rjust(self._value_bytes)
            producer.produce(self._topic, value, partition=0, on_delivery=self._told)
            self.sent += 1
            producer.poll(0.01 if len(producer) > 20 else 0)
        producer.flush(PATIENCE_S)

    def _told(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.errors.append(f"produce: {error}")
        self.acked += error is None

    def _consume(self) -> None:
        consumer = Consumer({**self._config, "group.id": "load", "enable.auto.commit": False})
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self._ending.is_set() or self.read < self.sent:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                self.errors.append(f"fetch: {message.error()}")
            elif int(message.value() or b"") != self.read:
                self.errors.append(f"read {message.value()!r} after {self.read} records")
                break
            else:
                self.read += 1
        consumer.close()

    def __enter__(self) -> Load:
        self.goes_on()
        return self

    def __exit__(self, *failure: object) -> None:
        """Nothing is lost, and no client was told of an error."""
        self.end()
        if failure == (None, None, None):
            assert self.errors == []
            assert self.acked == self.read == self.sent

    def goes_on(self) -> None:
        """Wait until records that are sent from now on are acknowledged and read. Fail at an error."""
        sent = self.sent
        until(
            lambda: self.read > sent or self.errors,
            lambda: f"{self.read} of {sent} records are read, {self.acked} acked",
        )
        assert self.errors == []

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
