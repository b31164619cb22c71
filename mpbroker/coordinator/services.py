"""The group and the transaction coordinator, connected with the other parts of the coordinator process.

Both serve forwarded requests, write to a topic of their own, and read their topic again if a log worker dies.
Transactions end with markers in partitions of any topic, including `__consumer_offsets`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.bulletins.announcer import Announcer
from mpbroker.coordinator.groups.coordinator import GroupCoordinator
from mpbroker.coordinator.log_link import LogLink
from mpbroker.coordinator.metadata.state import MetadataState, Topic
from mpbroker.coordinator.runtime.host import Appended, Host, TopicBatch
from mpbroker.coordinator.runtime.internal_topic import TopicSpec
from mpbroker.coordinator.runtime.repeats import Repeats
from mpbroker.coordinator.runtime.requests import Answers, Caller, Then, Waiter
from mpbroker.coordinator.runtime.runtime import CoordinatorRuntime
from mpbroker.coordinator.runtime.write_queue import Marker, PartitionBatch
from mpbroker.coordinator.transactions.coordinator import TransactionCoordinator
from mpbroker.coordinator.transactions.marker_sender import MarkerSender
from mpbroker.ipc import calls
from mpbroker.ipc.append_job import NewBatch
from mpbroker.ipc.metadata import PartitionSlots
from mpbroker.ipc.producer_ids import ProducerIds
from mpbroker.ipc.slots import Batch
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC
from mpbroker.security.acls import Operation, ResourceType
from mpbroker.security.authorizer import Client
from shm import clock
from shm.table import SlotTable

Answer: TypeAlias = Callable[[Caller, calls.Message], bool]
IsAllowed: TypeAlias = Callable[[Client, Operation, ResourceType, str], bool]
Ask: TypeAlias = Callable[[calls.Message, Callable[[calls.Message], None]], None]

OURS = calls.ForwardedRequest | calls.CheckTransaction | calls.EndHold | calls.HoldsEnded | calls.Abandon


class TransactionRuntime(CoordinatorRuntime[TransactionCoordinator]):
    """The runtime of the transaction coordinator, which also appends the markers of transactions."""

    def __init__(
        self,
        spec: TopicSpec,
        host: Host,
        shard: TransactionCoordinator,
        answers: Answers,
        markers: MarkerSender,
    ) -> None:
        super().__init__(spec, host, shard, answers)
        self._markers = markers

    def log_died(self) -> None:
        super().log_died()
        self._markers.unload()

    def step(self, is_serving: bool) -> None:
        super().step(is_serving)
        if is_serving:
            self._markers.step()

    def sleep_ms(self, most_ms: int) -> int:
        retry_at_ms = self._markers.retry_at_ms
        if retry_at_ms is not None:
            most_ms = max(0, min(most_ms, retry_at_ms - clock.monotonic_ms()))
        return super().sleep_ms(most_ms)

    @property
    def is_idle(self) -> bool:
        return super().is_idle and self._markers.is_idle


class Services:
    """Runs the group and the transaction coordinator (implements Host).

    `metadata` returns the durable metadata, `is_allowed` decides by the access control entries in it. `ask`
    passes the call of a coordinator to the metadata controller. `handlers`: the running handlers, which may
    still append batches that an earlier coordinator allowed.
    """

    def __init__(
        self,
        config: BrokerConfig,
        table: SlotTable,
        link: LogLink,
        announcer: Announcer,
        metadata: Callable[[], MetadataState],
        is_allowed: IsAllowed,
        ask: Ask,
        answer: Answer,
        handlers: Iterable[int],
    ) -> None:
        self._link = link
        self._announcer = announcer
        self._metadata = metadata
        self._answer = answer
        self.is_allowed = is_allowed
        self.ask = ask
        self._is_serving = False
        self.table = table
        self.log_dirs = config.log_dirs
        self.repeats = Repeats()
        answers = Answers(answer, self.repeats)
        markers = MarkerSender(self, clock.wall_ms, clock.monotonic_ms)
        transactions = TransactionCoordinator(config, clock, markers, ProducerIds(ask), answers, self)
        spec = TopicSpec(
            TRANSACTION_TOPIC,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_segment_bytes,
            "transactional ids",
            "producers with a transactional id",
        )
        self.transactions = TransactionRuntime(spec, self, transactions, answers, markers)
        groups = GroupCoordinator(config, clock, answers, self, _new_id, transactions.add_partitions)
        spec = TopicSpec(
            GROUP_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_segment_bytes,
            "groups and committed offsets",
            "consumer groups",
        )
        self.groups = CoordinatorRuntime(spec, self, groups, answers)
        self._coordinators: dict[int, CoordinatorRuntime[Any]] = {
            **dict.fromkeys(transactions.served, self.transactions),
            **dict.fromkeys(groups.served, self.groups),
        }
        self._granted_before = set(handlers)
        if self._granted_before:
            transactions.end_txn.holds.expect_earlier()

    # --- requests

    def receive(self, caller: Caller, call: OURS) -> None:
        match call:
            case calls.ForwardedRequest():
                caller.api_key, caller.version = call.api_key, call.version
                # If neither coordinator serves the API, the groups' coordinator answers with an error.
                self._coordinators.get(call.api_key, self.groups).receive(caller, call)
            case calls.CheckTransaction():
                self._check_transaction(caller, call)
            case calls.EndHold():
                self.transactions.shard.end_txn.holds.end(call.hold)
                self._answer(caller, calls.Acknowledged())
            case calls.HoldsEnded():
                self._granted_before_no_more(caller.handler)
                self._answer(caller, calls.Acknowledged())
            case calls.Abandon():
                asked = Caller(caller.handler, caller.life, call.request)
                self.groups.abandon(asked)
                self.transactions.abandon(asked)
                self._answer(caller, calls.Acknowledged())

    def _check_transaction(self, caller: Caller, call: calls.CheckTransaction) -> None:
        def checked(outcome: calls.CheckedTransaction | ErrorCode) -> bool:
            answer = calls.Failed(outcome, outcome.message) if isinstance(outcome, ErrorCode) else outcome
            return self._answer(caller, answer)

        self.transactions.shard.add_partitions.check(caller, call, checked)

    def handler_died(self, handler: int) -> None:
        """Drop the requests of a dead handler. The log workers have fenced it, so it appends nothing more."""

        def has_died(waiter: Waiter) -> bool:
            return isinstance(waiter, Caller) and waiter.handler == handler

        self.groups.abandon_all(has_died)
        self.transactions.abandon_all(has_died)
        self.transactions.shard.end_txn.holds.end_all_of(has_died)
        self._granted_before_no_more(handler)

    def _granted_before_no_more(self, handler: int) -> None:
        if handler in self._granted_before:
            self._granted_before.discard(handler)
            if not self._granted_before:
                self.transactions.shard.end_txn.holds.earlier_ended()

    # --- the Host

    @property
    def metadata(self) -> MetadataState:
        return self._metadata()

    def partitions_of(self, name: str) -> int:
        topic_id = self.metadata.ids.get(name)
        return 0 if topic_id is None else self.metadata.topics[topic_id].partitions

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self.metadata.topics.get(topic_id)
        return None if topic is None else topic.name

    def id_of(self, name: str) -> bytes | None:
        return self.metadata.ids.get(name)

    def images_of(self, topic_id: bytes) -> PartitionSlots | None:
        return self._announcer.slots.get(topic_id)

    def append_for_us(self, topic: Topic, batches: list[PartitionBatch], done: Appended) -> None:
        wanted = [self._new_batch(topic.topic_id, batch) for batch in batches]
        self._link.append_all(wanted, lambda filled: done(_errors(filled)))

    def _new_batch(self, topic_id: bytes, batch: PartitionBatch) -> NewBatch:
        image = self._announcer.slots[topic_id][batch.partition]
        # Send the version that the log process has opened: altered settings may not have reached it yet.
        version = self._announcer.topics[topic_id].config_version
        slot = image.slot, image.slot_generation, version
        count, stamp = batch.record_count, batch.max_timestamp
        return NewBatch(*slot, batch.batch, count, stamp, *batch.producer, batch.attributes)

    def append_markers(self, batches: Sequence[TopicBatch], done: Appended) -> None:
        errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(batches)
        indices: list[int] = []
        wanted: list[NewBatch] = []
        for index, (topic, batch) in enumerate(batches):
            topic_id = self.metadata.ids.get(topic, b"")
            if batch.partition in self._announcer.slots.get(topic_id, ()):
                indices.append(index)
                wanted.append(self._new_batch(topic_id, batch))

        def appended(filled: list[Batch]) -> None:
            for index, error in zip(indices, _errors(filled), strict=True):
                errors[index] = error
            done(errors)

        if wanted:
            self._link.append_all(wanted, appended)
        else:
            done(errors)

    def write_offsets_marker(self, partition: int, marker: Marker, done: Then) -> None:
        self.groups.shard.txn_offset_commit.write_marker(partition, marker, done)

    # --- the loop's view

    def log_died(self) -> None:
        self.groups.log_died()
        self.transactions.log_died()

    def step(self, is_serving: bool) -> None:
        """Do all possible work. `is_serving`: the log workers are up and have opened all topics."""
        self._is_serving = is_serving
        self.transactions.step(is_serving)
        self.groups.step(is_serving)

    def sleep_ms(self, most_ms: int) -> int:
        """Return how many ms the loop may sleep, at most `most_ms`; 0 if either coordinator has work."""
        if self._is_serving and (self.groups.has_work or self.transactions.has_work):
            return 0
        return min(self.groups.sleep_ms(most_ms), self.transactions.sleep_ms(most_ms))

    @property
    def is_idle(self) -> bool:
        return self.groups.is_idle and self.transactions.is_idle


def _new_id() -> str:
    return str(uuid.uuid4())


def _errors(filled: Iterable[Batch]) -> list[ErrorCode]:
    return [error_code(batch.error) for batch in filled]
