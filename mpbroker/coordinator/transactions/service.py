"""The transaction coordinator within the coordinator process: its topic, its markers, and checks of appends.

`__transaction_state` is created when the first producer asks for its transactional id. When it is read again,
since a log worker or the coordinator died, transactions whose end was decided get their markers, perhaps once
more.
"""

from __future__ import annotations

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.runtime.envelope import Envelopes
from mpbroker.coordinator.runtime.host import Host, HostTopics
from mpbroker.coordinator.runtime.internal_topic import TopicSpec
from mpbroker.coordinator.runtime.requests import Waiter
from mpbroker.coordinator.runtime.runtime import CoordinatorRuntime
from mpbroker.coordinator.transactions.coordinator import TransactionCoordinator
from mpbroker.coordinator.transactions.marker_sender import MarkerSender, Partitions
from mpbroker.ipc.calls import CheckedTransaction, CheckTransaction, Failed
from mpbroker.ipc.producer_ids import ProducerIds
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import TRANSACTION_TOPIC
from shm import clock


class TransactionService(CoordinatorRuntime):
    def __init__(self, config: BrokerConfig, host: Host, partitions: Partitions) -> None:
        self._host = host
        envelopes = Envelopes(host.answer_waiter)
        self._markers = MarkerSender(partitions, clock.wall_ms, clock.monotonic_ms)
        self.coordinator = TransactionCoordinator(
            config, clock, self._markers, ProducerIds(host.ask), envelopes, HostTopics(host)
        )
        spec = TopicSpec(
            TRANSACTION_TOPIC,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_segment_bytes,
            "transactional ids",
            "producers with a transactional id",
        )
        super().__init__(spec, host, self.coordinator, envelopes)

    def check(self, waiter: Waiter, call: CheckTransaction) -> None:
        """Check whether batches may be appended in a transaction."""

        def checked(outcome: CheckedTransaction | ErrorCode) -> bool:
            answer = Failed(outcome, outcome.message) if isinstance(outcome, ErrorCode) else outcome
            return self._host.answer_waiter(waiter, answer)

        self.coordinator.add_partitions.check(waiter, call, checked)

    # --- the loop's view

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
