"""Appends that the slow path asks for: validated batches and their job in one block of this handler's arena.

    | JobHeader | n times JobBatch | batch, padded to 8 | … |

The log worker fills the job and sends it back (PRODUCE_BACK, PRODUCED in slots.pxd); the answer is made
here. Partitions of several workers take a block for each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from mpbroker.handlers.waiting import Waiting
from mpbroker.ipc.slots import (
    Batch,
    Produce,
    Request,
    SlotKind,
    job_bytes,
    pack_produce,
    read_job_batch,
    write_job_batch,
    write_job_header,
)
from mpbroker.ipc.topology import log_worker, log_worker_of_slot
from mpbroker.records.validation import ValidatedBatch
from shm.arena import Arena, ArenaFull


class Append(NamedTuple):
    """A batch and the place that it is for."""

    slot: int
    slot_generation: int
    config_version: int
    batch: ValidatedBatch


Then: TypeAlias = Callable[[list[Batch] | None], None]
"""Gets the filled batches in the order given, once; None if a log worker died, so that nobody knows, or if
nothing is appended: there was no room for too long, or nobody is left to be answered.
"""


@dataclass
class _Whole:
    """What was asked for at once: `filled` in the order given."""

    then: Then
    filled: list[Batch | None]
    owing: int

    def put(self, places: list[int], batches: list[Batch]) -> None:
        """A log worker has done its part."""
        for place, batch in zip(places, batches, strict=True):
            self.filled[place] = batch
        self.owing -= 1
        if not self.owing:
            self.then([batch for batch in self.filled if batch is not None])

    def lose(self) -> None:
        """A log worker died with its part: says so once, however the others end."""
        if self.owing > 0:
            self.owing = 0
            self.then(None)


@dataclass(frozen=True)
class _Part:
    """What one log worker has of it, in a block of ours. `places`: of its batches, in the whole."""

    worker: int
    block: int
    size: int
    places: list[int]
    whole: _Whole


class Jobs:
    """`push` sends a slot to the log worker of that number, in order with all that this handler sent it."""

    def __init__(
        self,
        index: int,
        arena: Arena,
        push: Callable[[bytes, int], None],
        waiting: Waiting,
        log_workers: int = 1,
    ) -> None:
        self._index = index
        self._arena = arena
        self._push = push
        self._waiting = waiting
        self._deaths = 0
        self._up = [True] * log_workers
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Part] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def is_up(self, slot: int) -> bool:
        """Whether there is a log worker for the partition in this slot of the table."""
        return self._up[self._worker_of(slot)]

    def are_up(self) -> bool:
        """Whether no log worker is away."""
        return all(self._up)

    def set_up(self, worker: int, up: bool) -> None:
        self._up[worker] = up

    def _worker_of(self, slot: int) -> int:
        return log_worker_of_slot(slot, len(self._up))

    def append(
        self, request: Request, acks: int, timeout_ms: int, appends: Sequence[Append], then: Then
    ) -> None:
        """Raises shm.arena.ArenaFull, having sent nothing, if there is no room and too much waits for some.
        There is nobody to send to while a log worker is dead: its ring is reset before there is a successor.
        Who waits is lost with any of them: processors take every produce for lost then, and have the memory
        of its batches for others.
        """
        held = sum(len(a.batch.data) for a in appends if a.batch.rebuilt)
        deaths = self._deaths

        def attempt() -> None:
            if self._deaths == deaths and all(self.is_up(a.slot) for a in appends):
                self._append(request, acks, timeout_ms, appends, then)
            else:
                then(None)

        self._waiting.run(request, held, attempt, lambda: then(None), lambda: then(None))

    def _append(
        self, request: Request, acks: int, timeout_ms: int, appends: Sequence[Append], then: Then
    ) -> None:
        places: dict[int, list[int]] = {}
        for place, one in enumerate(appends):
            places.setdefault(self._worker_of(one.slot), []).append(place)
        whole = _Whole(then, [None] * len(appends), len(places))
        parts: list[_Part] = []
        try:
            for worker, own in places.items():
                size = _size_of([appends[place] for place in own])
                parts.append(_Part(worker, self._arena.allocate(size), size, own, whole))
        except ArenaFull:
            for part in parts:
                self._arena.free(part.block, part.size)
            raise
        for part in parts:
            self._fill(part, [appends[place] for place in part.places])
            number = next(self._numbers) & 0xFFFFFFFF
            generation = self._arena.lend(part.block, log_worker(part.worker))
            self._pending[number] = part
            self._push(
                pack_produce(
                    SlotKind.PRODUCE_BACK,
                    acks,
                    request.processor,
                    request.channel,
                    request.connection,
                    part.block,
                    generation,
                    0,
                    self._index,
                    self._index,
                    max(timeout_ms, 0),
                    number,
                ),
                part.worker,
            )

    def _fill(self, part: _Part, appends: Sequence[Append]) -> None:
        view = self._arena.view(part.block, part.size)
        write_job_header(view, len(appends))
        at = _padded(job_bytes(len(appends)))
        for i, (slot, slot_generation, config_version, batch) in enumerate(appends):
            length = len(batch.data)
            view[at : at + length] = batch.data
            write_job_batch(
                view,
                i,
                slot,
                slot_generation,
                part.block + at,
                self._index,
                length,
                batch.record_count,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.max_timestamp,
                config_version,
                batch.attributes,
            )
            at += _padded(length)

    def produced(self, slot: Produce) -> None:
        """A PRODUCED has come back."""
        part = self._pending.pop(slot.request, None)
        if part is None:
            return
        view = self._arena.view(part.block, part.size)
        filled = [read_job_batch(view, i) for i in range(len(part.places))]
        self._end_lease(part)
        part.whole.put(part.places, filled)

    def fenced(self, worker: int = 0) -> None:
        """A log worker is dead: what it had may be appended or not."""
        self._up[worker] = False
        self._deaths += 1
        lost = {number: part for number, part in self._pending.items() if part.worker == worker}
        for number, part in lost.items():
            del self._pending[number]
            self._end_lease(part)
            part.whole.lose()

    def _end_lease(self, part: _Part) -> None:
        self._arena.take_back(part.block, self._arena.generation(part.block))
        self._arena.free(part.block, part.size)


def _padded(size: int) -> int:
    return (size + 7) // 8 * 8


def _size_of(appends: Sequence[Append]) -> int:
    return _padded(job_bytes(len(appends))) + sum(_padded(len(a.batch.data)) for a in appends)
