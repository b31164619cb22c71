"""What /proc says of processes, and of those that end meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from mpbroker.metrics import processes
from mpbroker.metrics.processes import ProcessLooker

# More than there can be (proc(5), pid_max).
NOBODY = (1 << 22) + 1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def own_cpu_ticks() -> int:
    """CPU time of this process; the kernel counts it as in /proc."""
    times = os.times()
    return round((times.user + times.system) * TICKS_PER_S)


def test_it_sees_what_psutil_sees() -> None:
    before = own_cpu_ticks()
    (seen,) = ProcessLooker().look({5: os.getpid()}).values()
    process = psutil.Process()
    assert 0 < before <= round(seen.cpu_s * TICKS_PER_S) <= own_cpu_ticks()
    assert seen.threads == process.num_threads()
    assert seen.pss_bytes is not None
    assert 0 < seen.pss_bytes <= 2 * process.memory_info().rss
    assert seen.resident_bytes == pytest.approx(process.memory_info().rss, rel=0.5)


def test_a_process_that_has_ended_is_left_out() -> None:
    assert ProcessLooker().look({1: os.getpid(), 2: NOBODY}).keys() == {1}


def test_memory_is_looked_up_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    looker, looked = ProcessLooker(), []
    read = Path.read_bytes

    def counted(path: Path) -> bytes:
        looked.append(path.name)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    for _ in range(3):
        looker.look({1: os.getpid()})
    assert (looked.count("stat"), looked.count("smaps_rollup")) == (3, 1)
    monkeypatch.setattr(processes, "MEMORY_EVERY_S", 0.0)
    looker.look({1: os.getpid()})
    assert looked.count("smaps_rollup") == 2
