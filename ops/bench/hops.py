"""The work and costs of each kind of process of a running mpbroker, between two samples.

A request hops from processor to handler to log worker and back. The counter pages of the public region count
the work of a hop; the kernel counts its costs. Both are read from outside and cost the broker nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter, Histogram
from mpbroker.ipc.pointer import PUBLIC_NAME, read_pointer
from ops.bench.brokers import Mpbroker
from ops.bench.processes import title_of
from shm.region import Region

KINDS = ("processor", "handler", "log worker", "coordinator", "others")
_TITLE = re.compile(r"(processor|handler|log|coordinator) ?(\d*)")
_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Work:
    """Counts of one kind of process.

    `sleeps` counts the voluntary context switches of all threads: each is one wake-up. `turns` counts the
    turns of the process's loop. `rounds` counts commit rounds. `sync_ns` is the time that these rounds took.
    `bytes` counts appended bytes.
    """

    cpu_ns: int = 0
    sleeps: int = 0
    turns: int = 0
    responses: int = 0
    rounds: int = 0
    sync_ns: int = 0
    bytes: int = 0

    def _with(self, other: Self, sign: int) -> Self:
        return type(self)(*(a + sign * b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __add__(self, other: Self) -> Self:
        return self._with(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._with(other, -1)


Sample = Mapping[str, Work]


def difference(now: Sample, before: Sample) -> dict[str, Work]:
    """Return the work between two samples."""
    return {kind: now[kind] - before[kind] for kind in KINDS}


def _index(role: str, number: str) -> int:
    """Return the index of a process's counter page. The process's title has its role and number."""
    if role == "log":
        return topology.log_worker(int(number))
    if role == "coordinator":
        return topology.COORDINATOR
    return topology.processor(int(number)) if role == "processor" else topology.handler(int(number))


def _used(pid: int) -> Work:
    """Return the kernel's counts of a process and its threads; zeros if it has ended."""
    used = Work()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            cpu_ns = int((task / "schedstat").read_text().split()[0])
            found = _SWITCHES.search((task / "status").read_text())
            used += Work(cpu_ns, int(found[1]) if found else 0)
    return used


class Hops:
    """Reads the counts of one broker's processes. Raises FileNotFoundError if it does not run."""

    def __init__(self, broker: Mpbroker) -> None:
        pointer = read_pointer(broker.log_dir)
        if pointer is None:
            raise FileNotFoundError(f"no broker runs on {broker.log_dir}")
        path = Path(pointer.runtime_dir) / PUBLIC_NAME
        self._public = Region.attach(path, topology.PUBLIC_MAGIC, topology.LAYOUT_VERSION)
        self._tree = broker.tree()

    def sample(self) -> dict[str, Work]:
        """Return what each kind of process has done and used since it was started."""
        found = dict.fromkeys(KINDS, Work())
        for kind, pid, index in self._roles():
            found[kind] += _used(pid)
            if index is not None:
                found[kind] += self._counted(index)
        return found

    def members(self) -> list[tuple[str, int]]:
        return [(kind, pid) for kind, pid, _ in self._roles()]

    def _roles(self) -> Iterator[tuple[str, int, int | None]]:
        for member in self._tree.members():
            title = _TITLE.match(title_of(member))
            if title is None:
                yield "others", member.pid, None
            else:
                yield title[1].replace("log", "log worker"), member.pid, _index(title[1], title[2])

    def _counted(self, index: int) -> Work:
        page = topology.counter_page(self._public, index)
        return Work(
            turns=page.turns,
            responses=page.get(Counter.COUNT_RESPONSES),
            rounds=page.get(Counter.COUNT_COMMIT_ROUNDS),
            sync_ns=page.histogram_sum(Histogram.TIME_COMMIT_NS),
            bytes=page.get(Counter.COUNT_BYTES_APPENDED),
        )
