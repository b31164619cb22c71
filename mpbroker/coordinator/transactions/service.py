"""The transaction coordinator within the coordinator process: its requests, its topic and its markers.

`__transaction_state` is created when the first producer asks for its transactional id. When it is read again,
since the log process or the coordinator died, what was decided gets its markers, perhaps once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.runtime.answers import Waiter
from mpbroker.coordinator.runtime.envelope import Envelopes
from mpbroker.coordinator.runtime.journal import Journal
from mpbroker.coordinator.runtime.surroundings import Surroundings, Topics
from mpbroker.coordinator.runtime.topic import Kind, OwnTopic
from mpbroker.coordinator.transactions.coordinator import TransactionCoordinator
from mpbroker.coordinator.transactions.loading import TransactionContents
from mpbroker.coordinator.transactions.marker_sender import MarkerSender, Partitions
from mpbroker.coordinator.transactions.records import Entry, encode
from mpbroker.ipc.calls import CheckedTransaction, CheckTransaction, Failed, ForwardedRequest
from mpbroker.ipc.producer_ids import ProducerIds
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import TRANSACTION_TOPIC
from shm import clock
from shm.table import SlotTable

SERVED: Final = frozenset(
    {
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    }
)


class TransactionService:
    def __init__(
        self, config: BrokerConfig, table: SlotTable, surroundings: Surroundings, partitions: Partitions
    ) -> None:
        self._surroundings = surroundings
        self._forwarded = Envelopes(surroundings.answer_waiter)
        self._journal = Journal[Entry](
            "transactional id",
            encode,
            lambda name: self.coordinator.partition_for(name),
            clock.wall_ms,
            # What could be added can be ended, also when message.max.bytes has become less meanwhile.
            lambda: config.transaction_state_log_segment_bytes,
            lambda name, waiter: self.coordinator.went_wrong(name, waiter),
        )
        self._markers = MarkerSender(partitions, clock.wall_ms, clock.monotonic_ms)
        self.coordinator = TransactionCoordinator(
            config,
            clock,
            self._journal,
            self._markers,
            ProducerIds(surroundings.ask),
            self._forwarded,
            Topics(surroundings),
        )
        self._topic = OwnTopic(
            Kind(
                TRANSACTION_TOPIC,
                config.transaction_state_log_num_partitions,
                config.transaction_state_log_segment_bytes,
                "transactional ids",
                "producers with a transactional id",
            ),
            table,
            config.log_dirs,
            self.coordinator,
            TransactionContents(self.coordinator),
            self._journal,
            surroundings,
            lambda: None,
            self.receive,
            self._forwarded.fail,
        )

    # --- requests

    def receive(self, waiter: Waiter, request: ForwardedRequest) -> None:
        if self._topic.is_missing and request.api_key == ApiKey.INIT_PRODUCER_ID:
            self._topic.hold(waiter, request)
            return
        self._forwarded.handle(
            waiter, request, lambda body: self.coordinator.handle(waiter, body, request.version)
        )

    def check(self, waiter: Waiter, call: CheckTransaction) -> None:
        def checked(outcome: CheckedTransaction | ErrorCode) -> bool:
            answer = Failed(outcome, outcome.message) if isinstance(outcome, ErrorCode) else outcome
            return self._surroundings.answer_waiter(waiter, answer)

        self.coordinator.check(waiter, call, checked)

    def abandon(self, waiter: Waiter) -> None:
        """Whoever made this request is gone; it is still answered, to end it."""
        self._topic.abandon(waiter)
        self.coordinator.abandon(waiter)

    def abandon_all(self, is_gone: Callable[[Waiter], bool]) -> None:
        """A handler died with all it had asked for."""
        self._topic.abandon_all(is_gone)
        for waiter in self.coordinator.waiters():
            if is_gone(waiter):
                self.coordinator.abandon(waiter)

    # --- the loop's view

    def log_died(self) -> None:
        """Whoever waits is told NOT_COORDINATOR."""
        self._topic.forget()
        self._markers.forget()

    def step(self, is_serving: bool) -> None:
        """`is_serving`: the log process is there and has opened all topics."""
        self._topic.step(is_serving)
        if is_serving:
            self._markers.step()

    def sleep_ms(self, most_ms: int) -> int:
        """How long there is nothing to do for us, at most."""
        retry_at_ms = self._markers.retry_at_ms
        if retry_at_ms is not None:
            most_ms = max(0, min(most_ms, retry_at_ms - clock.monotonic_ms()))
        return self._topic.sleep_ms(most_ms)

    @property
    def has_work(self) -> bool:
        """Whether something could be on its way to the log, and is not."""
        return self._journal.has_work

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to the log."""
        return self._journal.is_idle and self._markers.is_idle
