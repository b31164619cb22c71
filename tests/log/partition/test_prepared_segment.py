"""The next segment is prepared by the I/O thread: a roll names files and makes none."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

import msgspec
import pytest

from mpbroker.log.manager import segment_preparation
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.partition.prepared_segment import Prepared
from mpbroker.log.process import LogProcess
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.storage.checkpoints import write_all
from mpbroker.storage.names import CLEAN_SHUTDOWN
from mpbroker.storage.segments import segments_of
from tests.support.full_disk import failing_with
from tests.support.log_node import MakeNode, Node, wait_for_io
from tests.support.log_rig import ensure
from tests.support.log_writer import TOPIC_ID, MakeWriter, make_batch, topic_config
from tests.support.polling import until

pytestmark = pytest.mark.usefixtures("tidy")
Files = dict[str, bytes]
# .log, .index, .timeindex, .snapshot and the directory.
FILES = 5


def files_of(log: PartitionLog) -> Files:
    return {path.name: path.read_bytes() for path in log.directory.iterdir()}


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - these are no files


def close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def test_it_leaves_the_same_files(writer: MakeWriter) -> None:
    w = writer(segment_bytes="1048576")
    left: list[Files] = []
    for is_prepared in (True, False):
        log = w.log
        w.append(3, producer=(7, 0, 3 * len(left)))
        before = files_of(log)
        if is_prepared:
            log.prepared = Prepared(log.directory)
            assert files_of(log) == before, "nothing of it is seen before the roll"
        fds = log.roll()
        w.append()
        assert log.prepared is None
        assert log.state.segment_base == 3 + 4 * len(left)
        left.append({name: data for name, data in files_of(log).items() if name not in before})
        close(fds)
        assert len(fds) == FILES
    named = [sorted((name.partition(".")[2], len(data)) for name, data in files.items()) for files in left]
    assert named[0] == named[1]
    assert [suffix for suffix, _ in named[0]] == ["index", "log", "snapshot", "timeindex"]
    modes = {path.stat().st_mode for path in w.log.directory.glob("*.log")}
    assert len(modes) == 1


def test_a_name_that_is_taken(writer: MakeWriter) -> None:
    """Check that a leftover segment of the same base is emptied, as without prepared files."""
    w = writer()
    w.append()
    stale = w.log.directory / "00000000000000000001.timeindex"
    stale.write_bytes(b"stale")
    w.log.prepared = Prepared(w.log.directory)
    w.roll()
    w.append()
    assert stale.read_bytes() == b""
    assert segments_of(w.log.directory) == [0, 1]
    assert os.fstat(w.log.state.fd).st_ino == (w.log.directory / "00000000000000000001.log").stat().st_ino


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_names_that_cannot_be_given_are_taken_back(
    writer: MakeWriter, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    w = writer()
    w.append()
    before, fds = files_of(w.log), open_fds()
    calls: list[int] = []
    real = os.link

    def link(*arguments: Any, **more: Any) -> None:
        calls.append(1)
        if len(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(*arguments, **more)

    w.log.prepared = Prepared(w.log.directory)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        patch.setattr("mpbroker.log.partition.partition_log.open_files", failing_with(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            w.log.roll()
    left = files_of(w.log)
    assert {name for name in left if name not in before} <= {"00000000000000000001.snapshot"}
    assert (w.log.state.segment_base, open_fds()) == (0, fds)
    w.append()
    w.roll()
    assert segments_of(w.log.directory) == [0, 2]


def test_what_is_not_used_is_closed(writer: MakeWriter) -> None:
    w = writer()
    fds = open_fds()
    made = Prepared(w.log.directory)
    assert open_fds() == fds + FILES
    del made
    assert open_fds() == fds
    with pytest.raises(FileNotFoundError):
        Prepared(w.log.directory / "none such")
    assert open_fds() == fds


# ---- who gets one ----


def opened(node: Node, partitions: int, segment_bytes: int) -> list[PartitionLog]:
    process = node.boot()
    logs = []
    for target in node.open(ensure(partitions)):
        log = process.manager.logs[target.slot]
        log.apply_config(msgspec.structs.replace(log.config, segment_bytes=segment_bytes))
        logs.append(log)
    return logs


def produce(node: Node, log: PartitionLog, data: bytes, count: int = 1) -> None:
    state, process = log.state, node.process
    for _ in range(count):
        node.rig.job([((state.table_slot, state.generation, 5), data)])
        until(lambda: process.turn.is_settled, "the turn settles", lambda: process.work(1))
        assert [reply.results[0].error for reply in node.rig.replies()] == [0]


def take_in(process: LogProcess) -> None:
    wait_for_io(process)
    process.manager.open_partitions.ease()


def test_who_has_rolled_has_the_next_one(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    n = node()
    data = bytes(make_batch(size=400))
    log, other = opened(n, 2, 2 * len(data))
    made: list[str] = []
    real = os.open

    def watched(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            made.append(str(path))
        return real(path, flags, *arguments, **more)

    produce(n, log, data, 3)
    take_in(n.process)
    assert log.prepared is not None
    assert other.prepared is None
    monkeypatch.setattr(os, "open", watched)
    for rolls in range(2, 6):
        made.clear()
        produce(n, log, data, 2)
        assert len(segments_of(log.directory)) == rolls + 1
        assert not [path for path in made if "/t-" in path]
        take_in(n.process)
    monkeypatch.undo()
    n.stop()
    assert (n.dirs[0] / CLEAN_SHUTDOWN).exists()
    n.boot()
    targets = n.open(ensure(2))
    assert [n.end_of(target) for target in targets] == [11, 0]


def test_who_is_half_full_gets_one_and_loses_it_when_it_stands_still(node: MakeNode) -> None:
    n = node()
    data = bytes(make_batch(size=400))
    half, less = opened(n, 2, 4 * len(data))
    open_partitions = n.process.manager.open_partitions
    produce(n, half, data, 2)
    open_partitions.prepare_segments()
    take_in(n.process)
    assert half.prepared is None
    produce(n, half, data)
    produce(n, less, data)
    open_partitions.prepare_segments()
    take_in(n.process)
    assert (half.prepared is not None, less.prepared is not None) == (True, False)
    produce(n, half, data)
    open_partitions.prepare_segments()
    assert half.prepared is not None
    fds = open_fds()
    for _ in range(2):
        open_partitions.prepare_segments()
        take_in(n.process)
        assert half.prepared is None
        assert open_fds() == fds - FILES


def test_only_so_many_and_nobody_who_went_meanwhile(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    n = node()
    monkeypatch.setattr(segment_preparation, "PREPARED_MAX", 2)
    data = bytes(make_batch(size=400))
    logs = opened(n, 3, 2 * len(data))
    for log in logs:
        produce(n, log, data, 3)
    wait_for_io(n.process)
    fds = open_fds()
    assert not any(log.prepared for log in logs), "they are on their way"
    n.process.manager.open_partitions.forget(logs[0])
    take_in(n.process)
    assert [log.prepared is not None for log in logs] == [False, True, False]
    assert open_fds() == fds - FILES


def test_where_there_are_no_files_without_a_name(node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    n = node()
    data = bytes(make_batch(size=400))
    (log,) = opened(n, 1, 2 * len(data))
    real, asked = os.open, []

    def refused(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            asked.append(path)
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *arguments, **more)

    monkeypatch.setattr(os, "open", refused)
    for _ in range(4):
        produce(n, log, data, 2)
        take_in(n.process)
    # The directory's reserve is asked for beside it (reserve.py), by the path of the directory.
    assert asked.count(".") == 1
    assert len(segments_of(log.directory)) == 4
    assert not n.process.io_thread.failures()


def test_a_snapshot_that_does_not_fit(writer: MakeWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    w = writer()
    w.append(producer=(7, 0, 0))
    w.log.prepared = Prepared(w.log.directory)

    def part(fd: int, data: bytes) -> None:
        write_all(fd, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mpbroker.log.partition.prepared_segment.write_all", part)
    w.roll()
    snapshot = w.log.directory / "00000000000000000001.snapshot"
    assert snapshot.read_bytes() == w.log.state.producers.snapshot()


class Killed(BaseException):
    """Nothing that follows happens."""


@pytest.mark.parametrize("named", [1, 2, 3, 4])
def test_killed_while_it_gets_its_names(
    writer: MakeWriter, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    w = writer()
    for number in range(3):
        w.append(producer=(7, 0, number))
    producers = w.log.state.producers.snapshot()
    left = [named]

    def link(*arguments: Any, **more: Any) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        real(*arguments, **more)

    real = os.link
    w.log.prepared = Prepared(w.log.directory)
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(os, "link", link)
        w.roll()
    w.log.close_files()
    log = load(w.log.directory, "t", 0, TOPIC_ID, topic_config(), Known(clean=False, durable=3), str)
    assert log.state.log_end == 3
    assert log.state.producers.snapshot() == producers
    assert segments_of(log.directory) == ([0, 3] if named == 4 else [0])
    log.close_cleanly()
    assert load(log.directory, "t", 0, TOPIC_ID, topic_config(), Known(clean=True), str).state.log_end == 3
