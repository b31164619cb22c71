"""What is to be written to `__consumer_offsets`: rounds of at most one batch for each partition.

One round is under way; what is wanted meanwhile goes into the next. Everything ends in the order in which it
was wanted, within its partition. (Kafka: CoordinatorRuntime with its one pending batch per partition.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from mpbroker.coordinator.groups.group import Waiter
from mpbroker.coordinator.groups.records import Entry, encode
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord

# Of one batch, below what a log accepts; a round with all partitions stays within what the log takes at once.
BATCH_BYTES: Final = 1 << 19
ROUND_BYTES: Final = 4 << 20
RECORD_OVERHEAD_BYTES: Final = 32
BATCH_OVERHEAD_BYTES: Final = 61

Then: TypeAlias = Callable[[ErrorCode], None]

log = logging.getLogger("mpbroker")


@dataclass(eq=False)
class _Wanted:
    """Records that are written together or not at all. Without records: a place in the order."""

    group_id: str
    records: list[NewRecord]
    size: int
    then: Then
    waiter: Waiter | None


class PartitionBatch(NamedTuple):
    partition: int
    batch: bytes
    record_count: int
    max_timestamp: int


class Journal:
    """`partition_for` says where a group's records go; `most_bytes`: of one batch in the log; `failed` hears
    of a group, and of who waited for a record of it, when what follows the record goes wrong.
    """

    def __init__(
        self,
        partition_for: Callable[[str], int],
        now_ms: Callable[[], int],
        most_bytes: Callable[[], int],
        failed: Callable[[str, Waiter | None], None],
    ) -> None:
        self._partition_for = partition_for
        self._now_ms = now_ms
        self._most_bytes = most_bytes
        self._failed = failed
        self._wanted: dict[int, deque[_Wanted]] = {}
        self._round: dict[int, list[_Wanted]] = {}

    @property
    def is_idle(self) -> bool:
        return not (self._wanted or self._round)

    @property
    def has_work(self) -> bool:
        """Whether a round can begin."""
        return bool(self._wanted and not self._round)

    def write(self, group_id: str, entries: list[Entry], then: Then, waiter: Waiter | None = None) -> None:
        stamp = self._now_ms()
        records = [NewRecord(value, key, stamp) for key, value in map(encode, entries)]
        size = sum(len(r.key or b"") + len(r.value or b"") + RECORD_OVERHEAD_BYTES for r in records)
        wanted = _Wanted(group_id, records, size, then, waiter)
        self._wanted.setdefault(self._partition_for(group_id), deque()).append(wanted)

    def next_round(self) -> list[PartitionBatch]:
        """The batches to append now; empty if there are none. What is too large is refused."""
        assert not self._round
        batches: list[PartitionBatch] = []
        total = 0
        for partition in list(self._wanted):
            if total >= ROUND_BYTES:
                break
            taken = self._take(partition)
            records = [record for wanted in taken for record in wanted.records]
            total += sum(wanted.size for wanted in taken)
            if records:
                self._round[partition] = taken
                stamp = max(record.timestamp for record in records)
                batch = bytes(build_batch(records))
                batches.append(PartitionBatch(partition, batch, len(records), stamp))
            else:
                self._end(taken, ErrorCode.NONE)
        return batches

    def _take(self, partition: int) -> list[_Wanted]:
        queue = self._wanted[partition]
        taken: list[_Wanted] = []
        size = BATCH_OVERHEAD_BYTES
        while queue:
            if taken and size + queue[0].size > BATCH_BYTES:
                break
            wanted = queue.popleft()
            if BATCH_OVERHEAD_BYTES + wanted.size > self._most_bytes():
                if taken:
                    queue.appendleft(wanted)
                    break
                log.error(
                    "group %s: %d bytes of records are more than message.max.bytes allows",
                    wanted.group_id,
                    wanted.size,
                )
                self._end([wanted], ErrorCode.MESSAGE_TOO_LARGE)
                continue
            taken.append(wanted)
            size += wanted.size
        if not self._wanted[partition]:
            del self._wanted[partition]
        return taken

    def finish(self, errors: dict[int, ErrorCode]) -> None:
        """The round's outcome, by partition; none is NONE."""
        done, self._round = self._round, {}
        for partition, taken in done.items():
            self._end(taken, errors[partition])

    def fail_all(self, error: ErrorCode) -> None:
        """Nobody knows, or will know, what became of any of it."""
        while self._round or self._wanted:
            done, self._round = self._round, {}
            wanted, self._wanted = self._wanted, {}
            for partition in done.keys() | wanted.keys():
                self._end([*done.get(partition, ()), *wanted.get(partition, ())], error)

    def _end(self, done: list[_Wanted], error: ErrorCode) -> None:
        """What goes wrong with one is no other's affair."""
        for wanted in done:
            try:
                wanted.then(error)
            except Exception:
                log.exception("group %s: what follows a record of it failed", wanted.group_id)
                self._failed(wanted.group_id, wanted.waiter)
