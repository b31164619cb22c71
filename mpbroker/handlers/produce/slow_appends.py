"""Appends of the slow path: validated batches that wait for room and for their log workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpbroker.handlers.requests.response_backpressure import ResponseBackpressure
from mpbroker.ipc.append_job import AppendJobs, NewBatch, Origin, Then
from mpbroker.ipc.slots import Produce, Request
from mpbroker.ipc.topology import log_worker_of_slot
from mpbroker.records.validation import ValidatedBatch


def nothing(_request: Request) -> None:
    """Do nothing."""


class Append(NamedTuple):
    """A batch and the partition slot that it goes to."""

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
    """Appends under way, and which log workers are up. `jobs` has the appends that were sent.

    `sent` is called with a request whose batches are in the rings to their log workers.
    """

    def __init__(
        self,
        jobs: AppendJobs,
        waiting: ResponseBackpressure,
        log_workers: int = 1,
        sent: Callable[[Request], None] = nothing,
    ) -> None:
        self._sent = sent
        self._jobs = jobs
        self._waiting = waiting
        self._deaths = 0
        self._up = [True] * log_workers

    def __len__(self) -> int:
        return len(self._jobs)

    def is_up(self, slot: int) -> bool:
        """Return True if the log worker of the partition in this table slot is up."""
        return self._up[log_worker_of_slot(slot, len(self._up))]

    def are_up(self) -> bool:
        """Return True if all log workers are up."""
        return all(self._up)

    def set_up(self, worker: int, up: bool) -> None:
        self._up[worker] = up

    def append(
        self, request: Request, acks: int, timeout_ms: int, appends: Sequence[Append], then: Then
    ) -> None:
        """Append the batches, now or when there is room.

        `then` gets the batches with their results. It gets None if a log worker died: each batch may have
        been appended or not. It also gets None if no batch was appended, because there was no room for too
        long or the processor died. Raises shm.arena.ArenaFull, having sent nothing, if there is no room and
        too many bytes wait already.

        Nothing is sent while a log worker is dead: its ring is reset before its successor starts. The death
        of any log worker ends all waiting appends: processors then count all produces as lost, and reuse the
        memory of their batches.
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
        self._sent(request)

    def produced(self, slot: Produce) -> None:
        """Take back a job that a log worker has returned with a PRODUCED descriptor."""
        self._jobs.produced(slot)

    def worker_died(self, worker: int) -> None:
        """Note the death of a log worker. Whether its jobs were appended is unknown."""
        self._up[worker] = False
        self._deaths += 1
        self._jobs.worker_died(worker)
