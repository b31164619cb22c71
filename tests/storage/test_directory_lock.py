"""The lock on a log directory, as another mpbroker, Apache Kafka and readers see it."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.process import FatalError
from mpbroker.log.recovery.workers import outlive
from mpbroker.storage import directory_lock
from mpbroker.storage.directory_lock import Holder, LogDirLocks, holder_of, is_in_use, lock_log_dirs
from mpbroker.storage.names import LOCK

LANE = 3


def config_of(directory: Path) -> BrokerConfig:
    return msgspec.structs.replace(BrokerConfig(), log_dirs=(str(directory),))


def javas_lock(path: Path) -> int:
    """Lock all bytes of the file as FileChannel.tryLock does. Returns the fd, -1 if somebody has a lock."""
    fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return -1
    return fd


@contextmanager
def locked_as_kafka_does(path: Path) -> Iterator[int]:
    """Yield the pid of a process that has Java's lock."""
    told, tell = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(tell, b"y" if javas_lock(path) >= 0 else b"n")
        signal.pause()
    try:
        assert os.read(told, 1) == b"y"
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(told)
        os.close(tell)


def java_may_lock(path: Path) -> bool:
    """Try it in another process: this one's closing of the file must not matter."""
    if (pid := os.fork()) == 0:
        os._exit(javas_lock(path) < 0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_kafka_sees_our_lock(tmp_path: Path) -> None:
    (held,) = lock_log_dirs(config_of(tmp_path))
    assert not java_may_lock(tmp_path)
    assert holder_of(tmp_path / LOCK) == Holder(is_mpbroker=True, pid=0)
    # A lock of the process would end here, when the process closes any descriptor of the file.
    assert is_in_use(tmp_path)
    assert not java_may_lock(tmp_path)
    os.close(held)
    assert java_may_lock(tmp_path)
    assert not is_in_use(tmp_path)


def test_the_lock_lives_as_long_as_a_child_that_has_it(tmp_path: Path) -> None:
    (held,) = lock_log_dirs(config_of(tmp_path))
    if (pid := os.fork()) == 0:
        signal.pause()
    os.close(held)
    assert not java_may_lock(tmp_path)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert java_may_lock(tmp_path)


def test_we_see_kafkas_lock_and_say_whose_it_is(tmp_path: Path) -> None:
    with locked_as_kafka_does(tmp_path) as pid:
        assert holder_of(tmp_path / LOCK) == Holder(is_mpbroker=False, pid=pid)
        assert is_in_use(tmp_path)
        with pytest.raises(FatalError, match=rf"locked by another broker \(Apache Kafka, pid {pid}\)\. Stop"):
            LogDirLocks(config_of(tmp_path))
    for fd in lock_log_dirs(config_of(tmp_path)):
        os.close(fd)


def test_a_refused_try_leaves_readers_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a start that waits for Kafka is not taken for a broker that runs."""
    looked: list[bool] = []

    def look(_: float) -> None:
        with (tmp_path / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        looked.append(True)

    # The module's name alone: threads of other tests sleep, too.
    monkeypatch.setattr(directory_lock, "time", Mock(wraps=time, sleep=look))
    with locked_as_kafka_does(tmp_path), pytest.raises(FatalError):
        LogDirLocks(config_of(tmp_path))
    assert looked


def test_workers_of_a_recovery_lock_other_bytes(tmp_path: Path) -> None:
    (held,) = lock_log_dirs(config_of(tmp_path))
    outlive(tmp_path, LANE)
    assert not java_may_lock(tmp_path)
    os.close(held)


def test_no_lock_where_there_is_no_file(tmp_path: Path) -> None:
    assert holder_of(tmp_path / LOCK) is None
    assert not is_in_use(tmp_path)
