"""The turn, stepped by hand: answers, order, refusals, durability, and the same by way of Python."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import threading

import pytest

from mpbroker.ipc.slots import SlotKind, pack_produce
from mpbroker.ipc.table import PartitionFlag
from mpbroker.ipc.topology import LOG, handler, processor
from mpbroker.log.append.turn import Pause
from mpbroker.log.directories import journal_file
from mpbroker.records.iterate import iterate_batches
from mpbroker.storage import journal
from tests.support.log_rig import HOLE, TOPIC_ID, MakeRig, Result, Rig, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import PATIENCE_S, until
from tests.support.stepped_log import T0, Broker

assert HOLE.size == 26

NOT_COMPARED = ("meta.properties", journal.NAME, journal.NAME + journal_file.MAKING_SUFFIX)


@pytest.mark.parametrize("policy", ["group", "os"])
def test_offsets_and_answers(rig: MakeRig, policy: str) -> None:
    b = Broker(rig(log_flush_policy=policy), 2)
    assert b.produce(make_batch(3)) == [Result(0, 0, -1, 0)]
    assert b.produce(make_batch(2), make_batch(1)) == [Result(0, 3, -1, 0), Result(0, 5, -1, 0)]
    assert b.produce(make_batch(1), partition=1) == [Result(0, 0, -1, 0)]
    found = b.rig.partition(b.targets[0][0])
    assert (found.topic_id, found.high_watermark, found.log_end_offset) == (TOPIC_ID, 6, 6)
    data = (b.rig.directory / "t-0" / "00000000000000000000.log").read_bytes()
    assert len(data) == found.high_watermark_position
    assert [x.header.base_offset for x in iterate_batches(data)] == [0, 3, 5]


def test_serving_ends_when_something_is_for_python(b: Broker) -> None:
    b.produce(make_batch())

    def serve() -> None:
        """Ends, too, when it is woken before there is anything, or has served for long."""
        while b.process.turn.serve(120_000) == Pause.ROUND_DONE:
            pass

    serving = threading.Thread(target=serve)
    b.rig.job([(b.targets[0], make_batch())])
    serving.start()
    b.rig.until(b.rig.processor, lambda: b.rig.from_log.waiting() > 0)
    b.rig.call(ensure(2))
    serving.join(PATIENCE_S)
    assert not serving.is_alive()
    assert b.process.turn.run(0) == Pause.SLOT_FOR_PYTHON
    b.settle()


def test_acks_decide_who_waits(b: Broker) -> None:
    b.produce(make_batch())
    for acks in (-1, 1, 0):
        b.rig.job([(b.targets[0], make_batch())], acks=acks)
    b.process.work(0)
    early = b.rig.replies()
    kinds = {reply.request: reply.kind for reply in early}
    assert kinds[max(kinds)] == SlotKind.NOOP
    assert b.rig.partition(b.targets[0][0]).high_watermark in (1, 4)
    b.settle()
    late = b.rig.replies()
    assert sorted(kinds.values()) + [r.kind for r in late] == [SlotKind.SEND, SlotKind.NOOP, SlotKind.SEND]


def test_refusals_never_append(b: Broker) -> None:
    slot, generation, version = b.targets[0]
    b.produce(make_batch())
    cases = [
        ((slot, generation + 1, version), 6),
        ((slot, generation, version + 1), 6),
        ((slot + 1, 1, version), 6),
        ((9999, 1, 1), 6),
    ]
    for target, error in cases:
        b.rig.job([(target, make_batch())], acks=1)
        b.rig.job([(target, make_batch())], acks=0)
        b.rig.job([(target, make_batch())], back=True)
        b.settle()
        send, close, back = b.rig.replies()
        assert (send.kind, send.results) == (SlotKind.SEND, [Result(error, -1, -1, -1)])
        assert close.kind == SlotKind.CLOSE
        assert (back.kind, back.results) == (SlotKind.PRODUCED, [Result(error, -1, -1, -1)])
    assert b.rig.partition(slot).log_end_offset == 1


def test_idempotent_producers(b: Broker) -> None:
    for i in range(8):
        assert b.produce(make_batch(2, producer=(9, 0, 2 * i)))[0].base_offset == 2 * i
    for i in range(3, 8):
        assert b.produce(make_batch(2, producer=(9, 0, 2 * i))) == [Result(0, 2 * i, T0 + 1, 0)]
    assert b.produce(make_batch(2, producer=(9, 0, 4)))[0].error == 45
    assert b.produce(make_batch(1, producer=(9, 0, 17))) == [Result(45, -1, -1, 0)]
    assert b.produce(make_batch(1, producer=(9, 1, 5)))[0].error == 45
    assert b.produce(make_batch(1, producer=(9, 1, 0)))[0].base_offset == 16
    assert b.produce(make_batch(1, producer=(9, 0, 16)))[0].error == 47
    # Within one round the second is checked against the first.
    assert [
        r.base_offset for r in b.produce(make_batch(1, producer=(9, 1, 1)), make_batch(1, producer=(9, 1, 1)))
    ] == [
        17,
        17,
    ]
    assert b.rig.partition(b.targets[0][0]).log_end_offset == 18


def test_a_failed_sync_takes_the_directory_offline(rig: MakeRig) -> None:
    """Check it with a second log directory that keeps the broker up; the flusher's fd cannot be synced."""
    first = rig()
    second = first.directory.parent / "second"
    second.mkdir()
    b = Broker(rig("third", log_dirs=(str(first.directory), str(second))), 3)
    by_dir = {b.rig.partition(t[0]).log_dir: i for i, t in enumerate(b.targets)}
    good, bad = by_dir[0], by_dir[1]
    for partition in (good, bad):
        assert b.produce(make_batch(), partition=partition)[0].error == 0
    state = b.log(bad).state
    read_end, write_end = os.pipe()
    os.close(read_end)
    # A pipe takes no fdatasync (EINVAL) and no pwrite; what was written went to the file before.
    b.rig.job([(b.targets[bad], make_batch())])
    b.process.turn.retire(write_end, 1)
    b.settle()
    (reply,) = b.rig.replies()
    assert reply.results == [Result(56, -1, -1, -1)]
    assert state.flags == PartitionFlag.PARTITION_OFFLINE
    assert b.rig.partition(b.targets[bad][0]).flags == PartitionFlag.PARTITION_OFFLINE
    assert b.rig.partition(b.targets[bad][0]).high_watermark == 1
    assert b.produce(make_batch(), partition=bad)[0].error == 56
    assert b.produce(make_batch(), partition=good)[0].error == 0


