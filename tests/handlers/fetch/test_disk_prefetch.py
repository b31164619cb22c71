"""Parts of segments that are not in the page cache: only who wants them waits for the disk."""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.apis import k01_fetch
from mpbroker.handlers.fetch import disk_prefetch
from mpbroker.handlers.fetch.disk_prefetch import DiskPrefetch, Drain
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import FetchRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.storage import reader as log_reader
from mpbroker.storage.reader import Bound, NotResident, PartitionReader
from mpbroker.storage.residency import resident
from tests.handlers.test_fetch import FETCH, Logged, answer, fetch, partition_of
from tests.support.handler_logs import learn, two_segments
from tests.support.handler_rig import Rig, partition_payload, rig, topic_image
from tests.support.page_cache import evict
from tests.support.polling import PATIENCE_S, until

pytestmark = [pytest.mark.disk, pytest.mark.usefixtures("tidy")]
MIB = 1 << 20
TRIES = 20


class SlowDisk(DiskPrefetch):
    """Reads nothing before it is told to."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__(wake)
        self.asked: list[tuple[int, int, int, Callable[[], None]]] = []

    def __len__(self) -> int:
        return len(self.asked) + super().__len__()

    def read(self, fd: int, position: int, length: int, then: Callable[[], None]) -> None:
        self.asked.append((os.dup(fd), position, length, then))

    def go(self) -> None:
        asked, self.asked = self.asked, []
        for fd, *wanted in asked:
            super().read(fd, *wanted)
            os.close(fd)


class Reads(DiskPrefetch):
    """Reads of a test, which is rung as a handler is."""

    def __init__(self) -> None:
        self.bell = os.eventfd(0)
        super().__init__(lambda: os.eventfd_write(self.bell, 1))

    def wait(self) -> None:
        """Wait until one of them has ended."""
        os.eventfd_read(self.bell)
        self.reap()

    def wait_for_all(self) -> None:
        while self:
            self.wait()

    def close(self) -> None:
        super().close()
        os.close(self.bell)


@pytest.fixture(name="reads")
def _reads() -> Iterator[Reads]:
    made = Reads()
    yield made
    made.close()


@pytest.fixture(name="fd")
def _fd(tmp_path: Path) -> Iterator[int]:
    """A file of four MiB, whose name is "file"."""
    (tmp_path / "file").write_bytes(os.urandom(4 * MIB))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> Iterator[Logged]:
    """Two segments: one is evicted by the tests, the other one is not."""
    with two_segments(tmp_path, sealed=30) as log:
        bell = log.rig.context.bell.fd
        log.rig.handler.broker.prefetch = SlowDisk(lambda: os.eventfd_write(bell, 1))
        yield log
        disk(log).go()
        disk(log).close()


def disk(log: Logged) -> SlowDisk:
    found = log.rig.handler.broker.prefetch
    assert isinstance(found, SlowDisk)
    return found


def segment(log: Logged, base: int) -> Path:
    return log.directory / f"{base:020d}.log"


def send(log: Logged, request: FetchRequest, connection: int = 7) -> list[Any]:
    log.rig.send(FETCH, 12, request, connection=connection)
    return list(log.rig.processor.replies())


def await_answer(log: Logged) -> Any:
    """The ring of a thread ends the handler's sleep."""

    def step() -> None:
        disk(log).go()
        log.rig.handler.run_once(1000)

    until(log.rig.processor.from_handler.waiting, "an answer", step)
    return partition_of(answer(log, 12))


def rounds_until_answered(log: Logged) -> None:
    until(log.rig.processor.from_handler.waiting, "an answer", lambda: log.rig.handler.run_once(1000))


def count(log: Logged, counter: Counter) -> int:
    return log.rig.context.counters.get(counter)


@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_a_cold_slice_is_brought_before_it_is_answered(log: Logged, wait_ms: int) -> None:
    evict(segment(log, 0))
    assert [reply.kind for reply in send(log, fetch(0, wait_ms=wait_ms))] == [SlotKind.PARKED]
    found = await_answer(log)
    assert bytes(found.records) == b"".join(log.batches[:30])
    fd = os.open(segment(log, 0), os.O_RDONLY)
    assert resident(fd, 0, segment(log, 0).stat().st_size)
    os.close(fd)
    assert count(log, Counter.COUNT_FETCHES_COLD) >= 1
    assert len(log.rig.handler.broker.fetches) == 0
    assert log.rig.handler.intake.open == {}


