"""Markers on their way into the partitions of transactions that have been decided.

One round is under way; what is decided meanwhile goes into the next, so that the markers of all that ends at
once cost one append. A transaction is complete when each of its partitions has its marker or is no more. What
cannot be appended now, since a log directory is offline or a disk full, is tried again until it can: readers
of what is committed wait for it. (Kafka: TransactionMarkerChannelManager.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from mpbroker.coordinator.runtime.answers import Then
from mpbroker.coordinator.runtime.batches import Marker, PartitionBatch, marker_batch
from mpbroker.coordinator.transactions.records import TopicPartition
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.topic_names import GROUP_TOPIC

# Of one round: some hundred kilobytes.
ROUND_MARKERS: Final = 5_000
RETRY_MS: Final = 100
# The partition has heard of the producer's, or the coordinator's, next life: an older word is void there.
OUTDATED: Final = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
TOLD_EVERY_MS: Final = 60_000

TopicBatch: TypeAlias = tuple[str, PartitionBatch]
"""With the name of the topic."""

log = logging.getLogger("mpbroker")


class Partitions(Protocol):
    """What the coordinator process knows of partitions, and does to them."""

    def exists(self, topic: str, partition: int) -> bool: ...

    def append_markers(self, batches: Sequence[TopicBatch], done: Callable[[list[ErrorCode]], None]) -> None:
        """`done` hears an error for each when they are durable or refused; never if a log worker dies."""

    def write_offsets_marker(self, partition: int, marker: Marker, done: Then) -> None:
        """The same for a partition of `__consumer_offsets`, behind the offsets on their way to it."""


@dataclass(eq=False)
class _Ending:
    """A transaction that ends: how many of its partitions lack their marker."""

    marker: Marker
    missing: int
    then: Callable[[], None]


class MarkerSender:
    """`now_ms` stamps markers, `monotonic_ms` says when to try again."""

    def __init__(
        self, partitions: Partitions, now_ms: Callable[[], int], monotonic_ms: Callable[[], int]
    ) -> None:
        self._partitions = partitions
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._wanted: deque[tuple[_Ending, TopicPartition]] = deque()
        self._refused: list[tuple[_Ending, TopicPartition]] = []
        self._retry_at_ms = 0
        self._tell_at_ms = 0
        self._is_under_way = False
        # Answers of a life before `forget` are nobody's.
        self._life = 0

    @property
    def is_idle(self) -> bool:
        return not (self._wanted or self._refused or self._is_under_way)

    @property
    def retry_at_ms(self) -> int | None:
        """When to look again at what was refused; None: nothing was."""
        return self._retry_at_ms if self._refused else None

    def send(self, marker: Marker, partitions: frozenset[TopicPartition], then: Callable[[], None]) -> None:
        """`then` is called when each has its marker, durably, or is gone; at once if there are none."""
        ending = _Ending(marker, len(partitions), then)
        if not partitions:
            then()
        for partition in sorted(partitions):
            self._wanted.append((ending, partition))

    def forget(self) -> None:
        """Nobody knows what became of what is under way: whoever reads the log again sends it again."""
        self._life += 1
        self._wanted.clear()
        self._refused.clear()
        self._is_under_way = False

    def step(self) -> None:
        """Begins a round, if none is under way and something waits for one."""
        if self._refused and self._monotonic_ms() >= self._retry_at_ms:
            self._wanted.extend(self._refused)
            self._refused.clear()
        if self._is_under_way or not self._wanted:
            return
        now_ms = self._now_ms()
        ours: list[tuple[_Ending, TopicPartition]] = []
        batches: list[TopicBatch] = []
        while self._wanted and len(batches) < ROUND_MARKERS:
            ending, partition = self._wanted.popleft()
            if not self._partitions.exists(*partition):
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
            self._partitions.append_markers(batches, lambda errors: self._appended(life, ours, errors))

    def _send_to_offsets(self, ending: _Ending, partition: TopicPartition) -> None:
        life = self._life

        def written(error: ErrorCode) -> None:
            if life == self._life:
                self._settle(ending, partition, error)

        self._partitions.write_offsets_marker(partition[1], ending.marker, written)

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
                "producer %d, epoch %d: %s-%d knows of a later one; the transaction stays as it is there: %s",
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
        if now_ms >= self._tell_at_ms:
            self._tell_at_ms = now_ms + TOLD_EVERY_MS
            log.warning(
                "the end of a transaction cannot be written to %s-%d now (%s): it is tried again, and "
                "whoever reads what is committed waits for it",
                *partition,
                error.name,
            )

    def _done(self, ending: _Ending) -> None:
        ending.missing -= 1
        if not ending.missing:
            ending.then()
