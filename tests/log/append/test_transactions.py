"""Open transactions hold the last stable offset back, also through stops and crashes (a model tells)."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.partition import partition_log
from mpbroker.log.partition.producer_snapshots import submit_snapshot
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, COMMIT, marker_of
from mpbroker.records.record import NewRecord
from mpbroker.storage import transaction_index
from mpbroker.storage.producer_state import Producers
from mpbroker.storage.reader import Bound, PartitionReader
from mpbroker.storage.transaction_index import AbortedTransaction, packed, read_aborted
from tests.log.retention.test_deletion import delete_before
from tests.log.test_process import appended, forked
from tests.support.forms import each
from tests.support.full_disk import failing_with
from tests.support.log_node import Node
from tests.support.log_rig import MakeRig, Result, Rig, ensure
from tests.support.log_writer import T0, make_batch
from tests.support.polling import until
from tests.support.stepped_log import Broker

SMALL = {"segment_bytes": "1048576", "index_interval_bytes": "100"}
STATE = 48
# Of stops and crashes: `TRANSACTION_SEEDS=100-200` tries others.


def data(
    producer: int,
    sequence: int,
    count: int = 1,
    *,
    size: int = 20,
    transactional: bool = True,
    epoch: int = 0,
) -> bytearray:
    return build_batch(
        [NewRecord(key=None, value=bytes(size), timestamp=T0 + i) for i in range(count)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def marker(producer: int, kind: int, *, epoch: int = 0, coordinator: int = 0) -> bytearray:
    return build_transaction_marker(
        kind, producer_id=producer, producer_epoch=epoch, coordinator_epoch=coordinator, timestamp=T0
    )


def told(rig: Rig, slot: int = 1) -> tuple[int, int]:
    found = rig.partition(slot)
    return found.last_stable_offset, found.high_watermark


def aborted_in(directory: Path) -> list[AbortedTransaction]:
    return [entry for path in sorted(directory.glob("*.txnindex")) for entry in read_aborted(path)]


def committed(rig: Rig, slot: int = 1) -> list[int]:
    """The offsets of records as a read_committed consumer gets them, in one fetch after the other."""
    now = rig.partition(slot)
    bound = Bound(now.last_stable_offset, now.last_stable_segment, now.last_stable_position)
    reader, offset, out = PartitionReader(rig.directory / "t-0"), now.log_start_offset, []
    while (
        piece := reader.fetch_slice(offset, 1 << 20, bound) if offset < bound.offset else None
    ) is not None:
        waiting = sorted(
            reader.aborted(offset, piece, bound, now.aborted_end), key=lambda one: one.first_offset
        )
        aborting: set[int] = set()
        for batch in iterate_batches(reader.read(piece)):
            while waiting and waiting[0].first_offset <= batch.last_offset:
                aborting.add(waiting.pop(0).producer_id)
            producer = batch.header.producer_id
            if batch.is_control:
                aborting -= {producer} if marker_of(batch.bytes) == (ABORT, 0) else set()
            elif not (batch.is_transactional and producer in aborting):
                out += [record.offset for record in batch.records() if record.offset >= offset]
            last = batch.last_offset
        offset = last + 1
    reader.close()
    return out


# ---- one thing after the other


@pytest.mark.parametrize("policy", ["group", "os"])
def test_held_back_until_the_earliest_has_ended(rig: MakeRig, policy: str) -> None:
    b = Broker(rig(log_flush_policy=policy))
    b.produce(make_batch(2))
    assert told(b.rig) == (2, 2)
    b.produce(data(7, 0, 3))
    b.produce(make_batch(1))
    b.produce(data(8, 0, 2))
    assert told(b.rig) == (2, 8)
    found = b.rig.partition(1)
    first = len(make_batch(2))
    assert (found.last_stable_segment, found.last_stable_position) == (0, first)
    assert committed(b.rig) == [0, 1]
    # Of two that are open the other one holds back from now on.
    assert b.produce(marker(7, COMMIT))[0] == Result(0, 8, -1, 0)
    assert told(b.rig) == (6, 9)
    assert committed(b.rig) == [0, 1, 2, 3, 4, 5]
    assert b.produce(marker(8, ABORT))[0].base_offset == 9
    assert told(b.rig) == (10, 10)
    assert committed(b.rig) == [0, 1, 2, 3, 4, 5]
    assert aborted_in(b.rig.directory / "t-0") == [AbortedTransaction(8, 6, 9, 10)]
    assert b.rig.partition(1).aborted_end == 10


def test_a_marker_counts_only_once_it_is_durable(b: Broker) -> None:
    """Check that a round publishes what is stable after its own batches, not after later appends."""
    b.produce(make_batch())
    b.produce(data(7, 0))
    b.rig.job([(b.targets[0], bytes(make_batch()))])
    b.process.work(0)
    b.rig.job([(b.targets[0], bytes(marker(7, COMMIT)))])
    b.process.work(0)

    def look() -> None:
        stable, high_watermark = told(b.rig)
        assert stable == 1 or high_watermark == stable == 4
        b.process.work(1)

    until(lambda: b.process.turn.is_settled, "the turn settles", look)
    assert told(b.rig) == (4, 4)


def test_what_may_not_be_written(b: Broker) -> None:
    b.produce(make_batch())
    b.produce(data(7, 0))
    # Kafka: InvalidTxnStateException. By way of the turn.
    assert b.produce(data(7, 1, transactional=False))[0].error == STATE
    assert b.produce(data(7, 0, transactional=False))[0] == Result(0, 1, T0, 0)
    assert b.produce(marker(7, COMMIT, epoch=2, coordinator=5))[0].error == 0
    assert b.produce(marker(7, ABORT, epoch=1, coordinator=5))[0].error == 47
    assert b.produce(marker(7, ABORT, epoch=2, coordinator=4))[0].error == 52
    # The sequence begins anew with the epoch that the marker has brought.
    assert b.produce(data(7, 0))[0].error == 47
    assert b.produce(marker(-1, ABORT))[0].error == ErrorCode.INVALID_RECORD
    other = build_batch(
        [NewRecord(b"\0\0\0\5", bytes(6), T0)],
        producer_id=7,
        producer_epoch=2,
        transactional=True,
        control=True,
    )
    assert b.produce(other)[0].error == ErrorCode.INVALID_RECORD
    assert told(b.rig) == (3, 3)
    assert aborted_in(b.rig.directory / "t-0") == []


def test_deleting_records_of_an_open_transaction(rig: MakeRig) -> None:
    b = Broker(rig(), **SMALL)
    b.produce(make_batch())
    b.produce(data(7, 0, 2, size=300_000))
    for _ in range(4):
        b.produce(make_batch(size=300_000))
    b.produce(data(8, 0))
    assert told(b.rig) == (1, 8)
    assert delete_before(b, 2, 6) == [(0, 2), (0, 6)]
    assert told(b.rig) == (6, 8)
    assert committed(b.rig) == []
    b.produce(make_batch())
    assert told(b.rig) == (6, 9)
    b.produce(marker(7, ABORT))
    assert told(b.rig) == (7, 10)
    assert committed(b.rig) == [6]
    assert delete_before(b, -1) == [(0, 10)]
    assert told(b.rig) == (10, 10)
    b.produce(make_batch())
    assert told(b.rig) == (10, 11)
    b.produce(marker(8, COMMIT))
    assert told(b.rig) == (12, 12)


def test_a_start_behind_deleted_records_of_an_open_transaction(rig: MakeRig) -> None:
    r = rig()
    target = forked(r, **SMALL)
    for one in (data(7, 0), *(make_batch(size=300_000) for _ in range(6)), data(8, 0)):
        assert appended(r, target, bytes(one)).error == 0
    r.call(calls.DeleteRecords([calls.DeleteBefore(target[0], target[1], 5)]))
    assert r.await_answer() == calls.DeletedRecords([calls.DeletedBefore(0, 5)])
    assert told(r) == (5, 8)
    assert r.stop() == 0
    assert not (r.directory / "t-0" / f"{0:020d}.log").exists()
    b = Broker(rig(), **SMALL)
    assert told(b.rig) == (5, 8)
    assert b.produce(marker(7, ABORT))[0].base_offset == 8
    assert told(b.rig) == (7, 9)
    assert committed(b.rig) == [5, 6]


def test_nothing_that_is_not_stable_is_compacted(rig: MakeRig) -> None:
    configs = {**SMALL, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    b = Broker(rig(), **configs)

    def keyed(sequence: int, transactional: bool) -> bytearray:
        return build_batch(
            [NewRecord(b"k", bytes(600_000), T0)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )

    for sequence in range(3):
        b.produce(keyed(sequence, transactional=sequence == 1))
        assert b.produce(data(8, 10 + sequence, transactional=False))[0].error in (0, 45)
    log = b.process.manager.logs[1]
    assert b.produce(keyed(2, transactional=True))[0].error == 0
    b.produce(data(9, 0, transactional=False))
    assert len(log.sealed) >= 1
    for segment in log.sealed:
        segment.size = (b.rig.directory / "t-0" / f"{segment.base:020d}.log").stat().st_size
    held = b.rig.partition(1).last_stable_segment
    dirty = b.process.compaction._dirty_part(log)
    assert dirty is not None
    assert dirty.end <= held
    b.produce(marker(7, COMMIT))
    open_end = b.process.compaction._dirty_part(log)
    assert open_end is not None
    assert open_end.end > dirty.end


def test_a_marker_that_finds_no_room_changes_nothing(b: Broker, monkeypatch) -> None:
    b.produce(make_batch())
    b.produce(data(7, 0))
    before = (b.rig.directory / "t-0" / f"{0:020d}.log").read_bytes()

    with monkeypatch.context() as patched:
        patched.setattr(transaction_index, "add_aborted", failing_with(errno.ENOSPC))
        assert b.produce(marker(7, ABORT))[0].error == 56
    assert (b.rig.directory / "t-0" / f"{0:020d}.log").read_bytes() == before
    assert told(b.rig) == (1, 2)
    assert b.rig.partition(1).flags == PartitionFlag.PARTITION_LIVE
    assert b.produce(marker(7, ABORT))[0] == Result(0, 2, -1, 0)
    assert told(b.rig) == (3, 3)


def test_a_roll_takes_the_index_to_the_disk(b: Broker) -> None:
    b.produce(make_batch())
    b.produce(data(7, 0))
    b.produce(marker(7, ABORT))
    index = b.rig.directory / "t-0" / f"{0:020d}.txnindex"
    fds = b.process.manager.logs[1].roll()
    assert index.stat().st_ino in {os.fstat(fd).st_ino for fd in fds}
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO])
def test_a_marker_behind_which_the_next_transaction_is_not_found(
    b: Broker, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Check the errors: a passing one is repaired by a retry, a failing disk goes offline.

    The marker is in the log.
    """
    for producer in (7, 8):
        b.produce(data(producer, 0))

    monkeypatch.setattr(partition_log.PartitionLog, "_hold_back", failing_with(error))
    if error == errno.EIO:
        with pytest.raises(FatalError, match="failed: Input/output error"):
            b.produce(marker(7, COMMIT))
    else:
        assert b.produce(marker(7, COMMIT))[0].error == 56
        assert told(b.rig)[0] == 0
        monkeypatch.undo()
        assert b.produce(marker(7, COMMIT))[0] == Result(0, 3, -1, 0)
        assert told(b.rig) == (1, 4)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_power_cut_in_the_round_of_a_roll(n: Node, is_there: bool) -> None:
    """Where the recovery point was the log end, the next segment begins there: the one in front of it would
    be trusted, but what it says of aborted transactions is synced in the round that did not come.
    """
    process = n.process
    (target,) = n.open(ensure())
    assert n.produce(target, bytes(data(7, 0, 2))) == [0]
    assert n.produce(target, bytes(marker(7, ABORT))) == [0]
    log = process.manager.logs[target.slot]
    assert log.state.synced == log.state.log_end == 3
    n.checkpoint()
    for fd in log.roll():
        os.close(fd)
    n.crash()
    index = n.dirs[0] / "t-0" / f"{0:020d}.txnindex"
    index.write_bytes(b"")
    if not is_there:
        index.unlink()
    n.boot()
    (target,) = n.open(ensure())
    assert n.end_of(target) == 3
    assert aborted_in(n.dirs[0] / "t-0") == [AbortedTransaction(7, 0, 2, 3)]