def test_waiting_handlers_are_told_once_a_round(rig: MakeRig) -> None:
    b = Broker(rig(), 2)
    marks, dirty = b.rig.memory.marks(), b.rig.memory.words("dirty")
    b.produce(make_batch())
    assert dirty.load(4) == 0
    marks.mark(b.targets[0][0], 4)
    b.produce(make_batch(), partition=1)
    assert dirty.load(4) == 0
    b.produce(make_batch())
    first = dirty.load(4)
    assert first > 0
    b.produce(make_batch())
    assert dirty.load(4) > first
    assert dirty.load(5) == 0


def test_a_full_answer_ring_keeps_the_rest(rig: MakeRig) -> None:
    b = Broker(rig(log_flush_policy="os"))
    data = make_batch()
    total = 0
    for _ in range(6):
        for _ in range(1000):
            b.rig.job([(b.targets[0], data)])
            total += 1
        b.process.work(0)
    assert b.rig.from_log.waiting() == b.rig.from_log.size
    offsets: list[int] = []

    def take() -> None:
        offsets.extend(reply.results[0].base_offset for reply in b.rig.replies())
        b.process.work(0)

    until(lambda: len(offsets) >= total, "all are answered", take)
    assert offsets == list(range(total))


def script() -> list[list[tuple[int, bytes, int]]]:
    """Rounds that meet everything: sizes, rolls, producers, duplicates, gaps, two partitions, old times."""
    rounds = []
    sequence = 0
    for i in range(60):
        jobs = []
        for j in range(7):
            size = (i * 7919 + j * 104_729) % 40_000
            count = 1 + (i + j) % 4
            timestamp = T0 + (i * 37 + j * 11) % 500
            producer = None
            if j % 3 == 0:
                producer = (5, i // 40, sequence)
                sequence = 0 if i == 39 and j == 6 else sequence + count
            if j == 4 and i % 5 == 0:
                producer = (6, 0, 1000 * i)
            if j == 5:
                # As a coordinator writes them; of an old epoch in the end.
                producer = (8, i // 40 if i < 58 else 0, -1)
            jobs.append(
                (
                    j % 2,
                    bytes(make_batch(count, size=size, timestamp=timestamp, producer=producer)),
                    (-1, 1, 0)[j % 3],
                )
            )
            if j == 3:
                jobs.append(jobs[-1])
        rounds.append(jobs)
    return rounds


def play(rig: Rig, rounds, by_reference: bool, **configs: str):
    b = Broker(rig, 2, segment_bytes="1048576", **configs)
    b.process.turn.for_tests(fixed_now_ms=T0 + 77, by_reference=by_reference)
    answers = []
    for jobs in rounds:
        for partition, data, acks in jobs:
            b.rig.job([(b.targets[partition], data)], acks=acks)
        b.settle()
        answers.append(sorted(((r.request, r.kind, r.results) for r in b.rig.replies()), key=lambda r: r[0]))
    slots = [b.rig.partition(t[0]) for t in b.targets]
    producers = [b.process.manager.logs[t[0]].state.producers.entries() for t in b.targets]
    b.process.manager.close_cleanly()
    b.process.turn.close()
    files = {
        str(path.relative_to(rig.directory)): path.read_bytes()
        for path in sorted(rig.directory.rglob("*"))
        if path.is_file() and path.name not in NOT_COMPARED
    }
    return answers, slots, producers, files


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"index_interval_bytes": "0"},
        {"message_timestamp_type": "LogAppendTime"},
        {"segment_index_bytes": "200"},
    ],
)
def test_native_and_python_do_the_same(rig: MakeRig, configs: dict[str, str]) -> None:
    rounds = script()
    native = play(rig("native"), rounds, False, **configs)
    reference = play(rig("reference"), rounds, True, **configs)
    for ours, theirs in zip(native[:3], reference[:3], strict=True):
        assert ours == theirs
    assert native[3].keys() == reference[3].keys()
    assert [name for name in native[3] if native[3][name] != reference[3][name]] == []
    assert sum(name.endswith(".log") for name in native[3]) > 6


def test_a_full_round_leaves_nobody_behind(b: Broker) -> None:
    """Let four handlers fill every round, and check that the fifth has its turn in the second round."""
    slot = pack_produce(SlotKind.PRODUCE, 1, processor(0), 0, 0, 0, 0, 0, handler(0), handler(0), 0, 1)
    rings = [b.rig.memory.ring(handler(number), LOG) for number in range(5)]
    assert rings[4].push(slot)
    for _ in range(2):
        assert rings[4].waiting() == 1
        for ring in rings[:4]:
            ring.push_batch(slot * 1024)
        b.process.work(0)
    assert rings[4].waiting() == 0


def test_out_of_memory_ends_the_process_instead_of_an_answer(b: Broker) -> None:
    """Check that the process ends rather than drop an answer that found its ring full."""
    slot = pack_produce(SlotKind.PRODUCE, 1, processor(0), 0, 0, 0, 0, 0, handler(0), handler(0), 0, 1)
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()  # that it aborts is what is wanted
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
        try:
            # What earlier tests have left in the heap is used up first.
            for _ in range(50_000_000):
                b.process.turn.send(processor(0), slot)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGABRT
    assert b.rig.from_log.waiting() == 4096
