"""Jobs for log workers: what lies in their blocks, and that whoever waits hears of it once."""

from __future__ import annotations

import itertools

import pytest

from mpbroker.ipc.append_job import ACKS_ALL, NO_TIMEOUT_MS, AppendJobs, NewBatch, Origin, size_of
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.slots import (
    Batch,
    Produce,
    SlotKind,
    fill_job_batch,
    read_job_batch,
    read_job_header,
    unpack_produce,
)
from mpbroker.ipc.topology import handler
from shm.arena import Arena, ArenaFull
from shm.region import sparse

MIB = 1 << 20
OWNER = handler(1)
WORKERS = 2


def batch(slot: int, data: bytes = b"bytes", **more: int) -> NewBatch:
    return NewBatch(slot, 5, 3, data, len(data), **more)


class Sending:
    """Whoever has jobs, and log workers that do them when told to."""

    def __init__(self) -> None:
        self.arena = Arena(sparse(4 * MIB), MIB, 256 << 10)
        self.lender = Lender(self.arena, OWNER)
        self.sent: list[tuple[Produce, int]] = []
        self.jobs = AppendJobs(self.lender, self._push, WORKERS, itertools.count(41))
        self.heard: list[list[Batch] | None] = []

    def _push(self, slot: bytes, worker: int) -> None:
        self.sent.append((unpack_produce(slot), worker))

    def append(self, *batches: NewBatch) -> None:
        self.jobs.append(batches, self.heard.append)

    def block(self, job: Produce) -> memoryview:
        assert self.arena.check(job.block, job.generation)
        return self.arena.view(job.block, self.arena.capacity(job.block))[job.job :]

    def batches(self, job: Produce) -> list[Batch]:
        view = self.block(job)
        return [read_job_batch(view, index) for index in range(read_job_header(view)[0])]

    def do(self, worker: int) -> None:
        """The next job of the worker is done: each batch has a hundred times its slot as offset."""
        place = next(place for place, (_, of) in enumerate(self.sent) if of == worker)
        job, _ = self.sent.pop(place)
        for index, one in enumerate(self.batches(job)):
            fill_job_batch(self.block(job), index, 0, 100 * one.slot, -1, 0)
        self.jobs.produced(job)


@pytest.fixture
def sending() -> Sending:
    return Sending()


def offsets(batches: list[Batch] | None) -> list[int] | None:
    return None if batches is None else [one.base_offset for one in batches]


def test_a_job_has_the_batches_and_what_they_say(sending: Sending) -> None:
    one = batch(2, b"one", max_timestamp=7, producer_id=8, producer_epoch=9, attributes=16, base_sequence=4)
    two = batch(4, b"second batch")
    sending.jobs.append([one, two], sending.heard.append, 1, 3000, Origin(3, 4, 5))
    ((job, worker),) = sending.sent
    assert (job.kind, job.acks, job.timeout_ms, worker) == (SlotKind.PRODUCE_BACK, 1, 3000, 0)
    assert (job.processor, job.channel, job.connection) == (3, 4, 5)
    assert (job.owner, job.sender, job.job) == (OWNER, OWNER, 0)
    first, second = sending.batches(job)
    assert (first.slot, first.slot_generation, first.config_version) == (2, 5, 3)
    assert (first.max_timestamp, first.producer_id, first.producer_epoch) == (7, 8, 9)
    assert (first.attributes, first.base_sequence, first.record_count, first.data_owner) == (16, 4, 3, OWNER)
    assert (second.producer_id, second.producer_epoch, second.base_sequence) == (-1, -1, -1)
    data = sending.block(job)
    for found, made in zip((first, second), (one, two), strict=True):
        at = found.data - job.block
        assert at % 8 == 0
        assert bytes(data[at : at + found.length]) == made.data
    assert second.data - job.block + second.length <= size_of([one, two])


def test_a_job_of_nobody_s_waits_for_all(sending: Sending) -> None:
    sending.append(batch(0))
    ((job, _),) = sending.sent
    assert (job.acks, job.timeout_ms) == (ACKS_ALL, NO_TIMEOUT_MS)
    assert (job.processor, job.connection) == (OWNER, 0)


def test_each_worker_has_its_own_and_the_answer_is_in_the_order_asked(sending: Sending) -> None:
    sending.append(batch(1), batch(2), batch(3), batch(4))
    assert [(worker, [b.slot for b in sending.batches(job)]) for job, worker in sending.sent] == [
        (1, [1, 3]),
        (0, [2, 4]),
    ]
    sending.do(0)
    assert (sending.heard, len(sending.jobs)) == ([], 1)
    sending.do(1)
    assert [offsets(one) for one in sending.heard] == [[100, 200, 300, 400]]
    assert (len(sending.jobs), sending.lender.in_use_bytes) == (0, 0)


def test_a_part_without_room_keeps_all_of_it_back(sending: Sending) -> None:
    other = sending.lender.lend(bytes(512 << 10), handler(0))
    before = sending.lender.in_use_bytes
    with pytest.raises(ArenaFull):
        sending.append(batch(0, bytes(600 << 10)), batch(1, bytes(600 << 10)))
    assert (sending.sent, sending.heard, len(sending.jobs)) == ([], [], 0)
    assert sending.lender.in_use_bytes == before
    sending.lender.end(*other)
    sending.append(batch(0, bytes(600 << 10)))
    sending.do(0)
    assert [offsets(one) for one in sending.heard] == [[0]]


def test_a_dead_worker_leaves_nobody_knowing_and_no_block(sending: Sending) -> None:
    sending.append(batch(0), batch(1))
    sending.append(batch(2))
    sending.append(batch(3))
    sending.jobs.worker_died(1)
    assert sending.heard == [None, None]
    sending.sent = [one for one in sending.sent if one[1] == 0]
    sending.do(0)
    sending.do(0)
    assert [offsets(one) for one in sending.heard] == [None, None, [200]]
    assert (len(sending.jobs), sending.lender.in_use_bytes) == (0, 0)


def test_both_workers_die_and_whoever_waits_hears_it_once(sending: Sending) -> None:
    sending.append(batch(0), batch(1))
    sending.jobs.worker_died(0)
    sending.jobs.worker_died(1)
    assert sending.heard == [None]
    assert sending.lender.in_use_bytes == 0


def test_a_job_that_is_none_of_ours_is_dropped(sending: Sending, caplog: pytest.LogCaptureFixture) -> None:
    sending.append(batch(0))
    job, _ = sending.sent[0]
    sending.jobs.produced(job._replace(request=7))
    assert "answered unknown append 7" in caplog.text
    assert (sending.heard, len(sending.jobs)) == ([], 1)
