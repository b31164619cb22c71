"""Reads the kernel's data about processes from /proc (proc(5)).

`psutil` offers more, but its import would take too much of a program's start time.
"""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# States of a process: runnable, or waiting.
COULD_RUN, WAITS_FOR_DISK = "R", "D"
ENDED = ("Z", "X")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Fields of `stat`, counted from the one after the name.
_STATE, _USER_TICKS, _SYSTEM_TICKS, _THREADS, _START_TICKS, _RESIDENT_PAGES = 0, 11, 12, 17, 19, 21
_PSS = re.compile(rb"^Pss:\s+(\d+) kB$", re.MULTILINE)


class Stat(NamedTuple):
    """The state of a process or thread. A second has `TICKS_PER_S` ticks; `start_ticks` is since boot."""

    state: str
    cpu_ticks: int
    threads: int
    start_ticks: int
    resident_bytes: int


def stat(directory: Path) -> Stat:
    """Read `stat` in a process's or thread's directory. Raises FileNotFoundError, ProcessLookupError."""
    line = (directory / "stat").read_bytes()
    # The name in parentheses may itself contain anything, also a parenthesis.
    fields = line[line.rindex(b")") + 2 :].split()
    return Stat(
        fields[_STATE].decode("ascii"),
        int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]),
        int(fields[_THREADS]),
        int(fields[_START_TICKS]),
        int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES,
    )


def process(pid: int) -> Stat:
    """Return the state of a process. Raises FileNotFoundError or ProcessLookupError if it has ended."""
    return stat(Path(f"/proc/{pid}"))


def pss_bytes(pid: int) -> int | None:
    """Return the proportional set size: resident memory, each shared page divided by the number of sharers.

    Returns None if the kernel refuses, as for another user's process or with systemd's ProtectProc. Raises
    FileNotFoundError or ProcessLookupError if the process has ended.
    """
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    except PermissionError:
        return None
    return int(found[1]) << 10 if found else None


def memory_bytes() -> int:
    """Return the memory of the machine; of the container if it has a /proc/meminfo of its own."""
    _name, kib, *_ = Path("/proc/meminfo").read_bytes().split(maxsplit=2)
    return int(kib) << 10


def open_descriptors() -> list[int]:
    """Return this process's open file descriptors, and one that this function opened and closed."""
    # Not by Path: what its code touches is copied in each of the supervisor's children.
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208


def descriptors_left() -> int:
    """Return the number of further files that this process may open under RLIMIT_NOFILE."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = 1 << 30
    return limit - len(open_descriptors())
