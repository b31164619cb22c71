"""A broker's process tree: its costs, pausing it, stopping it."""

import contextlib
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_TITLE = re.compile(r"mpbroker [^:]*: (.*)")


def title_of(process: psutil.Process) -> str:
    """Return the title of a process of mpbroker in ps, without the broker's name: "handler 0".

    Return "" for other processes, and for one that has ended.
    """
    try:
        found = _TITLE.match(" ".join(process.cmdline()).strip())
    except psutil.Error:
        return ""
    return found[1] if found else ""


@dataclass
class Tree:
    """The process `root` and everything below it."""

    root: psutil.Process

    def members(self) -> list[psutil.Process]:
        """Return the processes, parents before children."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self.root, *self.root.children(recursive=True)]
        return []

    def cpu_seconds(self) -> float:
        """Return user and system time in seconds, exact to 10 ms, including exited children of the root."""
        total = 0.0
        for member in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = member.cpu_times()
                total += times.user + times.system
        with contextlib.suppress(psutil.NoSuchProcess):
            times = self.root.cpu_times()
            total += times.children_user + times.children_system
        return total

    def run_seconds(self) -> float:
        """Return CPU seconds of the living threads, exact to 1 ns. Use it for nearly idle processes."""
        total_ns = 0
        for member in self.members():
            for path in Path(f"/proc/{member.pid}/task").glob("*/schedstat"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    total_ns += int(path.read_text().split()[0])
        return total_ns / 1e9

    def pss_bytes(self) -> int:
        """Return the proportional set size: memory that the processes share counts once."""
        total = 0
        for member in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += member.memory_full_info().pss
        return total

    def pause(self) -> None:
        """Send SIGSTOP from the root down, so that no parent notices stopped children."""
        for member in self.members():
            member.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT from the leaves up."""
        for member in reversed(self.members()):
            member.send_signal(signal.SIGCONT)

    def idle_cpu_percent(self, seconds: float) -> float:
        """Measure for `seconds`; return CPU time over wall time, in percent of one core."""
        cpu, start = self.run_seconds(), time.monotonic()
        time.sleep(seconds)
        return 100 * (self.run_seconds() - cpu) / (time.monotonic() - start)
