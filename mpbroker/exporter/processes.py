"""CPU time and memory of the broker's processes, as the kernel tells them.

The kernel walks the page tables of a process to add up its proportional set size, so that is looked up
seldom, however often somebody scrapes.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

MEMORY_EVERY_S = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PSS = re.compile(rb"^Pss:\s+(\d+) kB$", re.MULTILINE)
# Fields of /proc/PID/stat behind the name (proc(5)).
_USER_TICKS, _SYSTEM_TICKS, _THREADS, _RESIDENT_PAGES = 11, 12, 17, 21


@dataclass(frozen=True)
class ProcessSeen:
    """A process. `pss_bytes`: resident memory, with shared pages divided among those that have them."""

    cpu_s: float
    threads: int
    resident_bytes: int
    pss_bytes: int | None


class ProcessLooker:
    """A reader of /proc that remembers what is expensive to look up."""

    def __init__(self) -> None:
        self._pss: dict[int, tuple[float, int | None]] = {}

    def look(self, pids: dict[int, int]) -> dict[int, ProcessSeen]:
        """Return what there is of each process; `pids` are process ids by role. One that ended has none."""
        now = time.monotonic()
        self._pss = {pid: known for pid, known in self._pss.items() if pid in pids.values()}
        found = {}
        for role, pid in pids.items():
            try:
                line = Path(f"/proc/{pid}/stat").read_bytes()
                if pid not in self._pss or now >= self._pss[pid][0] + MEMORY_EVERY_S:
                    self._pss[pid] = now, _pss_bytes(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            # The name in parentheses may itself contain anything.
            fields = line[line.rindex(b")") + 2 :].split()
            found[role] = ProcessSeen(
                (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / _TICKS_PER_S,
                int(fields[_THREADS]),
                int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES,
                self._pss[pid][1],
            )
        return found


def _pss_bytes(pid: int) -> int | None:
    """Return the PSS; None if the kernel does not tell it to us, as with ProtectProc. Raises OSError."""
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    except PermissionError:
        return None
    return int(found[1]) << 10 if found else None
