"""What /proc says of processes agrees with psutil, whatever they are called."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from shm import procfs
from tests.shm.conftest import Fork

# More than there can be (proc(5), pid_max).
NOBODY = (1 << 22) + 1


def test_it_sees_what_psutil_sees() -> None:
    process = psutil.Process()
    found = procfs.process(os.getpid())
    assert found.state == procfs.COULD_RUN
    assert found.threads == process.num_threads()
    assert found.resident_bytes == pytest.approx(process.memory_info().rss, rel=0.5)
    assert 0 < found.cpu_ticks / procfs.TICKS_PER_S <= time.process_time() + 1
    assert time.time() - process.create_time() == pytest.approx(
        time.clock_gettime(time.CLOCK_BOOTTIME) - found.start_ticks / procfs.TICKS_PER_S, abs=2
    )
    pss_bytes = procfs.pss_bytes(os.getpid())
    assert pss_bytes is not None
    assert 0 < pss_bytes <= 2 * found.resident_bytes


def test_a_name_may_hold_anything(fork: Fork) -> None:
    def named() -> None:
        before = procfs.process(os.getpid())
        Path(f"/proc/{os.getpid()}/comm").write_bytes(b"a) R 1 (b) 2")
        after = procfs.process(os.getpid())
        assert (after.state, after.start_ticks) == (before.state, before.start_ticks)

    assert fork(named).wait() == 0


def test_one_that_has_ended_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        procfs.process(NOBODY)
    with pytest.raises(FileNotFoundError):
        procfs.pss_bytes(NOBODY)


def test_memory_that_the_kernel_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_path: Path) -> bytes:
        raise PermissionError

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert procfs.pss_bytes(os.getpid()) is None


def test_memory_and_descriptors() -> None:
    assert procfs.memory_bytes() == psutil.virtual_memory().total
    reader, writer = os.pipe()
    found = set(procfs.open_descriptors())
    assert {reader, writer} < found
    left = procfs.descriptors_left()
    os.close(reader)
    os.close(writer)
    assert procfs.descriptors_left() == left + 2
