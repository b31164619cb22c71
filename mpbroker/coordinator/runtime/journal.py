"""What is to be written to a coordinator's topic: rounds of batches, several for a partition, in order.

One round is under way; what is wanted meanwhile goes into the next. Everything ends in the order in which it
was wanted, within its partition, and what is refused is refused alone. Records of a producer's transaction
have a batch of their own, and so has the marker that ends it. (Kafka: CoordinatorRuntime with its one pending
batch per partition.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from mpbroker.coordinator.runtime.answers import Then, Waiter
from mpbroker.coordinator.runtime.batches import NOBODY, Marker, PartitionBatch, Producer, marker_batch
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.batch import TRANSACTIONAL_BIT
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

# Of one partition in a round, below what a log accepts of a batch; a round with all partitions stays within
# what the log takes at once.
BATCH_BYTES: Final = 1 << 19
ROUND_BYTES: Final = 4 << 20
RECORD_OVERHEAD_BYTES: Final = 32
BATCH_OVERHEAD_BYTES: Final = 61

EntryT = TypeVar("EntryT")

log = logging.getLogger("mpbroker")


@dataclass(eq=False)
class _Wanted:
    """Records that are written together or not at all, or a marker. Without either: a place in the order."""

    name: str | None
    records: list[NewRecord]
    size: int
    then: Then
    waiter: Waiter | None = None
    producer: Producer = NOBODY
    marker: PartitionBatch | None = None

    @property
    def is_place(self) -> bool:
        return not (self.records or self.marker)


class Journal(Generic[EntryT]):
    """`noun` says what has the names, `encode` makes key and value of an entry; `partition_for` says where
    the records of a name go; `most_bytes`: of one batch in the log; `failed` hears of a name, and of who
    waited for a record of it, when what follows the record goes wrong.
    """

    def __init__(
        self,
        noun: str,
        encode: Callable[[EntryT], tuple[bytes, bytes | None]],
        partition_for: Callable[[str], int],
        now_ms: Callable[[], int],
        most_bytes: Callable[[], int],
        failed: Callable[[str, Waiter | None], None],
    ) -> None:
        self._noun = noun
        self._encode = encode
        self._partition_for = partition_for
        self._now_ms = now_ms
        self._most_bytes = most_bytes
        self._failed = failed
        self._wanted: dict[int, deque[_Wanted]] = {}
        # By batch: what is in it.
        self._round: list[tuple[int, list[_Wanted]]] = []

    @property
    def is_idle(self) -> bool:
        return not (self._wanted or self._round)

    @property
    def has_work(self) -> bool:
        """Whether a round can begin."""
        return bool(self._wanted and not self._round)

    def write(
        self,
        name: str,
        entries: Sequence[EntryT],
        then: Then,
        waiter: Waiter | None = None,
        producer: Producer = NOBODY,
    ) -> None:
        stamp = self._now_ms()
        records = [NewRecord(value, key, stamp) for key, value in map(self._encode, entries)]
        size = sum(len(r.key or b"") + len(r.value or b"") + RECORD_OVERHEAD_BYTES for r in records)
        self._want(self._partition_for(name), _Wanted(name, records, size, then, waiter, producer))

    def write_marker(self, partition: int, marker: Marker, then: Then) -> None:
        """Ends a producer's transaction in that partition, behind all that was wanted before."""
        batch = marker_batch(partition, marker, self._now_ms())
        size = len(batch.batch) - BATCH_OVERHEAD_BYTES
        self._want(partition, _Wanted(None, [], size, then, producer=batch.producer, marker=batch))

    def _want(self, partition: int, wanted: _Wanted) -> None:
        self._wanted.setdefault(partition, deque()).append(wanted)

    def next_round(self) -> list[PartitionBatch]:
        """The batches to append now; empty if there are none. What is too large is refused."""
        assert not self._round
        batches: list[PartitionBatch] = []
        total = 0
        for partition in list(self._wanted):
            if total >= ROUND_BYTES:
                break
            total += self._take_some(partition, batches)
            if not self._wanted[partition]:
                del self._wanted[partition]
        return batches

    def _take_some(self, partition: int, batches: list[PartitionBatch]) -> int:
        """Batches of one partition, as many as a round may have; -> their bytes."""
        queue = self._wanted[partition]
        size = 0
        while queue and size < BATCH_BYTES:
            if self._is_too_large(queue[0]):
                if size:
                    break  # it is refused when those before it are through
                self._refuse(queue.popleft())
                continue
            taken = self._take(queue, BATCH_BYTES - size)
            if all(wanted.is_place for wanted in taken):
                self._end(taken, ErrorCode.NONE)
                continue
            size += BATCH_OVERHEAD_BYTES + sum(wanted.size for wanted in taken)
            self._round.append((partition, taken))
            batches.append(self._batch(partition, taken))
        return size

    def _take(self, queue: deque[_Wanted], most_bytes: int) -> list[_Wanted]:
        """What goes into the next batch, at least one."""
        taken: list[_Wanted] = []
        size = BATCH_OVERHEAD_BYTES
        filled: _Wanted | None = None
        while queue:
            wanted = queue[0]
            if not wanted.is_place and filled is not None:
                has_marker = wanted.marker is not None or filled.marker is not None
                is_of_another = has_marker or wanted.producer != filled.producer
                if is_of_another or size + wanted.size > most_bytes:
                    break
            if self._is_too_large(wanted):
                break
            taken.append(queue.popleft())
            size += wanted.size
            if not wanted.is_place:
                filled = wanted
        return taken

    def _is_too_large(self, wanted: _Wanted) -> bool:
        return BATCH_OVERHEAD_BYTES + wanted.size > self._most_bytes()

    def _refuse(self, wanted: _Wanted) -> None:
        log.error(
            "%s %s: %d bytes of records are more than message.max.bytes allows",
            self._noun,
            wanted.name,
            wanted.size,
        )
        self._end([wanted], ErrorCode.MESSAGE_TOO_LARGE)

    def _batch(self, partition: int, taken: list[_Wanted]) -> PartitionBatch:
        records = [record for wanted in taken for record in wanted.records]
        first = next(wanted for wanted in taken if not wanted.is_place)
        if first.marker is not None:
            return first.marker
        producer = first.producer
        bits = TRANSACTIONAL_BIT if producer != NOBODY else 0
        batch = build_batch(
            records,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transactional=bool(bits),
        )
        stamp = max(record.timestamp for record in records)
        return PartitionBatch(partition, bytes(batch), len(records), stamp, producer, bits)

    def finish(self, errors: list[ErrorCode]) -> None:
        """The round's outcome, batch by batch; none is NONE."""
        done, self._round = self._round, []
        for (_, taken), error in zip(done, errors, strict=True):
            self._end(taken, error)

    def fail_all(self, error: ErrorCode) -> None:
        """Nobody knows, or will know, what became of any of it."""
        while self._round or self._wanted:
            done, self._round = self._round, []
            wanted, self._wanted = self._wanted, {}
            for _, taken in done:
                self._end(taken, error)
            for queue in wanted.values():
                self._end(list(queue), error)

    def _end(self, done: list[_Wanted], error: ErrorCode) -> None:
        """What goes wrong with one is no other's affair."""
        for wanted in done:
            try:
                wanted.then(error)
            except Exception:
                if wanted.name is None:
                    log.exception(
                        "what follows the end of a transaction failed: producer %d",
                        wanted.producer.producer_id,
                    )
                    continue
                log.exception("%s %s: what follows a record of it failed", self._noun, wanted.name)
                self._failed(wanted.name, wanted.waiter)
