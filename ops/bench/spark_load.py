"""Measures what a Spark job takes from the host: CPU cores, and the memory of its Python workers."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TypeVar

import psutil

from ops.bench.processes import Tree

Found = TypeVar("Found")
SLICE_S = 0.01
SHARE_MIN = 0.01
START_TIMEOUT_S = 60
SAMPLE_S = 0.05


def burn(cores: float, seconds: float, ready: Barrier) -> None:
    """Use the fraction `cores` (0 to 1) of one core for some seconds, a slice at a time."""
    ready.wait(START_TIMEOUT_S)
    stop_at = time.monotonic() + seconds
    while (now := time.monotonic()) < stop_at:
        while time.monotonic() < now + SLICE_S * cores:
            continue
        time.sleep(SLICE_S * (1 - cores))


@contextmanager
def burning(cores: float, seconds: float) -> Iterator[None]:
    """Keep this many cores busy with processes, to compare their effect with that of an equally busy job.

    All processes run when the body begins and have ended after it. Raises BrokenBarrierError if one does not
    start.
    """
    context = multiprocessing.get_context("spawn")
    whole, rest = divmod(cores, 1)
    shares = [1.0] * int(whole) + ([rest] if rest > SHARE_MIN else [])
    ready = context.Barrier(len(shares) + 1)
    processes = [context.Process(target=burn, args=(share, seconds, ready)) for share in shares]
    for one in processes:
        one.start()
    try:
        ready.wait(START_TIMEOUT_S)
        yield
    finally:
        for one in processes:
            one.join()


def with_cores(tree: Tree, run: Callable[[], Found]) -> tuple[Found, float]:
    """Return what `run` returns, and how many cores the tree of processes took meanwhile."""
    begun, before_s = time.monotonic(), tree.cpu_seconds()
    found = run()
    return found, (tree.cpu_seconds() - before_s) / (time.monotonic() - begun)


@dataclass
class WorkerMemory:
    """Watches the Python workers below a process; `peak_bytes` is the most memory that one took.

    Mapped files do not count: their pages belong to the page cache, which frees them when it needs room.
    """

    root: psutil.Process
    peak_bytes: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            with suppress(psutil.NoSuchProcess):
                self.peak_bytes = max([self.peak_bytes, *map(anonymous_bytes, self._workers())])

    def _workers(self) -> Sequence[psutil.Process]:
        below = self.root.children(recursive=True)
        return [one for one in below if one.is_running() and "pyspark" in " ".join(_words(one))]


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        words = process.cmdline()
        return [] if words and "java" in Path(words[0]).name else words
    return []


def anonymous_bytes(process: psutil.Process) -> int:
    """Return the bytes of memory without a file (Linux: smaps_rollup); 0 for a process that has ended."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    return 0
