"""Watches the processes of a broker from outside: their memory, and how long each works without a pause.

A piece of work is the CPU time of a process's main thread while its turn counter stands still. That is what
others wait for, whatever else the machine does. A look is late at times, so that a piece is found to be
shorter than it was, never longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.ipc.topology import (
    COORDINATOR,
    HANDLERS,
    LAYOUT_VERSION,
    LOG_WORKERS,
    PROCESSORS,
    PUBLIC_MAGIC,
    counter_page,
    name_of,
)
from ops.bench.brokers import Mpbroker
from shm.counters import CounterPage
from shm.region import Region
from tests.support.real_brokers import control
from tests.support.socket_client import own_bytes

Asked: TypeAlias = tuple[int, ...]

LOOK_EVERY_S = 0.002
# Shorter pieces are not kept.
SHORT_NS = 10_000_000
# Of so many looks one looks at memory, too.
MEMORY_EVERY = 25


@dataclass
class Watched:
    """One process, as it was when it was last looked at."""

    name: str
    pid: int
    page: CounterPage
    turns: int = -1
    begun_ns: int = 0
    most_bytes: int = 0
    # The longest pieces, by the numbers of what was asked then.
    pieces: dict[Asked, int] = field(default_factory=dict)

    def cpu_ns(self) -> int:
        """Return the CPU time of the main thread."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0])

    def look(self, doing: Callable[[], Asked]) -> None:
        turns, cpu_ns = self.page.turns, self.cpu_ns()
        if turns != self.turns:
            self.turns, self.begun_ns = turns, cpu_ns
        # Since the first of the two looks the counter may have moved, and moved again.
        elif cpu_ns - self.begun_ns > SHORT_NS and self.page.turns == turns:
            asked = doing()
            self.pieces[asked] = max(self.pieces.get(asked, 0), cpu_ns - self.begun_ns)

    def look_at_memory(self) -> None:
        self.most_bytes = max(self.most_bytes, own_bytes(self.pid))


@dataclass
class Watch:
    """A thread that looks. `doing` tells the numbers of the requests that are under way just now."""

    broker: Mpbroker
    doing: Callable[[], Asked] = tuple
    processes: list[Watched] = field(default_factory=list)

    def __post_init__(self) -> None:
        public = Region.attach(self.broker.runtime_dir / PUBLIC_NAME, PUBLIC_MAGIC, LAYOUT_VERSION)
        pids = {one["name"]: one["pid"] for one in self.status()}
        for index in (COORDINATOR, *LOG_WORKERS, *PROCESSORS, *HANDLERS):
            if name_of(index) in pids:
                name = name_of(index)
                self.processes.append(Watched(name, pids[name], counter_page(public, index)))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def status(self) -> list[dict[str, int | str]]:
        found: list[dict[str, int | str]] = control(self.broker).call("status")["processes"]
        return found

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        looks = 0
        while not self._ended.wait(LOOK_EVERY_S):
            for one in self.processes:
                try:
                    one.look(self.doing)
                    if looks % MEMORY_EVERY == 0:
                        one.look_at_memory()
                except (FileNotFoundError, ProcessLookupError):
                    continue  # its death is found by its name
            looks += 1

    def bytes_now(self) -> dict[str, int]:
        return {one.name: own_bytes(one.pid) for one in self.processes}

    def summary(self, shown: int, describe: Callable[[int], object]) -> str:
        """Tell memory and the longest pieces of work of each process."""
        lines = []
        for one in self.processes:
            lines.append(f"{one.name}: {one.most_bytes >> 20} MiB at most")
            longest = sorted(one.pieces.items(), key=lambda piece: -piece[1])[:shown]
            lines += [
                f"  {ns / 1e6:6.1f} ms; {', '.join(map(str, map(describe, asked)))}" for asked, ns in longest
            ]
        return "\n".join(lines)