def test_zeros_that_a_power_cut_left_are_no_aborted_transaction(n: Node) -> None:
    """Check that zeros in the index are ignored, and the transaction behind the snapshot is found again."""
    process = n.process
    (target,) = n.open(ensure())
    assert n.produce(target, bytes(data(7, 0, 2))) == [0]
    submit_snapshot(process.manager.logs[target.slot], process.manager.io_thread)
    assert n.produce(target, bytes(marker(7, ABORT))) == [0]
    assert n.produce(target, bytes(data(8, 0))) == [0]
    n.checkpoint()
    n.crash()
    index = n.dirs[0] / "t-0" / f"{0:020d}.txnindex"
    index.write_bytes(bytes(index.stat().st_size))
    n.boot()
    (target,) = n.open(ensure())
    assert aborted_in(n.dirs[0] / "t-0") == [AbortedTransaction(7, 0, 2, 3)]


def test_no_recovery_point_passes_a_roll_before_its_round(b: Broker) -> None:
    b.produce(data(7, 0))
    b.produce(marker(7, ABORT))
    manager, log = b.process.manager, b.process.manager.logs[1]
    assert log.state.synced == 2
    # What is known of the log end may become the end of a segment.
    assert manager.checkpoints.recovery_point(log) == 1
    manager.roll(log)
    assert manager.checkpoints.recovery_point(log) == 1
    b.settle()
    assert manager.checkpoints.recovery_point(log) == 2
    # Without such markers in the segment there is nothing to be missed.
    b.produce(data(7, 1))
    assert manager.checkpoints.recovery_point(log) == 3


