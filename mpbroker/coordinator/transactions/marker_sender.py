"""Appends markers to the partitions of transactions whose end is decided.

One round is under way at a time. Later markers go into the next round, so the markers of many transactions
cost one append. A transaction is complete when each of its partitions has the marker or is deleted. A marker
that cannot be appended, for instance because the disk is full, is retried: readers of committed records wait
for it. (Kafka: TransactionMarkerChannelManager.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mpbroker.coordinator.runtime.host import Host, TopicBatch
from mpbroker.coordinator.runtime.write_queue import Marker, marker_batch
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import GROUP_TOPIC, TopicPartition

# The most markers in a round: some 10 ms of the coordinator's work.
ROUND_MARKERS: Final = 1_000
# How soon a marker, or the record that a transaction is over, is tried again.
RETRY_MS: Final = 100
# The partition knows a later epoch of the producer or the coordinator: this marker is void there.
OUTDATED: Final = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
LOG_EVERY_MS: Final = 60_000

log = logging.getLogger("mpbroker.coordinator.transactions")


@dataclass(eq=False)
class _Ending:
    """A transaction that ends. `missing`: how many of its partitions do not have the marker yet."""

    marker: Marker
    missing: int
    complete: Callable[[], None]


@dataclass(eq=False)
class MarkerSender:
    """Appends markers, round by round. `_now_ms` is the clock for markers, `_monotonic_ms` for retries."""

    _host: Host
    _now_ms: Callable[[], int]
    _monotonic_ms: Callable[[], int]
    _waiting: deque[tuple[_Ending, TopicPartition]] = field(default_factory=deque, init=False)
    _refused: list[tuple[_Ending, TopicPartition]] = field(default_factory=list, init=False)
    _retry_at_ms: int = field(default=0, init=False)
    _log_at_ms: int = field(default=0, init=False)
    _is_under_way: bool = field(default=False, init=False)
    # Counts calls of `unload`: the outcome of a round that began before the last one is void.
    _life: int = field(default=0, init=False)

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._refused or self._is_under_way)

    @property
    def retry_at_ms(self) -> int | None:
        """The time of the next retry on the monotonic clock; None if no marker waits for a retry."""
        return self._retry_at_ms if self._refused else None

    def send(
        self, marker: Marker, partitions: frozenset[TopicPartition], complete: Callable[[], None]
    ) -> None:
        """Append the marker to each partition. Call `complete` when each has the marker or is deleted."""
        ending = _Ending(marker, len(partitions), complete)
        if not partitions:
            complete()
        for partition in sorted(partitions):
            self._waiting.append((ending, partition))

    def unload(self) -> None:
        """Drop all markers, because a log worker died. The coordinator resends them after it has reloaded."""
        self._life += 1
        self._waiting.clear()
        self._refused.clear()
        self._is_under_way = False

    def step(self) -> None:
        """Begin a round if markers wait and no round is under way."""
        if self._refused and self._monotonic_ms() >= self._retry_at_ms:
            self._waiting.extend(self._refused)
            self._refused.clear()
        if self._is_under_way or not self._waiting:
            return
        now_ms = self._now_ms()
        ours: list[tuple[_Ending, TopicPartition]] = []
        batches: list[TopicBatch] = []
        while self._waiting and len(batches) < ROUND_MARKERS:
            ending, partition = self._waiting.popleft()
            if not 0 <= partition[1] < self._host.partitions_of(partition[0]):
                self._done(ending)
            elif partition[0] == GROUP_TOPIC:
                self._send_to_offsets(ending, partition)
            else:
                ours.append((ending, partition))
                topic, number = partition
                batches.append((topic, marker_batch(number, ending.marker, now_ms)))
        if batches:
            self._is_under_way = True
            life = self._life
            self._host.append_markers(batches, lambda errors: self._appended(life, ours, errors))

    def _send_to_offsets(self, ending: _Ending, partition: TopicPartition) -> None:
        life = self._life

        def written(error: ErrorCode) -> None:
            if life == self._life:
                self._settle(ending, partition, error)

        self._host.write_offsets_marker(partition[1], ending.marker, written)

    def _appended(
        self, life: int, sent: list[tuple[_Ending, TopicPartition]], errors: list[ErrorCode]
    ) -> None:
        if life != self._life:
            return
        self._is_under_way = False
        for (ending, partition), error in zip(sent, errors, strict=True):
            self._settle(ending, partition, error)

    def _settle(self, ending: _Ending, partition: TopicPartition, error: ErrorCode) -> None:
        if error and error not in OUTDATED:
            self._refuse(ending, partition, error)
            return
        if error:
            log.warning(
                "producer %d, epoch %d: %s-%d has a later epoch; the transaction stays unchanged there: %s",
                ending.marker.producer_id,
                ending.marker.producer_epoch,
                *partition,
                error.name,
            )
        self._done(ending)

    def _refuse(self, ending: _Ending, partition: TopicPartition, error: ErrorCode) -> None:
        now_ms = self._monotonic_ms()
        if not self._refused:
            self._retry_at_ms = now_ms + RETRY_MS
        self._refused.append((ending, partition))
        if now_ms >= self._log_at_ms:
            self._log_at_ms = now_ms + LOG_EVERY_MS
            log.warning(
                "the end of a transaction cannot be written to %s-%d now (%s): it is tried again. Readers of "
                "committed records wait for it",
                *partition,
                error.name,
            )

    def _done(self, ending: _Ending) -> None:
        ending.missing -= 1
        if not ending.missing:
            ending.complete()