def within_a_moment(do: Callable[[], None]) -> None:
    """Again if it took so long that what was found resident is looked at once more."""
    for _ in range(TRIES):
        began = time.monotonic()
        do()
        if time.monotonic() - began < 0.9:
            return
    pytest.fail("this machine is too slow")


def test_the_turn_does_not_send_what_is_cold(log: Logged) -> None:
    places = log.rig.handler.turn.fetch_positions
    send(log, fetch(0))
    evict(segment(log, 0))
    places.forget_all()
    learn(places, 0, segment(log, 0))
    before = count(log, Counter.COUNT_FETCHES_FAST)
    assert [reply.kind for reply in send(log, fetch(0))] == [SlotKind.PARKED]
    assert count(log, Counter.COUNT_FETCHES_FAST) == before
    assert len(bytes(await_answer(log).records)) > 0
    assert len(send(log, fetch(0))) == 1
    assert count(log, Counter.COUNT_FETCHES_FAST) == before + 1


def test_the_turn_does_not_wait_for_an_index(log: Logged) -> None:
    index = log.directory / f"{0:020d}.index"
    third = sum(map(len, log.batches[:3]))
    index.write_bytes(struct.pack(">ii", 39, third))
    evict(index)
    places = log.rig.handler.turn.fetch_positions
    learn(places, 0, segment(log, 0))
    before = count(log, Counter.COUNT_FETCHES_FAST)
    assert [reply.kind for reply in send(log, fetch(55))] == [SlotKind.PARKED]
    assert bytes(await_answer(log).records) == b"".join(log.batches[5:30])
    assert len(send(log, fetch(65))) == 1
    assert count(log, Counter.COUNT_FETCHES_FAST) == before + 1


def test_the_end_of_a_log_costs_one_look(log: Logged) -> None:
    """Check that what is appended behind a resident part counts as resident."""
    places = log.rig.handler.turn.fetch_positions
    fast: list[int] = []

    def follow() -> None:
        places.forget_all()
        learn(places, 0, segment(log, 300))
        last = segment(log, 300).read_bytes()
        assert len(last) == log.position
        send(log, fetch(log.end - 10))
        before = count(log, Counter.COUNT_FETCHES_FAST)
        for _ in range(5):
            offset = log.end
            log.append()
            evict(segment(log, 300))
            assert len(send(log, fetch(offset))) == 1
        fast[:] = [count(log, Counter.COUNT_FETCHES_FAST) - before]
        disk(log).go()

    within_a_moment(follow)
    assert fast == [5]


def two(first: int, second: int) -> FetchRequest:
    request = fetch(first, wait_ms=60_000)
    request.topics[0].partitions.append(
        FetchRequest.FetchPartition(0, fetch_offset=second, partition_max_bytes=MIB)
    )
    return request


def test_what_is_there_does_not_wait_for_what_is_not(log: Logged) -> None:
    evict(segment(log, 0))
    (reply,) = send(log, two(0, 300))
    assert reply.kind != SlotKind.PARKED
    assert count(log, Counter.COUNT_FETCHES_COLD) == 1
    # It is brought all the same, for the fetch that comes next.
    disk(log).go()
    while disk(log):
        log.rig.handler.run_once(1000)
    assert [reply.kind for reply in send(log, fetch(0))] != [SlotKind.PARKED]


def test_others_are_served_meanwhile(log: Logged) -> None:
    evict(segment(log, 0))
    assert [reply.kind for reply in send(log, fetch(0))] == [SlotKind.PARKED]
    log.rig.turn()
    # Its time is over, the disk is not done.
    assert log.rig.processor.replies() == []
    assert len(log.rig.handler.broker.fetches) == 1
    assert [reply.kind for reply in send(log, fetch(300), connection=8)] != [SlotKind.PARKED]
    assert len(bytes(await_answer(log).records)) > 0


