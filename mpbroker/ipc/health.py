"""Readiness and liveness of a broker, as in Kubernetes, read from shared memory: no process has to answer.

A broker is ready if recovery is over, each listener accepts connections, every role that a request may need
has a process that serves and is not silent, and no disk is full, offline or stuck. Of several processes with
the same role, such as handlers, one is enough. Disks do not affect liveness: a restart would not mend a disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import topology
from mpbroker.ipc.disk_problems import disk_problems
from mpbroker.ipc.hangs import look_at
from mpbroker.ipc.listeners import ListenerCount, ListenerState
from mpbroker.ipc.process import Order, State
from mpbroker.ipc.progress import Progress, read_progress
from mpbroker.ipc.topology import SharedMemory, name_of
from shm.procfs import COULD_RUN, WAITS_FOR_DISK

# A process that serves moves at least once in a tick. One that does not for this long hangs, unless it
# works on a heavy request, waits for its disk, or is at work and could use more of the processor.
SERVING_SILENT_S = 3.0
# A supervisor that waits for a fence or a disk moves seldom; one that is silent for this long hangs.
SUPERVISOR_SILENT_S = 30.0
# A process is unresponsive after this many times handler.hang.timeout.ms. The supervisor replaces it after
# one, or ten for a handler with a heavy request.
HANG_TIMEOUTS = 12


def recoveries_under_way(config: BrokerConfig, memory: SharedMemory) -> list[Progress]:
    """Return the progress of each log directory that is still being recovered."""
    words = memory.words("recovery")
    rows = [read_progress(words, config.log_workers, number) for number in range(len(config.log_dirs))]
    return [row for row in rows if row.goes_on]


def reasons_not_ready(config: BrokerConfig, memory: SharedMemory) -> list[str]:
    """Return the reasons why the broker is not ready; an empty list if it is ready."""
    found = [
        f"recovering {config.log_dirs[one.log_dir]}: {one.partitions_left} partitions and "
        f"{one.bytes_left} bytes left"
        for one in recoveries_under_way(config, memory)
    ]
    for needed, why in _needed(config):
        serving = [role for role in needed if _serves(memory, role)]
        if not serving:
            found.append(why)
        elif all(_stands_still(memory, role) for role in serving):
            found.append(f"{why}: {_silence(memory, serving[0])}")
    accepting = [n for n in range(len(config.listeners)) if _state_of(memory, n) != ListenerState.NONE]
    found += [
        f"listener {listener} does not accept yet"
        for number, listener in enumerate(config.listeners)
        if number not in accepting
    ]
    return found + disk_problems(config, memory.dir_sizes().all().values())


def unresponsive_processes(config: BrokerConfig, memory: SharedMemory) -> list[str]:
    """Return descriptions of the processes that do not respond; an empty list if the broker is alive.

    A process that starts or recovers is left out: the supervisor watches it. A process that waits for its
    disk is left out too: it cannot be killed then, so a restarted broker could not lock the log directory.
    """
    limit_s = HANG_TIMEOUTS * config.handler_hang_timeout_ms / 1000
    found = []
    for role in range(topology.PROCESSES):
        if role != topology.SUPERVISOR and not _serves(memory, role):
            continue
        if _silent_s(memory, role) <= (SUPERVISOR_SILENT_S if role == topology.SUPERVISOR else limit_s):
            continue
        if _state_of_process(memory, role) != WAITS_FOR_DISK:
            found.append(_silence(memory, role))
    return found


def _stands_still(memory: SharedMemory, role: int) -> bool:
    """Return whether a serving process is silent for no known reason.

    Known reasons are a heavy request, a wait for the disk, and a lack of CPU.
    """
    if _silent_s(memory, role) <= SERVING_SILENT_S:
        return False
    if topology.is_handler(role) and memory.words("heavy").load(role - topology.FIRST_HANDLER):
        return False
    return _state_of_process(memory, role) not in (WAITS_FOR_DISK, COULD_RUN)


def _silent_s(memory: SharedMemory, role: int) -> float:
    return (time.monotonic_ns() - memory.counters(role).heartbeat_ns) / 1e9


def _silence(memory: SharedMemory, role: int) -> str:
    return f"{name_of(role)} has not moved for {_silent_s(memory, role):.0f} s"


def _state_of_process(memory: SharedMemory, role: int) -> str:
    """Return the state of the role's process as a letter, as in /proc/<pid>/stat."""
    return look_at(memory.words("pids").load(role))[0]


def _needed(config: BrokerConfig) -> Iterator[tuple[Iterable[int], str]]:
    """Yield (roles, problem): at least one of the roles must serve; `problem` is the text if none does."""
    for worker in topology.LOG_WORKERS[: config.log_workers]:
        yield (worker,), f"{name_of(worker)} does not serve"
    yield (topology.COORDINATOR,), "the coordinator does not serve"
    planes = [(topology.ACCEPTOR, topology.PROCESSORS[:-1], topology.HANDLERS[:-1])]
    if config.control_plane is not None:
        control = topology.CONTROL_PROCESSOR, topology.CONTROL_HANDLER
        planes.append((topology.CONTROL_ACCEPTOR, control[:1], control[1:]))
    for acceptor, processors, handlers in planes:
        yield (acceptor,), f"the {name_of(acceptor)} does not serve"
        yield processors, f"no processor serves for the {name_of(acceptor)}"
        yield handlers, f"no handler serves for the {name_of(acceptor)}"


def _serves(memory: SharedMemory, role: int) -> bool:
    """Return whether the role has a process that is ready and has no order to stop."""
    return (
        memory.words("roles").load(role) != 0
        and memory.words("states").load(role) == State.READY
        and memory.words("orders").load(role) == Order.RUN
    )


def _state_of(memory: SharedMemory, number: int) -> int:
    return memory.listener_counts(number).get(ListenerCount.STATE)