def test_half_an_entry_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "0.txnindex"
    first, second = AbortedTransaction(1, 0, 5, 6), AbortedTransaction(2, 6, 8, 9)
    transaction_index.add_aborted(path, first)
    write = os.pwrite
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:7], at))
        with pytest.raises(OSError, match="No space"):
            transaction_index.add_aborted(path, second)
    assert read_aborted(path) == [first]
    transaction_index.add_aborted(path, second)
    assert read_aborted(path) == [first, second]


@pytest.mark.parametrize("how", ["stop", "kill", "crash"])
def test_a_coordinator_writes_without_sequences(rig: MakeRig, how: str) -> None:
    """Check that only the epoch of its batches counts, also after a start: none is a duplicate."""
    r = rig()
    target = forked(r)

    def produce(batch: bytearray) -> tuple[int, int]:
        result = appended(r, target, bytes(batch))
        return result.error, result.base_offset

    assert [produce(data(7, -1, 2, epoch=3)) for _ in range(7)] == [(0, 2 * i) for i in range(7)]
    assert r.stop() == 0 if how == "stop" else r.kill() is None
    if how == "crash":
        _lose(r, random.Random(1))
    if how != "kill":
        r = rig(**r.options)
    target = forked(r)
    assert told(r, target[0]) == (0, 14)
    assert produce(data(7, -1, 2, epoch=3)) == (0, 14)
    assert produce(data(7, -1, 1, epoch=2))[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert produce(data(7, -1, 2, transactional=False, epoch=3))[0] == STATE
    assert produce(marker(7, COMMIT, epoch=3)) == (0, 16)
    assert told(r, target[0]) == (17, 17)
    # The next transaction of the same epoch, and of a newer one.
    assert produce(data(7, -1, 2, epoch=3)) == (0, 17)
    assert produce(data(7, -1, 2, epoch=4)) == (0, 19)
    # By way of the turn, as no client can do it.
    assert produce(marker(7, ABORT, epoch=4)) == (0, 21)
    assert [produce(data(7, -1, 1, transactional=False, epoch=4)) for _ in range(2)] == [(0, 22), (0, 23)]


def test_a_snapshot_of_batches_without_sequences_is_that_of_kafka() -> None:
    producers = Producers()
    producers.update(7, 3, -1, 2, 10, T0, True)
    again = Producers()
    again.load(producers.snapshot())
    assert again.entries() == producers.entries() == [(7, 3, -1, 10, [(-1, 11, 1, T0)])]
    # There is nothing to look for in front of it.
    assert again.wanting() == -1


def test_a_snapshot_knows_who_has_an_open_transaction() -> None:
    producers = Producers()
    producers.update(7, 0, 0, 2, 10, T0, True)
    producers.update(8, 0, 0, 1, 12, T0, True)
    producers.ended(9, 3, 4, T0)
    again = Producers()
    again.load(producers.snapshot(), T0 - 1)
    assert again.entries() == producers.entries()
    assert (again.first_open(), again.first_open(7), again.open_from(8)) == (10, 12, 12)
    assert again.ended(7, 0, 1, T0) == 10
    assert again.ended(7, 0, 1, T0) == -1
    # Who only had a marker is not forgotten: its coordinator may be an old one.
    assert again.check_marker(9, 3, 3) == 52
    # Nor is one whose last batch is old, as long as its transaction is open.
    assert again.expire(T0 + 1) == 2
    assert again.first_open() == 12


def test_who_asks_hears_of_open_transactions(b: Broker) -> None:
    b.produce(make_batch())
    b.produce(data(7, 0, 3))
    b.produce(marker(8, COMMIT, epoch=2, coordinator=4))
    slot, generation, _ = b.targets[0]
    asked = [calls.PartitionProducers(slot, generation), calls.PartitionProducers(slot, generation + 1)]
    b.rig.call(calls.TellProducers([*asked, calls.PartitionProducers(9, 1)]))
    b.settle()
    answer = b.rig.take_answer()
    assert isinstance(answer, calls.Producers)
    assert [one.error for one in answer.partitions] == [0, 6, 6]
    assert answer.partitions[0].producers == [
        calls.ActiveProducer(7, 0, 2, T0 + 2, -1, 1),
        calls.ActiveProducer(8, 2, -1, T0, 4, -1),
    ]


def test_an_answer_ends_when_it_has_many_producers(rig: MakeRig, monkeypatch) -> None:
    """Check that it is about one partition at least."""
    b = Broker(rig(), partitions=3)
    for partition in range(3):
        b.produce(make_batch(producer=(7, 0, 0)), make_batch(producer=(8, 0, 0)), partition=partition)
    asked = [calls.PartitionProducers(slot, generation) for slot, generation, _ in b.targets]
    for most, told in ((1, 1), (3, 2), (100, 3)):
        monkeypatch.setattr("mpbroker.log.partition.active_producers.PRODUCERS_AT_ONCE", most)
        b.rig.call(calls.TellProducers(asked))
        b.settle()
        answer = b.rig.take_answer()
        assert isinstance(answer, calls.Producers)
        assert [len(one.producers) for one in answer.partitions] == [2] * told


# ---- a model, with rolls, stops and crashes


@dataclass
class Model:
    """What transactions are open, and which were aborted."""

    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    visible: list[tuple[int, int | None]] = field(default_factory=list)  # (offset, its open transaction)

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def append(self, chance: random.Random) -> bytearray:
        producer = chance.randrange(3) + 100
        kind = chance.random()
        if producer in self.open and kind < 0.4:
            return self._end(producer, ABORT if kind < 0.2 else COMMIT)
        count, size = chance.randint(1, 4), chance.choice((20, 60_000))
        transactional = producer in self.open or chance.random() < 0.7
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + count
        if transactional:
            self.open.setdefault(producer, self.end)
        self.visible += [
            (offset, producer if transactional else None) for offset in range(self.end, self.end + count)
        ]
        self.end += count
        return data(producer, sequence, count, size=size, transactional=transactional)

    def _end(self, producer: int, kind: int) -> bytearray:
        first = self.open.pop(producer)
        if kind == ABORT:
            stable = min(self.open.values(), default=self.end + 1)
            self.aborted.append(AbortedTransaction(producer, first, self.end, stable))
            self.visible = [one for one in self.visible if one[1] != producer]
        else:
            self.visible = [(offset, None if of == producer else of) for offset, of in self.visible]
        self.end += 1
        return marker(producer, kind)


def agrees(rig: Rig, target: tuple[int, int, int], model: Model) -> None:
    now = rig.partition(target[0])
    assert (now.last_stable_offset, now.high_watermark) == (model.stable, model.end)
    assert now.aborted_end == (model.aborted[-1].last_offset + 1 if model.aborted else 0)
    assert aborted_in(rig.directory / "t-0") == model.aborted
    assert committed(rig, target[0]) == [offset for offset, _ in model.visible if offset < model.stable]
    if model.open:
        path = rig.directory / "t-0" / f"{now.last_stable_segment:020d}.log"
        first = next(iterate_batches(path.read_bytes(), now.last_stable_position))
        assert first.header.base_offset == model.stable


@each("seed", short=(0, 1, 2, 3, 17, 19, 21, 23), long=range(200))
def test_stops_and_crashes(rig: MakeRig, seed: int) -> None:
    chance, model = random.Random(seed), Model()
    r = rig(log_flush_policy="group" if seed % 2 else "os")
    target = forked(r, **SMALL)
    for _ in range(6):
        for _ in range(chance.randrange(25)):
            assert appended(r, target, bytes(model.append(chance))).error == 0
        agrees(r, target, model)
        how = chance.choice(("stop", "kill", "crash"))
        if how == "stop":
            assert r.stop() == 0
        else:
            r.kill()
        if how == "crash":
            # The machine was off: what was not synced is gone, and no checkpoint has come so far.
            _lose(r, chance)
        if how != "kill":
            r = rig(**r.options)
        target = forked(r, **SMALL)
        agrees(r, target, model)
    assert len(list((r.directory / "t-0").glob("*.log"))) > 1


def _lose(rig: Rig, chance: random.Random) -> None:
    """What was not synced, and what a start can do without. A snapshot that counts says that what lies before
    it in `.txnindex` files was synced; without group commit, and without a recovery point, none counts.
    """
    directory, is_group = rig.directory / "t-0", rig.options.get("log_flush_policy") != "os"
    for path in rig.directory.glob("recovery-point*"):
        path.unlink()
    snapshots = list(directory.glob("*.snapshot"))
    synced = max((int(path.stem) for path in snapshots), default=0) if is_group else 0
    for path in directory.glob("*.txnindex"):
        _lose_behind(path, synced, chance)
    if not is_group and chance.random() < 0.5:
        wrong = directory / f"{0:020d}.txnindex"
        wrong.write_bytes(packed([AbortedTransaction(5, 0, 1, 2)]))
    for path in snapshots:
        if chance.random() < 0.5:
            path.unlink()


def _lose_behind(path: Path, synced: int, chance: random.Random) -> None:
    """Entries of markers behind that offset: they are not there, or torn, or zeros."""
    found = read_aborted(path)
    there = chance.randint(sum(entry.last_offset < synced for entry in found), len(found))
    lost = packed(found[there:])
    left = chance.choice((b"", lost[: chance.randint(0, len(lost))], bytes(len(lost))))
    path.write_bytes(packed(found[:there]) + left)


def test_a_corrupt_index_of_a_trusted_segment(rig: MakeRig, caplog) -> None:
    """Check that the start succeeds, and that read_committed fetches get an error."""
    r = rig()
    target = forked(r)
    for one in (make_batch(), data(7, 0), marker(7, ABORT)):
        assert appended(r, target, bytes(one)).error == 0
    assert r.stop() == 0
    path = r.directory / "t-0" / f"{0:020d}.txnindex"
    path.write_bytes(path.read_bytes()[:-1])
    b = Broker(rig())
    now = b.rig.partition(1)
    assert (now.flags, now.high_watermark) == (PartitionFlag.PARTITION_LIVE, 3)
    assert now.aborted_end > 3
    assert "ends within an entry" in caplog.text
