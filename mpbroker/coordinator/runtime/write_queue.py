"""A queue of records to be appended to a coordinator's topic, in rounds of batches.

One round is under way at a time; later appends go into the next round. Within a partition, appends end in the
order in which they were queued. Records of a producer's transaction, and its marker, have batches of their
own. A refused batch affects other batches only if it has an append with an `undo`. Such appends
describe changes that were made in memory already, and each builds on the earlier appends with the same name
(a group id). If one is refused, all waiting appends with its name are refused with it, and their changes are
undone, the newest first. These refused appends end at once, even before appends with other names that were
queued earlier. (Kafka: CoordinatorRuntime, with one pending batch per partition, and snapshots to which a
failed write returns.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from mpbroker.coordinator.runtime.requests import Then, Waiter
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.batch import CONTROL_BIT, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TRANSACTIONAL_BIT
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.record import NewRecord

# The most of one partition in a round, below the largest batch that a log accepts; a round with all
# partitions stays within what the log takes at once.
BATCH_BYTES: Final = 1 << 19
ROUND_BYTES: Final = 4 << 20
RECORD_OVERHEAD_BYTES: Final = 32
BATCH_OVERHEAD_BYTES: Final = 61

EntryT = TypeVar("EntryT")
Undo: TypeAlias = Callable[[], None]

log = logging.getLogger("mpbroker.coordinator")


class Producer(NamedTuple):
    """The id and epoch of a producer, for records that belong to its transaction."""

    producer_id: int
    epoch: int


NOBODY: Final = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class PartitionBatch(NamedTuple):
    partition: int
    batch: bytes
    record_count: int
    max_timestamp: int
    producer: Producer = NOBODY
    attributes: int = 0


class Marker(NamedTuple):
    """Marks a transaction's end in each partition of the transaction (Kafka: TxnMarkerEntry)."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


def marker_batch(partition: int, marker: Marker, timestamp: int) -> PartitionBatch:
    data = build_transaction_marker(
        COMMIT if marker.is_commit else ABORT,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=timestamp,
    )
    producer = Producer(marker.producer_id, marker.producer_epoch)
    return PartitionBatch(partition, bytes(data), 1, timestamp, producer, TRANSACTIONAL_BIT | CONTROL_BIT)


@dataclass(eq=False)
class _Append:
    """Records that are written together or not at all, or a marker.

    An append without records or marker is a barrier: it ends when all earlier appends have ended.
    """

    name: str | None
    records: list[NewRecord]
    size: int
    then: Then
    waiter: Waiter | None = None
    producer: Producer = NOBODY
    marker: PartitionBatch | None = None
    undo: Undo | None = None

    @property
    def is_place(self) -> bool:
        return not (self.records or self.marker)


