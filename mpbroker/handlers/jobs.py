"""Appends that the slow path asks for: validated batches, which wait for room and for their log workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpbroker.handlers.waiting import Waiting
from mpbroker.ipc.append_job import AppendJobs, NewBatch, Origin, Then
from mpbroker.ipc.slots import Produce, Request
from mpbroker.ipc.topology import log_worker_of_slot
from mpbroker.records.validation import ValidatedBatch


class Append(NamedTuple):
    """A batch and the place that it is for."""

    slot: int
    slot_generation: int
    config_version: int
    batch: ValidatedBatch

    def new_batch(self) -> NewBatch:
        batch = self.batch
        return NewBatch(
            self.slot,
            self.slot_generation,
            self.config_version,
            batch.data,
            batch.record_count,
            batch.max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.attributes,
            batch.base_sequence,
        )


class Jobs:
    """Which log workers are up, and what they are asked for; `jobs` has it once it is sent."""

    def __init__(self, jobs: AppendJobs, waiting: Waiting, log_workers: int = 1) -> None:
        self._jobs = jobs
        self._waiting = waiting
        self._deaths = 0
        self._up = [True] * log_workers

    def __len__(self) -> int:
        return len(self._jobs)

    def is_up(self, slot: int) -> bool:
        """Whether there is a log worker for the partition in this slot of the table."""
        return self._up[log_worker_of_slot(slot, len(self._up))]

    def are_up(self) -> bool:
        """Whether no log worker is away."""
        return all(self._up)

    def set_up(self, worker: int, up: bool) -> None:
        self._up[worker] = up

    def append(
        self, request: Request, acks: int, timeout_ms: int, appends: Sequence[Append], then: Then
    ) -> None:
        """Append the batches, now or when there is room.

        `then` gets None if a log worker died, so that nobody knows, or if nothing is appended: there was no
        room for too long, or nobody is left to be answered. Raises shm.arena.ArenaFull, having sent nothing,
        if there is no room and too much waits for some.

        There is nobody to send to while a log worker is dead: its ring is reset before there is a successor.
        Whoever waits is lost with any of them: processors take every produce for lost then, and have the
        memory of its batches for others.
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
        origin = Origin(request.processor, request.channel, request.connection)
        self._jobs.append([a.new_batch() for a in appends], then, acks, max(timeout_ms, 0), origin)

    def produced(self, slot: Produce) -> None:
        """A PRODUCED has come back."""
        self._jobs.produced(slot)

    def worker_died(self, worker: int) -> None:
        """A log worker is dead: what it had may be appended or not."""
        self._up[worker] = False
        self._deaths += 1
        self._jobs.worker_died(worker)
