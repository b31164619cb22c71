"""A transaction coordinator without I/O: the test is its clock, its log, its partitions and its clients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Self

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.runtime import write_queue
from mpbroker.coordinator.runtime.requests import RequestContext
from mpbroker.coordinator.runtime.write_queue import Marker, PartitionBatch
from mpbroker.coordinator.transactions.coordinator import TransactionCoordinator
from mpbroker.coordinator.transactions.records import TransactionValue, decode, encode
from mpbroker.ipc.calls import CheckedTransaction, CheckTransaction
from mpbroker.ipc.table import PAYLOAD_BYTES, unpack_partition
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    Message,
)
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.records.builder import build_batch
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import NewRecord
from tests.support.dispatch import dispatch
from tests.support.record_reading import iterate_records

PARTITIONS = 5
COORDINATOR_EPOCH = 7
TIMEOUT_MS = 60_000
TOPICS = {"t": 4, "u": 1}
NOBODY = (-1, -1)
V1, V2 = 4, 5
"""Versions of EndTxn, of both generations."""

Producer = tuple[int, int]


class TransactionRig:
    """`log` has the records of each partition; `answers` what was said to whom, once each; `markers` those
    that are durable, and where; `sending` those on their way. `is_heard`: whether what is said of checks is.
    """

    def __init__(
        self,
        log: dict[int, list[tuple[bytes | None, bytes | None]]] | None = None,
        config: BrokerConfig | None = None,
        has_earlier_holds: bool = False,
        **settings: int,
    ):
        self.config = config or BrokerConfig(**settings)  # type: ignore[arg-type]
        self.now_ms = 1_000_000
        self.log = log if log is not None else {number: [] for number in range(PARTITIONS)}
        self.answers: dict[int, Any] = {}
        self.is_heard = True
        self.numbers = itertools.count(1)
        self.topics = dict(TOPICS)
        self.next_ids = itertools.count(1000)
        self.has_ids = True
        self.delayed_ids: list[Callable[[int | None], None]] | None = None
        self.markers: list[tuple[Marker, frozenset[TopicPartition]]] = []
        self.sending: list[tuple[Marker, frozenset[TopicPartition], Callable[[], None]]] = []
        self.coordinator = TransactionCoordinator(self.config, self, self, self, self, self)
        self.queue = self.coordinator.queue
        if has_earlier_holds:
            self.coordinator.end_txn.holds.expect_earlier()
        self.open()

    def open(self, coordinator_epoch: int = COORDINATOR_EPOCH) -> None:
        self.coordinator.partitions.open(PARTITIONS)
        for partition in self.log:
            self.load(partition, coordinator_epoch)

    # --- what the coordinator sees

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now_ms

    def partitions_of(self, name: str) -> int:
        return self.topics.get(name, 0)

    def name_of(self, topic_id: bytes) -> str | None:
        raise NotImplementedError

    def id_of(self, name: str) -> bytes | None:
        raise NotImplementedError

    def take_now(self) -> int | None:
        return next(self.next_ids) if self.has_ids and self.delayed_ids is None else None

    def take(self, then: Callable[[int | None], None]) -> None:
        if self.delayed_ids is not None:
            self.delayed_ids.append(then)
        else:
            then(None)

    def send(self, marker: Marker, partitions: frozenset[TopicPartition], then: Callable[[], None]) -> None:
        self.sending.append((marker, partitions, then))

    def answer(self, waiter: Any, response: Message) -> None:
        assert waiter not in self.answers, f"{waiter} is answered twice"
        self.answers[waiter] = response

    def fail(self, waiter: Any, error: ErrorCode) -> None:
        assert waiter not in self.answers, f"{waiter} is answered twice"
        self.answers[waiter] = error

    # --- the log

    def append_round(self, error: ErrorCode = ErrorCode.NONE) -> bool:
        """One round becomes durable, or is refused; False if there is none."""
        batches = self.queue.next_round()
        for batch in batches:
            if not error:
                self.store(batch)
        if batches:
            self.queue.finish([error] * len(batches))
        return bool(batches)

    def store(self, batch: PartitionBatch) -> None:
        self.log[batch.partition] += [(r.key, r.value) for r in iterate_records(batch.batch)]

    def write_markers(self) -> bool:
        """Make the markers that are under way durable."""
        sending, self.sending = self.sending, []
        for marker, partitions, then in sending:
            self.markers.append((marker, partitions))
            then()
        return bool(sending)

    def settle(self) -> None:
        while self.append_round() or self.write_markers():
            pass

    def decide(self) -> None:
        """Make all records durable, and no marker."""
        while self.append_round():
            pass

    def load(self, partition: int, coordinator_epoch: int = COORDINATOR_EPOCH) -> None:
        records = [NewRecord(value, key, 0) for key, value in self.log[partition]]
        contents = self.coordinator.contents
        contents.begin()
        for batch in iterate_batches(bytes(build_batch(records)) if records else b""):
            contents.read(partition, batch)
        end = unpack_partition(bytes(PAYLOAD_BYTES))
        contents.end(end._replace(partition=partition, leader_epoch=coordinator_epoch))

    def reload(self) -> None:
        """The log process died, and came back: what was under way is unknown."""
        self.queue.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.coordinator.unload()
        self.sending.clear()
        self.open(COORDINATOR_EPOCH + 1)

    def restarted(self, has_earlier_holds: bool = False) -> Self:
        """A successor that knows what is in the log."""
        rig = type(self)(self.log, self.config, has_earlier_holds)
        rig.next_ids, rig.numbers, rig.now_ms = self.next_ids, self.numbers, self.now_ms
        return rig

    def write_record(self, value: TransactionValue, name: str = "x") -> None:
        """Write the record as if it had always been there."""
        self.log[self.coordinator.partitions.partition_for(name)].append(encode((name, value)))
        self.reload()

    def records_of(self, name: str = "x") -> list[TransactionValue | None]:
        entries = (decode(key, value) for records in self.log.values() for key, value in records)
        return [entry[1] for entry in entries if entry is not None and entry[0] == name]

    # --- requests

    def ask(self, request: Message, version: int) -> int:
        waiter = next(self.numbers)
        context = RequestContext(waiter, version, "c", "/127.0.0.1", "User:u")
        dispatch(self.coordinator.served, self, context, request)
        return waiter

    def later(self, delay_ms: int) -> None:
        """Time goes by, timer by timer; nothing becomes durable."""
        until_ms = self.now_ms + delay_ms
        while (due := self.coordinator.timers.next_deadline_ms()) is not None and due <= until_ms:
            self.now_ms = max(self.now_ms, due)
            self.coordinator.tick()
        self.now_ms = until_ms

    def ask_init(self, producer: Producer = NOBODY, *, name: str = "x", timeout_ms: int = TIMEOUT_MS) -> int:
        return self.ask(InitProducerIdRequest(name, timeout_ms, *producer), 5)

    def init(self, producer: Producer = NOBODY, **how: Any) -> Producer:
        """-> the producer id and epoch, which come without anything else happening but appends."""
        waiter = self.ask_init(producer, **how)
        self.settle()
        return self.began(waiter)

    def began(self, waiter: int) -> Producer:
        answer = self.answers[waiter]
        assert isinstance(answer, InitProducerIdResponse), answer
        return answer.producer_id, answer.producer_epoch

    def ask_add(self, producer: Producer, *partitions: TopicPartition, name: str = "x") -> int:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        asked = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(*topic) for topic in topics.items()]
        return self.ask(AddPartitionsToTxnRequest(name, *producer, asked), 3)

    def add(self, producer: Producer, *partitions: TopicPartition, **how: Any) -> ErrorCode:
        """The error that all partitions have."""
        waiter = self.ask_add(producer, *(partitions or (("t", 0),)), **how)
        self.settle()
        return self.added(waiter)

    def added(self, waiter: int) -> ErrorCode:
        (error,) = set(self.add_errors(waiter).values())
        return error

    def add_errors(self, waiter: int) -> dict[TopicPartition, ErrorCode]:
        return {
            (topic.name, one.partition_index): ErrorCode(one.partition_error_code)
            for topic in self.answers[waiter].results_by_topic_v3_and_below
            for one in topic.results_by_partition
        }

    def add_offsets(self, producer: Producer, group: str = "g", name: str = "x") -> ErrorCode:
        waiter = self.ask(AddOffsetsToTxnRequest(name, *producer, group), 3)
        self.settle()
        return code_of(self.answers[waiter])

    def ask_end(self, producer: Producer, commit: bool = True, *, name: str = "x", version: int = V1) -> int:
        return self.ask(EndTxnRequest(name, *producer, commit), version)

    def end(self, producer: Producer, commit: bool = True, **how: Any) -> ErrorCode:
        waiter = self.ask_end(producer, commit, **how)
        self.settle()
        return code_of(self.answers[waiter])

    def end_v2(self, producer: Producer, commit: bool = True, **how: Any) -> Producer:
        """-> who the producer is from then on."""
        waiter = self.ask_end(producer, commit, version=V2, **how)
        self.settle()
        return self.ended(waiter)

    def ended(self, waiter: int) -> Producer:
        answer = self.answers[waiter]
        assert isinstance(answer, EndTxnResponse), answer
        return answer.producer_id, answer.producer_epoch

    def ask_check(
        self, producer: Producer, *partitions: TopicPartition, adds: bool = False, name: str = "x"
    ) -> int:
        waiter = next(self.numbers)
        call = CheckTransaction(name, *producer, list(partitions or (("t", 0),)), adds)

        def then(checked: CheckedTransaction | ErrorCode) -> bool:
            assert waiter not in self.answers, f"{waiter} is answered twice"
            self.answers[waiter] = checked
            return self.is_heard

        self.coordinator.add_partitions.check(waiter, call, then)
        return waiter

    def check(self, producer: Producer, *partitions: TopicPartition, **how: Any) -> Any:
        waiter = self.ask_check(producer, *partitions, **how)
        self.settle()
        return self.answers[waiter]

    def check_offsets(self, producer: Producer, partition: int = 0, adds: bool = False) -> list[ErrorCode]:
        """Return the list in which the answer will be."""
        heard: list[ErrorCode] = []
        checks = self.coordinator.add_partitions
        checks.check_offsets("x", write_queue.Producer(*producer), partition, adds, heard.append)
        return heard

    # --- what it has come to

    def value(self, name: str = "x") -> TransactionValue:
        transaction = self.coordinator.state.find(name)
        assert transaction is not None
        assert transaction.value is not None
        return transaction.value

    @property
    def state(self) -> str:
        return self.value().state.label


def opened(rig: TransactionRig, epoch: int = 0, *, adds: bool = False) -> Producer:
    """A producer with a transaction that has one partition; `adds`: as TV2 has it."""
    producer = rig.init()
    if epoch:
        rig.write_record(rig.value()._replace(producer_epoch=epoch))
        producer = producer[0], epoch
    if adds:
        assert rig.check(producer, adds=True).errors == [ErrorCode.NONE]
    else:
        assert rig.add(producer) is ErrorCode.NONE
    return producer


def code_of(answer: Any) -> ErrorCode:
    """The error of a whole answer."""
    return answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
