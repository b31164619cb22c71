"""Every client's transactional producer behind the same calls, in this process or in one of another language.

librdkafka, kafka-python and aiokafka know nothing of `transaction.version` 2: they add partitions themselves
and keep their epoch. The Java client and franz-go add them by producing, and get a new epoch from each end
(KIP-890).
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache, partialmethod
from typing import Any, TypeVar

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
from confluent_kafka import KafkaError, KafkaException
from kafka.structs import OffsetAndMetadata

from tests.support.polling import PATIENCE_S
from tests.support.programs import Piped

# No transaction of a test that is not about it times out.
TIMEOUT_MS = 600_000
T = TypeVar("T")
_FENCED_CODES = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


class Fenced(Exception):
    """A younger producer has this one's transactional id."""


class Refused(Exception):
    """Anything else that a client says of its broker."""


class Transactional(ABC):
    """One that is made has its producer id. What was sent fails at the latest when the transaction ends."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, partition: int, value: str) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Wait until all that was sent is acknowledged."""

    @abstractmethod
    def offsets(self, group: str, topic: str, partition: int, offset: int) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Close at once, whatever is open."""


Open = Callable[..., Transactional]
"""(bootstrap, transactional_id, timeout_ms=TIMEOUT_MS)"""


class Confluent(Transactional):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                # No longer than a transaction may take.
                "message.timeout.ms": min(timeout_ms, PATIENCE_S * 1000),
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 200,
                # Else it forgets its only broker with each connection that is lost, but not that this one
                # coordinates a group: send_offsets_to_transaction waits for it, and never returns.
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )
        self._ask(self._producer.init_transactions, PATIENCE_S)

    @staticmethod
    def _ask(call: Callable[..., T], *arguments: object) -> T:
        try:
            return call(*arguments)
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            raise (Fenced if error.code() in _FENCED_CODES else Refused)(str(error)) from raised

    def begin(self) -> None:
        self._ask(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: str) -> None:
        self._ask(lambda: self._producer.produce(topic, value, partition=partition))

    def flush(self) -> None:
        left = self._ask(self._producer.flush, PATIENCE_S)
        # The length of its queue says less: news of a broker that is gone count there, too.
        assert not left, f"{left} records are not acknowledged"

    def offsets(self, group: str, topic: str, partition: int, offset: int) -> None:
        metadata = _group_metadata(group)
        positions = [confluent_kafka.TopicPartition(topic, partition, offset)]
        self._ask(self._producer.send_offsets_to_transaction, positions, metadata, PATIENCE_S)

    def commit(self) -> None:
        self._ask(self._producer.commit_transaction, PATIENCE_S)

    def abort(self) -> None:
        self._ask(self._producer.abort_transaction, PATIENCE_S)

    def close(self) -> None:
        self._producer.purge()
        del self._producer


@cache
def _group_metadata(group: str) -> object:
    """Return the metadata of a group without members. Only a consumer has it, connected or not."""
    consumer = confluent_kafka.Consumer({"group.id": group, "log_level": 0})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


class KafkaPython(Transactional):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        self._sent: list[Any] = []
        self._ask(self._producer.init_transactions)

    @staticmethod
    def _ask(call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except (kafka.errors.ProducerFencedError, kafka.errors.InvalidProducerEpochError) as error:
            raise Fenced(str(error)) from error
        except kafka.errors.KafkaError as error:
            raise Refused(repr(error)) from error

    def begin(self) -> None:
        self._sent.clear()
        self._ask(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, value: str) -> None:
        self._ask(lambda: self._sent.append(self._producer.send(topic, value.encode(), partition=partition)))

    def flush(self) -> None:
        for future in self._sent:
            self._ask(future.get, PATIENCE_S)

    def offsets(self, group: str, topic: str, partition: int, offset: int) -> None:
        positions = {kafka.TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self._ask(self._producer.send_offsets_to_transaction, positions, group)

    def commit(self) -> None:
        self._ask(self._producer.commit_transaction)

    def abort(self) -> None:
        self._ask(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=0)


class Aiokafka(Transactional):
    """With a loop of its own, which runs while something is asked."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._loop = asyncio.new_event_loop()
        self._sent: list[asyncio.Future[Any]] = []
        self._ask(self._start(bootstrap, transactional_id, timeout_ms))

    async def _start(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        await self._producer.start()

    def _ask(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(call, PATIENCE_S))
        except aiokafka.errors.ProducerFenced as error:
            raise Fenced(str(error)) from error
        except aiokafka.errors.KafkaError as error:
            raise Refused(repr(error)) from error

    def begin(self) -> None:
        self._sent.clear()
        self._ask(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: str) -> None:
        self._sent.append(self._ask(self._producer.send(topic, value.encode(), partition=partition)))

    def flush(self) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*self._sent)

        self._ask(all_of_them())

    def offsets(self, group: str, topic: str, partition: int, offset: int) -> None:
        positions = {aiokafka.TopicPartition(topic, partition): offset}
        self._ask(self._producer.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        self._ask(self._producer.commit_transaction())

    def abort(self) -> None:
        self._ask(self._producer.abort_transaction())

    def close(self) -> None:
        self._ask(self._producer.stop())
        self._loop.close()


class Program:
    """A process with many producers, which answers each line with one."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = Piped(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._names = itertools.count()

    def tell(self, *words: object) -> None:
        assert not any(" " in str(word) for word in words), "what they are told is split at spaces"
        print(*words, file=self._process.stdin, flush=True)
        answer, _, why = self._process.stdout.readline().strip().partition(" ")
        if answer == "fenced":
            raise Fenced(why)
        if answer != "ok":
            raise Refused(why or "the client's process has gone")

    def open(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> Transactional:
        return Told(self, next(self._names), bootstrap, transactional_id, timeout_ms)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()


class Told(Transactional):
    """A producer of a program, which knows the calls by their names."""

    def __init__(
        self, program: Program, name: int, bootstrap: str, transactional_id: str, timeout_ms: int
    ) -> None:
        self._program, self._name = program, name
        self._tell("open", bootstrap, transactional_id, timeout_ms)

    def _tell(self, *words: object) -> None:
        self._program.tell(self._name, *words)

    begin = partialmethod(_tell, "begin")
    send = partialmethod(_tell, "send")
    flush = partialmethod(_tell, "flush")
    offsets = partialmethod(_tell, "offsets")
    commit = partialmethod(_tell, "commit")
    abort = partialmethod(_tell, "abort")
    close = partialmethod(_tell, "close")


IN_PYTHON: Mapping[str, Open] = {
    "confluent": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}
CLIENTS = (*IN_PYTHON, "franz", "java")
# franz-go commits offsets of a transaction in a session of a group alone.
WITH_OFFSETS = (*IN_PYTHON, "java")
# One for each of the two protocols.
GENERATIONS = ("confluent", "java")


def sends(producer: Transactional, topic: str, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.send(topic, partition, value)
    producer.flush()


def commits(producer: Transactional, topic: str, *values: str) -> None:
    producer.begin()
    sends(producer, topic, *values)
    producer.commit()
