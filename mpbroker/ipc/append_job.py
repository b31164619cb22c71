"""Jobs in which a process asks log workers to append record batches: a job's layout, and the results.

    | JobHeader | n times JobBatch | batch, padded to 8 bytes | … |

A job is a block of shared memory. The sender lends the block to the log worker with a PRODUCE_BACK. The log
worker writes the result of each batch into its JobBatch and returns the block with a PRODUCED
(`mpbroker/ipc/slots.pxd`). Batches for several log workers are put into one block per worker. (A job of the
native produce path is in the block of its request, after the frame, together with a response to fill in:
`mpbroker/handlers/hot_path/produce.pyx`.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from mpbroker.ipc.lending import Lender
from mpbroker.ipc.slots import (
    Batch,
    Produce,
    SlotKind,
    job_bytes,
    pack_produce,
    read_job_batch,
    write_job_batch,
    write_job_header,
)
from mpbroker.ipc.topology import log_worker, log_worker_of_slot

ACKS_ALL = -1
# A decision of the coordinator has no client's deadline: its result is known, or is read from the log.
NO_TIMEOUT_MS = (1 << 31) - 1

log = logging.getLogger("mpbroker.ipc")


class NewBatch(NamedTuple):
    """A record batch to append, and the slot in the partition table that it is for.

    `config_version` is the version of the topic's configuration when the batch was made. The fields after
    `data` repeat what the header of the batch says.
    """

    slot: int
    slot_generation: int
    config_version: int
    data: bytes | bytearray | memoryview
    record_count: int
    max_timestamp: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    attributes: int = 0
    base_sequence: int = -1


class Origin(NamedTuple):
    """The connection whose request led to the append."""

    processor: int
    channel: int
    connection: int


Then: TypeAlias = Callable[[list[Batch] | None], None]
"""Called once: with the results in the order of the batches, or with None if a log worker died.

With None it is unknown whether the batches were appended.
"""


def size_of(batches: Sequence[NewBatch]) -> int:
    """Return the size in bytes of a block for a job with these batches."""
    return _padded(job_bytes(len(batches))) + sum(_padded(len(batch.data)) for batch in batches)


def write_job(view: memoryview, block: int, owner: int, batches: Sequence[NewBatch]) -> None:
    """Write a job into `view`, which is the block at offset `block` of the arena of process `owner`."""
    write_job_header(view, len(batches))
    at = _padded(job_bytes(len(batches)))
    for index, batch in enumerate(batches):
        length = len(batch.data)
        view[at : at + length] = batch.data
        write_job_batch(
            view,
            index,
            batch.slot,
            batch.slot_generation,
            block + at,
            owner,
            length,
            batch.record_count,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.max_timestamp,
            batch.config_version,
            batch.attributes,
        )
        at += _padded(length)


def _padded(size: int) -> int:
    return (size + 7) // 8 * 8


@dataclass
class _Whole:
    """One call of `append`: each batch's result or None; `owing` counts log workers that must answer."""

    then: Then
    filled: list[Batch | None]
    owing: int

    def fill(self, places: list[int], batches: list[Batch]) -> None:
        """Add the results of one log worker: `batches[i]` is the result of the batch at index `places[i]`."""
        for place, batch in zip(places, batches, strict=True):
            self.filled[place] = batch
        self.owing -= 1
        if not self.owing:
            self.then([batch for batch in self.filled if batch is not None])

    def lose(self) -> None:
        """Call `then` with None, unless it was called: a log worker died before it returned its part."""
        if self.owing > 0:
            self.owing = 0
            self.then(None)


@dataclass(frozen=True)
class _Part:
    """The batches of one `append` call that go to one log worker, in a block of this process.

    `places` are the indices of these batches in the call.
    """

    worker: int
    block: int
    generation: int
    places: list[int]
    whole: _Whole


class AppendJobs:
    """Appends that the log workers have not answered yet.

    `lender` lends the blocks. `push(descriptor, worker)` sends a descriptor to the log worker with that
    number. `numbers` is the result of `ProcessContext.call_numbers`.
    """

    def __init__(
        self, lender: Lender, push: Callable[[bytes, int], object], log_workers: int, numbers: Iterator[int]
    ) -> None:
        self._lender = lender
        self._push = push
        self._log_workers = log_workers
        self._numbers = numbers
        self._pending: dict[int, _Part] = {}

    def __len__(self) -> int:
        """Return the number of jobs that the log workers have not returned yet."""
        return len(self._pending)

    def append(
        self,
        batches: Sequence[NewBatch],
        then: Then,
        acks: int = ACKS_ALL,
        timeout_ms: int = NO_TIMEOUT_MS,
        origin: Origin | None = None,
    ) -> None:
        """Ask the log workers that own the batches' partitions to append them; `then` gets the results.

        Raises ArenaFull without having sent anything.
        """
        places: dict[int, list[int]] = {}
        for place, batch in enumerate(batches):
            places.setdefault(log_worker_of_slot(batch.slot, self._log_workers), []).append(place)
        whole = _Whole(then, [None] * len(batches), len(places))
        owner, connection = self._lender.owner, origin or Origin(self._lender.owner, 0, 0)
        for part in self._lent(whole, places, batches):
            own = [batches[place] for place in part.places]
            write_job(self._lender.view(part.block), part.block, owner, own)
            number = next(self._numbers)
            self._pending[number] = part
            slot = pack_produce(
                SlotKind.PRODUCE_BACK,
                acks,
                *connection,
                part.block,
                part.generation,
                0,
                owner,
                owner,
                timeout_ms,
                number,
            )
            self._push(slot, part.worker)

    def _lent(self, whole: _Whole, places: dict[int, list[int]], batches: Sequence[NewBatch]) -> list[_Part]:
        """Lend a block for each worker's part; return the parts. Raises ArenaFull after ending the leases."""
        parts: list[_Part] = []
        try:
            for worker, own in places.items():
                size = size_of([batches[place] for place in own])
                parts.append(_Part(worker, *self._lender.lend_room(size, log_worker(worker)), own, whole))
        except BaseException:
            for part in parts:
                self._lender.end(part.block, part.generation)
            raise
        return parts

    def produced(self, slot: Produce) -> None:
        """Take the results out of the job that this PRODUCED returns, and free the job's block."""
        part = self._pending.pop(slot.request, None)
        if part is None:
            log.error("a log worker answered unknown append %d", slot.request)
            return
        view = self._lender.view(part.block)
        filled = [read_job_batch(view, index) for index in range(len(part.places))]
        self._lender.end(part.block, part.generation)
        part.whole.fill(part.places, filled)

    def worker_died(self, worker: int) -> None:
        """End the jobs that were sent to a dead log worker. Their batches may have been appended or not."""
        lost = {number: part for number, part in self._pending.items() if part.worker == worker}
        for number, part in lost.items():
            del self._pending[number]
            self._lender.end(part.block, part.generation)
            part.whole.lose()