def test_a_connection_that_closes_meanwhile(log: Logged) -> None:
    evict(segment(log, 0))
    send(log, fetch(0))
    log.rig.turn()
    log.rig.handler.broker.fetches.cancel(7)
    log.rig.handler.flush()
    assert [reply.kind for reply in log.rig.processor.replies()] == [SlotKind.NOOP]
    disk(log).go()
    while disk(log):
        log.rig.handler.run_once(1000)
    assert log.rig.processor.replies() == []
    assert log.rig.handler.intake.open == {}


def test_a_handler_that_stops_answers_first(log: Logged) -> None:
    evict(segment(log, 0))
    send(log, fetch(0, wait_ms=60_000))
    disk(log).go()
    log.rig.handler.finish()
    assert bytes(partition_of(answer(log, 12)).records) == b"".join(log.batches[:30])


def test_patience_has_an_end(log: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the handler reads pages itself if they leave the cache as fast as they come."""
    monkeypatch.setattr(log_reader, "resident", lambda *_: False)
    assert [reply.kind for reply in send(log, fetch(0))] == [SlotKind.PARKED]
    disk(log).go()
    log.rig.handler.run_once(1000)
    assert log.rig.processor.replies() == []
    monkeypatch.setattr(k01_fetch, "COLD_PATIENCE_MS", -1)
    assert len(bytes(await_answer(log).records)) > 0


PARTITIONS = 12


@pytest.fixture(name="many")
def _many(tmp_path: Path) -> Iterator[tuple[Rig, SlowDisk]]:
    """Partitions of one topic, none of them in memory."""
    topic = topic_image("cold", 2, partitions=PARTITIONS)
    with rig(BrokerConfig(log_dirs=(str(tmp_path),))) as made:
        made.publish(topic)
        batch = build_batch([NewRecord(b"k", bytes(1000), 0)])
        for number in range(PARTITIONS):
            path = tmp_path / f"cold-{number}" / f"{0:020d}.log"
            path.parent.mkdir()
            path.write_bytes(batch)
            evict(path)
            seen = {"high_watermark": 1, "high_watermark_position": len(batch), "log_end_offset": 1}
            made.table.write(number, partition_payload(topic, number, **seen))
        bell = made.context.bell.fd
        slow = made.handler.broker.prefetch = SlowDisk(lambda: os.eventfd_write(bell, 1))
        yield made, slow
        slow.go()
        slow.close()


def ask_for_many(made: Rig, **limits: int) -> None:
    request = FetchRequest(max_wait_ms=60_000, **limits)
    wanted = [
        FetchRequest.FetchPartition(number, fetch_offset=0, partition_max_bytes=MIB)
        for number in range(PARTITIONS)
    ]
    request.topics = [FetchRequest.FetchTopic("cold", bytes(16), wanted)]
    made.send(FETCH, 12, request)


def test_no_more_is_brought_than_is_sent(many: tuple[Rig, SlowDisk]) -> None:
    made, slow = many
    ask_for_many(made, min_bytes=1, max_bytes=3000)
    brought = {os.fstat(fd).st_ino for fd, *_ in slow.asked}
    assert len(brought) == 3


def test_a_fetch_of_many_polls_once_for_each_part_that_has_come(
    many: tuple[Rig, SlowDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, slow = many
    polls: list[None] = []
    poll = k01_fetch.Fetch.poll
    monkeypatch.setattr(k01_fetch.Fetch, "poll", lambda own: polls.append(None) or poll(own))
    ask_for_many(made, min_bytes=PARTITIONS * 1000, max_bytes=MIB)
    assert len(polls) == 2
    for done in range(1, PARTITIONS + 1):
        (fd, position, length, then), *others = slow.asked
        slow.asked = []
        os.pread(fd, length, position)
        for each, *_ in ((fd,), *others):
            os.close(each)
        then()
        assert len(polls) == 2 + done
    made.handler.flush()
    assert made.processor.replies()[-1].kind == SlotKind.SEND_PARTS


# ---- the reader, and what is resident


def test_the_reader_says_what_it_misses(log: Logged) -> None:
    size = segment(log, 0).stat().st_size
    bound = Bound(350, 300, log.position)
    (log.directory / f"{0:020d}.index").write_bytes(bytes(8))
    reader = PartitionReader(log.directory)
    expected = reader.fetch_slice(0, 500, bound)
    assert reader.fetch_slice(0, 500, bound, wait=False) == expected
    evict(segment(log, 0))
    evict(log.directory / f"{0:020d}.index")
    reader = PartitionReader(log.directory)
    missed = []
    for _ in range(4):
        try:
            found = reader.fetch_slice(0, size, bound, wait=False)
            break
        except NotResident as cold:
            missed.append((Path(f"/proc/self/fd/{cold.fd}").readlink().suffix, cold.position, cold.length))
            os.pread(cold.fd, cold.length, cold.position)
    assert missed == [(".index", 0, 8), (".log", 0, size)]
    assert found is not None
    assert found.length == size
    reader.close()


def test_the_end_of_a_slice_counts_as_its_beginning_does(tmp_path: Path) -> None:
    batch = build_batch([NewRecord(b"k", bytes(60_000), 0)])
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(batch)
    bound = Bound(1, 0, len(batch))
    reader = PartitionReader(tmp_path)
    assert reader.fetch_slice(0, 1, bound, wait=False) is not None
    evict(path)
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, log_reader.LOOKED_AT_BYTES, 0)
    with pytest.raises(NotResident) as missed:
        PartitionReader(tmp_path).fetch_slice(0, 1, bound, wait=False)
    assert (missed.value.position, missed.value.length) == (0, len(batch))
    os.close(fd)


@pytest.mark.parametrize("by_probes", [False, True])
def test_what_is_resident(tmp_path: Path, fd: int, by_probes: bool) -> None:
    assert resident(fd, 0, 4 * MIB, by_probes)
    assert resident(fd, 5, 0, by_probes)
    evict(tmp_path / "file")
    assert not resident(fd, 0, 4 * MIB, by_probes)


def test_a_page_that_misses_in_the_middle(tmp_path: Path, fd: int) -> None:
    evict(tmp_path / "file")
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 2 * MIB, 0)
    os.pread(fd, 1, 4 * MIB - 1)
    assert resident(fd, 0, 2 * MIB)
    assert not resident(fd, 2 * MIB - 1, 2)
    assert not resident(fd, 0, 4 * MIB)


def test_who_wants_the_same_waits_together(tmp_path: Path, reads: Reads) -> None:
    (tmp_path / "file").write_bytes(bytes(MIB))
    told: list[int] = []
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    for i in range(3):
        reads.read(fd, 0, MIB, lambda i=i: told.append(i))
    reads.read(fd, 4096, 10, lambda: told.append(3))
    os.close(fd)
    assert len(reads) == 2
    reads.wait_for_all()
    assert sorted(told) == [0, 1, 2, 3]
    assert len(reads._threads) == 2


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_reads_that_are_too_many_wait_without_descriptors(
    reads: Reads, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_prefetch, "READS_MAX", 8)
    told: list[int] = []

    def ask(number: int) -> None:
        """Look as a fetch does when it is called, and ask again if what it wants is not in memory."""
        if number not in told:
            told.append(number)
            reads.read(fd, number * 4096, 10, partial(ended.append, number))

    ended: list[int] = []
    before = descriptors()
    for i in range(100):
        reads.read(fd, i * 4096, 10, partial(ask, i))
    # What is read behind somebody's back, and the pipes of the threads.
    most = before + 8 + disk_prefetch.THREADS * 4
    assert descriptors() <= most
    while reads:
        reads.wait()
        assert descriptors() <= most
    assert sorted(told) == sorted(ended) == list(range(100))


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (threading.Thread, "start", RuntimeError("can't start new thread")),
        (os, "pipe2", OSError(24, "Too many open files")),
    ],
)
def test_a_system_without_threads_or_descriptors_to_spare(
    reads: Reads,
    fd: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: object,
    name: str,
    error: Exception,
) -> None:
    def refused(*_: object) -> None:
        raise error

    told: list[int] = []
    with monkeypatch.context() as without:
        without.setattr(owner, name, refused)
        reads.read(fd, 0, 10, partial(told.append, 0))
        reads.reap()
        assert told == [0]
    assert "TasksMax" in caplog.text
    reads.read(fd, 4096, 10, partial(told.append, 1))
    reads.wait_for_all()
    assert told == [0, 1]
    assert len(reads._threads) == 1


@pytest.mark.parametrize("has_room", [False, True])
def test_what_follows_is_brought_as_well(
    tmp_path: Path, reads: Reads, fd: int, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the file is read ahead to its end, whatever the kernel does, without delay for the fetch."""

    def refuse(*_: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    if not has_room:
        monkeypatch.setattr(disk_prefetch.fcntl, "fcntl", refuse)
    evict(tmp_path / "file")
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    told: list[bool] = []
    for position, length in ((0, MIB), (3 * MIB, MIB)):
        reads.read(fd, position, length, lambda: told.append(resident(fd, 0, MIB)))
        reads.wait_for_all()
        until(lambda: resident(fd, MIB, MIB), "what follows is there")
    assert told == [True, True]
    assert not resident(fd, 2 * MIB, MIB)
    assert resident(fd, 3 * MIB, MIB)


def test_what_the_disk_cannot_give_is_an_error_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the disk is asked once, and that what can be read is served meanwhile and afterwards."""
    begins, works, real = threading.Event(), threading.Event(), Drain.pull

    def pull(drain: Drain, fd: int, position: int, count: int) -> int:
        assert begins.wait(PATIENCE_S)
        if not works.is_set():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(drain, fd, position, count)

    monkeypatch.setattr(Drain, "pull", pull)
    with two_segments(tmp_path, sealed=30) as log:
        evict(segment(log, 0))
        assert [reply.kind for reply in send(log, fetch(0, wait_ms=60_000))] == [SlotKind.PARKED]
        begins.set()
        rounds_until_answered(log)
        found = partition_of(answer(log, 12))
        assert (found.error_code, found.records) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
        assert caplog.text.count("cannot be read at byte 0: [Errno 5]") == 1
        assert [reply.kind for reply in send(log, fetch(300))] != [SlotKind.PARKED]
        begins.clear()
        works.set()
        assert [reply.kind for reply in send(log, fetch(0, wait_ms=60_000))] == [SlotKind.PARKED]
        begins.set()
        rounds_until_answered(log)
        assert bytes(partition_of(answer(log, 12)).records) == b"".join(log.batches[:30])
        log.rig.handler.broker.prefetch.close()


def test_a_disk_that_fails_is_not_taken_for_another_one(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it with files that have the same inode number on different file systems."""
    (tmp_path / "file").write_bytes(bytes(100))
    bad, good = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), os.open(tmp_path / "file", os.O_RDONLY)
    real = os.fstat

    def as_of_two_disks(fd: int) -> os.stat_result:
        found = real(fd)
        is_file = stat.S_ISREG(found.st_mode)
        return os.stat_result((found.st_mode, 7, int(is_file), *found[3:]))

    monkeypatch.setattr(os, "fstat", as_of_two_disks)
    told: list[str] = []
    reads.read(bad, 0, 100, lambda: reads.read(good, 0, 100, lambda: told.append("the other one")))
    reads.wait_for_all()
    assert told == ["the other one"]
    os.close(bad)
    os.close(good)


def test_a_disk_that_fails_is_told(tmp_path: Path, reads: Reads, caplog: pytest.LogCaptureFixture) -> None:
    """Check that the waiting fetch gets the error when it asks again, and that a later one asks the disk."""
    told: list[int] = []
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)

    def again() -> None:
        with pytest.raises(OSError, match="Invalid argument"):
            reads.read(fd, 0, 200, lambda: None)
        told.append(0)

    reads.read(fd, 0, 100, again)
    reads.wait()
    assert told == [0]
    assert f"{tmp_path} cannot be read at byte 0" in caplog.text
    reads.read(fd, 0, 100, lambda: told.append(1))
    reads.wait()
    assert told == [0, 1]
    os.close(fd)
