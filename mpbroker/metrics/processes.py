"""CPU time and memory of the broker's processes, from the kernel.

The kernel walks the page tables of a process to compute its proportional set size (PSS). So the PSS is read
at most once per MEMORY_EVERY_S, even if metrics are scraped more often.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from shm import procfs

MEMORY_EVERY_S = 5.0


@dataclass(frozen=True)
class ProcessUsage:
    """Resources of a process. `pss_bytes`: resident memory; a page that n processes share counts 1/n."""

    cpu_s: float
    threads: int
    resident_bytes: int
    pss_bytes: int | None


class ProcessLooker:
    """Reads the usage of processes from /proc, and caches values that are expensive to read."""

    def __init__(self) -> None:
        self._pss: dict[int, tuple[float, int | None]] = {}

    def look(self, pids: dict[int, int]) -> dict[int, ProcessUsage]:
        """Return the usage of each running process by role. `pids`: process ids by role."""
        now = time.monotonic()
        self._pss = {pid: known for pid, known in self._pss.items() if pid in pids.values()}
        found = {}
        for role, pid in pids.items():
            try:
                one = procfs.process(pid)
                if pid not in self._pss or now >= self._pss[pid][0] + MEMORY_EVERY_S:
                    self._pss[pid] = now, procfs.pss_bytes(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            cpu_s = one.cpu_ticks / procfs.TICKS_PER_S
            found[role] = ProcessUsage(cpu_s, one.threads, one.resident_bytes, self._pss[pid][1])
        return found
