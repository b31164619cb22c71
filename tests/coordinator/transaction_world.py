"""A transaction coordinator without I/O: the test is its clock, its log, its partitions and its clients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Self

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.runtime import batches
from mpbroker.coordinator.runtime.batches import Marker, PartitionBatch
from mpbroker.coordinator.runtime.journal import Journal
from mpbroker.coordinator.transactions.coordinator import TransactionCoordinator
from mpbroker.coordinator.transactions.records import Entry, TransactionValue, decode, encode
from mpbroker.ipc.calls import CheckedTransaction, CheckTransaction
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
from tests.support.record_reading import iterate_records

PARTITIONS = 5
COORDINATOR_EPOCH = 7
TIMEOUT_MS = 60_000
TOPICS = {"t": 4, "u": 1}
NOBODY = (-1, -1)
V1, V2 = 4, 5
"""Versions of EndTxn, of both generations."""

TopicPartition = tuple[str, int]
Producer = tuple[int, int]


class World:
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
        self.journal = Journal[Entry](
            "transactional id",
            encode,
            lambda name: self.coordinator.partition_for(name),
            self.wall_ms,
            lambda: self.config.transaction_state_log_segment_bytes,
            lambda name, waiter: self.coordinator.went_wrong(name, waiter),
        )
        self.coordinator = TransactionCoordinator(self.config, self, self.journal, self, self, self, self)
        if has_earlier_holds:
            self.coordinator.expect_earlier_holds()
        self.open()

    def open(self, coordinator_epoch: int = COORDINATOR_EPOCH) -> None:
        self.coordinator.opened(PARTITIONS)
        for partition in self.log:
            self.load(partition, coordinator_epoch)

    # --- what the coordinator sees

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now_ms

    def partitions_of(self, name: str) -> int:
        return self.topics.get(name, 0)

    def take(self, then: Callable[[int | None], None]) -> None:
        if self.delayed_ids is not None:
            self.delayed_ids.append(then)
        else:
            then(next(self.next_ids) if self.has_ids else None)

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
        batches = self.journal.next_round()
        for batch in batches:
            if not error:
                self.store(batch)
        if batches:
            self.journal.finish([error] * len(batches))
        return bool(batches)

    def store(self, batch: PartitionBatch) -> None:
        self.log[batch.partition] += [(r.key, r.value) for r in iterate_records(batch.batch)]

    def write_markers(self) -> bool:
        """Those that are on their way become durable."""
        sending, self.sending = self.sending, []
        for marker, partitions, then in sending:
            self.markers.append((marker, partitions))
            then()
        return bool(sending)

    def settle(self) -> None:
        while self.append_round() or self.write_markers():
            pass

    def decide(self) -> None:
        """All records become durable, and no marker."""
        while self.append_round():
            pass

    def load(self, partition: int, coordinator_epoch: int = COORDINATOR_EPOCH) -> None:
        values: dict[str, TransactionValue | None] = {}
        for key, value in self.log[partition]:
            entry = decode(key, value)
            assert entry is not None
            values[entry[0]] = entry[1]
        self.coordinator.loaded(partition, values, coordinator_epoch)

    def reload(self) -> None:
        """The log process died, and came back: what was under way is unknown."""
        self.journal.fail_all(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.coordinator.unload()
        self.sending.clear()
        self.open(COORDINATOR_EPOCH + 1)

    def restarted(self, has_earlier_holds: bool = False) -> Self:
        """A successor that knows what is in the log."""
        world = type(self)(self.log, self.config, has_earlier_holds)
        world.next_ids, world.numbers, world.now_ms = self.next_ids, self.numbers, self.now_ms
        return world

    def write_record(self, value: TransactionValue, name: str = "x") -> None:
        """As if it had always been there."""
        self.log[self.coordinator.partition_for(name)].append(encode((name, value)))
        self.reload()

    def records_of(self, name: str = "x") -> list[TransactionValue | None]:
        entries = (decode(key, value) for records in self.log.values() for key, value in records)
        return [entry[1] for entry in entries if entry is not None and entry[0] == name]

    # --- requests

    def ask(self, request: Message, version: int) -> int:
        waiter = next(self.numbers)
        self.coordinator.handle(waiter, request, version)
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

        self.coordinator.check(waiter, call, then)
        return waiter

    def check(self, producer: Producer, *partitions: TopicPartition, **how: Any) -> Any:
        waiter = self.ask_check(producer, *partitions, **how)
        self.settle()
        return self.answers[waiter]

    def check_offsets(self, producer: Producer, partition: int = 0, adds: bool = False) -> list[ErrorCode]:
        """What is heard, once it is."""
        heard: list[ErrorCode] = []
        self.coordinator.check_offsets("x", batches.Producer(*producer), partition, adds, heard.append)
        return heard

    # --- what it has come to

    def value(self, name: str = "x") -> TransactionValue:
        transaction = self.coordinator.manager.find(name)
        assert transaction is not None
        assert transaction.value is not None
        return transaction.value

    @property
    def state(self) -> str:
        return self.value().state.label


def opened(world: World, epoch: int = 0, *, adds: bool = False) -> Producer:
    """A producer with a transaction that has one partition; `adds`: as TV2 has it."""
    producer = world.init()
    if epoch:
        world.write_record(world.value()._replace(producer_epoch=epoch))
        producer = producer[0], epoch
    if adds:
        assert world.check(producer, adds=True).errors == [ErrorCode.NONE]
    else:
        assert world.add(producer) is ErrorCode.NONE
    return producer


def code_of(answer: Any) -> ErrorCode:
    """The error of a whole answer."""
    return answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
