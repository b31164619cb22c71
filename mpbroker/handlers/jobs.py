"""Appends that the slow path asks for: validated batches and their job in one block of this handler's arena.

    | JobHeader | n times JobBatch | batch, padded to 8 | … |

The log process fills the job and sends it back (PRODUCE_BACK, PRODUCED in slots.pxd); the answer is made
here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
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
from mpbroker.ipc.topology import LOG
from mpbroker.records.validation import ValidatedBatch
from shm.arena import Arena


class Append(NamedTuple):
    """A batch and the place that it is for."""

    slot: int
    slot_generation: int
    config_version: int
    batch: ValidatedBatch


Then: TypeAlias = Callable[[list[Batch] | None], None]
"""Gets the filled batches in the order given; None if the log process died, so that nobody knows."""


class Jobs:
    """`push` sends a slot to the log process, in order with all that this handler sent before."""

    def __init__(self, index: int, arena: Arena, push: Callable[[bytes], None], waiting: Waiting) -> None:
        self._index = index
        self._arena = arena
        self._push = push
        self._waiting = waiting
        # Grows with each death of the log process: whoever waits is for one that lives.
        self._deaths = 0
        self._numbers = itertools.count(1)
        self._pending: dict[int, tuple[int, int, int, int, Then]] = {}
        self.log_is_up = True

    def __len__(self) -> int:
        return len(self._pending)

    def append(
        self, request: Request, acks: int, timeout_ms: int, appends: Sequence[Append], then: Then
    ) -> None:
        """Raises shm.arena.ArenaFull, having sent nothing, if there is no room and too much waits for some.
        There is nobody to send to while the log process is dead: its ring is reset before there is a
        successor.
        """
        deaths, held = self._deaths, sum(len(a.batch.data) for a in appends if a.batch.rebuilt)

        def attempt() -> None:
            if self.log_is_up and deaths == self._deaths:
                self._append(request, acks, timeout_ms, appends, then)
            else:
                then(None)

        self._waiting.run(request, held, attempt, lambda: then(None))

    def _append(
        self, request: Request, acks: int, timeout_ms: int, appends: Sequence[Append], then: Then
    ) -> None:
        head = job_bytes(len(appends))
        size = (head + 7) // 8 * 8 + sum((len(a.batch.data) + 7) // 8 * 8 for a in appends)
        block = self._arena.allocate(size)
        view = self._arena.view(block, size)
        write_job_header(view, len(appends))
        at = (head + 7) // 8 * 8
        for i, (slot, slot_generation, config_version, batch) in enumerate(appends):
            length = len(batch.data)
            view[at : at + length] = batch.data
            write_job_batch(
                view,
                i,
                slot,
                slot_generation,
                block + at,
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
            at += (length + 7) // 8 * 8
        generation = self._arena.lend(block, LOG)
        number = next(self._numbers) & 0xFFFFFFFF
        self._pending[number] = block, size, len(appends), request.processor, then
        self._push(
            pack_produce(
                SlotKind.PRODUCE_BACK,
                acks,
                request.processor,
                request.channel,
                request.connection,
                block,
                generation,
                0,
                self._index,
                self._index,
                max(timeout_ms, 0),
                number,
            )
        )

    def produced(self, slot: Produce) -> None:
        """A PRODUCED has come back."""
        pending = self._pending.pop(slot.request, None)
        if pending is None:
            return
        block, size, count, _, then = pending
        view = self._arena.view(block, size)
        filled = [read_job_batch(view, i) for i in range(count)]
        self._end_lease(block, size)
        then(filled)

    def fenced(self) -> None:
        """The log process is dead: what it had may be appended or not."""
        self.log_is_up = False
        self._deaths += 1
        pending, self._pending = self._pending, {}
        for block, size, _, _, then in pending.values():
            self._end_lease(block, size)
            then(None)

    def _end_lease(self, block: int, size: int) -> None:
        self._arena.take_back(block, self._arena.generation(block))
        self._arena.free(block, size)