@dataclass(eq=False)
class WriteQueue(Generic[EntryT]):
    """Appends that wait or are under way. `_noun`: the word before a name in log messages, such as "group".

    `_encode(entry)` returns key and value of a record, `_partition_for(name)` the number of a partition.
    `_most_bytes()` returns the largest allowed size of a batch. `_on_fault(name, waiter)` is called if `then`
    of an append raised.
    """

    _noun: str
    _encode: Callable[[EntryT], tuple[bytes, bytes | None]]
    _partition_for: Callable[[str], int]
    _now_ms: Callable[[], int]
    _most_bytes: Callable[[], int]
    _on_fault: Callable[[str, Waiter | None], None]
    # By partition.
    _waiting: dict[int, deque[_Append]] = field(default_factory=dict, init=False)
    # The appends of each batch of the round under way.
    _round: list[list[_Append]] = field(default_factory=list, init=False)

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._round)

    @property
    def has_work(self) -> bool:
        """True if appends wait and no round is under way."""
        return bool(self._waiting and not self._round)

    def append(
        self,
        name: str,
        entries: Sequence[EntryT],
        then: Then,
        waiter: Waiter | None = None,
        producer: Producer = NOBODY,
        undo: Undo | None = None,
    ) -> None:
        """Queue entries for the partition of a name. `then` is called when they are durable or refused.

        `waiter`: the request that `then` answers. `producer`: the producer whose transaction has the records.
        `undo`: undoes the changes that the entries describe; called before `then` if they are refused.
        """
        stamp = self._now_ms()
        records = [NewRecord(value, key, stamp) for key, value in map(self._encode, entries)]
        size = sum(len(r.key or b"") + len(r.value or b"") + RECORD_OVERHEAD_BYTES for r in records)
        append = _Append(name, records, size, then, waiter, producer, undo=undo)
        self._waiting.setdefault(self._partition_for(name), deque()).append(append)

    def append_marker(self, partition: int, marker: Marker, then: Then) -> None:
        """Queue a marker for the partition. `then` is called when it is durable or refused."""
        batch = marker_batch(partition, marker, self._now_ms())
        size = len(batch.batch) - BATCH_OVERHEAD_BYTES
        append = _Append(None, [], size, then, producer=batch.producer, marker=batch)
        self._waiting.setdefault(partition, deque()).append(append)

    def next_round(self) -> list[PartitionBatch]:
        """Begin a round: return the batches to append. Appends too large for a batch are refused."""
        assert not self._round
        batches: list[PartitionBatch] = []
        total = 0
        for partition in list(self._waiting):
            if total >= ROUND_BYTES:
                break
            total += self._take_some(partition, batches)
            if not self._waiting[partition]:
                del self._waiting[partition]
        return batches

    def _take_some(self, partition: int, batches: list[PartitionBatch]) -> int:
        """Add a partition's next batches to `batches`, up to BATCH_BYTES. Return the number of bytes."""
        queue = self._waiting[partition]
        size = 0
        while queue and size < BATCH_BYTES:
            if self._is_too_large(queue[0]):
                if size:
                    break  # It is refused when the appends before it have ended.
                self._refuse(partition, queue.popleft())
                continue
            taken = self._take(queue, min(BATCH_BYTES - size, self._most_bytes()))
            if all(append.is_place for append in taken):
                self._end(taken, ErrorCode.NONE)
                continue
            size += BATCH_OVERHEAD_BYTES + sum(append.size for append in taken)
            self._round.append(taken)
            batches.append(self._batch(partition, taken))
            if any(append.undo for append in taken):
                break  # Appends that build on it wait for its outcome.
        return size

    def _take(self, queue: deque[_Append], most_bytes: int) -> list[_Append]:
        """Remove from the queue the appends that share the next batch, at least one, and return them."""
        taken: list[_Append] = []
        size = BATCH_OVERHEAD_BYTES
        filled: _Append | None = None
        while queue:
            append = queue[0]
            if not append.is_place and filled is not None:
                has_marker = append.marker is not None or filled.marker is not None
                is_of_another = has_marker or append.producer != filled.producer
                if is_of_another or size + append.size > most_bytes:
                    break
            if self._is_too_large(append):
                break
            taken.append(queue.popleft())
            size += append.size
            if not append.is_place:
                filled = append
        return taken

    def _is_too_large(self, append: _Append) -> bool:
        return BATCH_OVERHEAD_BYTES + append.size > self._most_bytes()

    def _refuse(self, partition: int, append: _Append) -> None:
        log.warning(
            "%s %s: %d bytes of records are more than message.max.bytes allows",
            self._noun,
            append.name,
            append.size,
        )
        self._end(self._undone(partition, [append]), ErrorCode.MESSAGE_TOO_LARGE)

    def _batch(self, partition: int, taken: list[_Append]) -> PartitionBatch:
        records = [record for append in taken for record in append.records]
        first = next(append for append in taken if not append.is_place)
        if first.marker is not None:
            return first.marker
        producer = first.producer
        bits = TRANSACTIONAL_BIT if producer != NOBODY else 0
        batch = build_batch(
            records, producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=bool(bits)
        )
        stamp = max(record.timestamp for record in records)
        return PartitionBatch(partition, bytes(batch), len(records), stamp, producer, bits)

    def finish(self, errors: list[ErrorCode]) -> None:
        """End the round under way. `errors` has the outcome of each batch, NONE if it is durable."""
        done, self._round = self._round, []
        for taken, error in zip(done, errors, strict=True):
            name = next(append.name for append in taken if not append.is_place)
            if error and name is not None:
                taken = self._undone(self._partition_for(name), taken)
            self._end(taken, error)
        self._waiting = {partition: queue for partition, queue in self._waiting.items() if queue}

    def _undone(self, partition: int, refused: list[_Append]) -> list[_Append]:
        """Undo the changes of refused appends and of all that build on them. Return all of these."""
        if not any(append.undo for append in refused):
            return refused
        waiting = self._waiting.get(partition, deque())
        names = {append.name for append in refused if append.undo}
        later = [append for append in waiting if append.name in names]
        others = [append for append in waiting if append.name not in names]
        waiting.clear()
        waiting.extend(others)
        for append in reversed([*refused, *later]):
            if append.undo is not None:
                append.undo()
        return [*refused, *later]

    def fail_all(self, error: ErrorCode) -> None:
        """End all appends, waiting or under way, with an error: a log worker has died."""
        while self._round or self._waiting:
            done, self._round = self._round, []
            waiting, self._waiting = self._waiting, {}
            for taken in done:
                self._end(taken, error)
            for queue in waiting.values():
                self._end(list(queue), error)

    def _end(self, done: list[_Append], error: ErrorCode) -> None:
        """Call `then` of each append with the outcome. An exception in one does not affect the others."""
        for append in done:
            try:
                append.then(error)
            except Exception:
                if append.name is None:
                    log.exception(
                        "the callback of a transaction marker failed: producer %d",
                        append.producer.producer_id,
                    )
                    continue
                log.exception("%s %s: the callback of an append failed", self._noun, append.name)
                self._on_fault(append.name, append.waiter)
