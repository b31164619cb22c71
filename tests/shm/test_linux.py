"""Calls of Linux about a process."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from shm import linux
from tests.shm.conftest import Fork


def test_priorities_of_reads_and_writes(fork: Fork) -> None:
    def lowered() -> None:
        for io_class, level in ((linux.IOPRIO_CLASS_BE, 7), (linux.IOPRIO_CLASS_IDLE, 0)):
            linux.set_io_priority(io_class, level)
            found = psutil.Process().ionice()
            assert (int(found.ioclass), found.value) == (io_class, level)
        with pytest.raises(OSError, match="Invalid argument"):
            linux.set_io_priority(7, 0)

    assert fork(lowered).wait() == 0


def test_a_signal_that_there_is_not() -> None:
    linux.set_parent_death_signal(0)
    with pytest.raises(OSError, match="Invalid argument"):
        linux.set_parent_death_signal(signal.NSIG + 1000)


def test_a_child_gets_the_signal_when_its_parent_dies(fork: Fork) -> None:
    reader, writer = os.pipe()

    def parent() -> None:
        if os.fork() == 0:
            linux.set_parent_death_signal(signal.SIGKILL)
            os.write(writer, b"x")
            signal.pause()
        os.read(reader, 1)

    assert fork(parent).wait() == 0
    # The end of the pipe comes when no process has its other end any more.
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)
