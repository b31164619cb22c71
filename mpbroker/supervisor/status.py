"""The report of `mpbroker ctl status`, read from shared memory without work for other processes."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.version import VERSION
from mpbroker.ipc import health, topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.disk_problems import state_of
from mpbroker.ipc.mirror import follows
from mpbroker.ipc.partition_counts import count_partitions
from mpbroker.ipc.topology import SharedMemory
from mpbroker.supervisor import progress as recovery
from mpbroker.supervisor.child import Child
from mpbroker.supervisor.scrubbing import progress
from shm import procfs
from shm.region import process_start_ticks

# In the environment of a broker that was a standby: when it became one, by CLOCK_BOOTTIME in seconds.
BECAME: Final = "_MPBROKER_BECAME"


def status(
    config: BrokerConfig,
    memory: SharedMemory,
    children: list[Child],
    listeners: list[dict[str, Any]],
    *,
    cluster_id: str,
    http: str,
) -> dict[str, Any]:
    """Return the state of the broker and of each process. Names end in the unit (_s, _ms, _bytes).

    `standby` is there, and true, if the broker follows another one.
    """
    pages = {child.role: memory.counters(child.role) for child in children}

    def total(counter: Counter) -> int:
        return sum(page.get(counter) for page in pages.values())

    partitions = count_partitions(memory.table(), total(Counter.COUNT_PARTITIONS_WAITING))

    return {
        "version": VERSION,
        "pid": os.getpid(),
        "up_s": round(up_s(), 1),
        "cluster_id": cluster_id,
        "node_id": config.node_id,
        **standby(config),
        "listeners": [one["listener"] for one in listeners],
        "advertised": [one["advertised"] for one in listeners],
        "http": http or None,
        "log_dirs": [
            {
                "log_dir": one.name,
                "state": state_of(one),
                "partitions": partitions.live.get(number, 0),
                "size_bytes": one.size_bytes,
                "total_bytes": one.total_bytes,
                "usable_bytes": one.usable_bytes,
            }
            for number, one in memory.dir_sizes().all().items()
        ],
        "flush_policy": config.log_flush_policy,
        "runtime_dir": str(memory.public_path.parent),
        "connections": total(Counter.COUNT_CONNECTIONS_CREATED) - total(Counter.COUNT_CONNECTIONS_CLOSED),
        "requests": sum(pages[r].get(Counter.COUNT_REQUESTS) for r in pages if topology.is_processor(r)),
        "records_appended": total(Counter.COUNT_RECORDS_APPENDED),
        "bytes_appended": total(Counter.COUNT_BYTES_APPENDED),
        "restarts": memory.counters(topology.SUPERVISOR).get(Counter.COUNT_RESTARTS),
        "offline_partitions": partitions.offline,
        "problems": health.reasons_not_ready(config, memory),
        "recovery": recovery.rows(config, memory),
        "scrub": progress(memory),
        "processes": [_process(child, memory) for child in children],
    }


def standby(config: BrokerConfig) -> dict[str, bool]:
    """Return `standby`, true, if the broker is a standby's face; else nothing."""
    return {"standby": True} if follows(config) else {}


def up_s() -> float:
    """Return the age of this process, the supervisor, in seconds, with a precision of 10 ms.

    The age includes the start of Python, and a shell that ran in this process before it called exec(2). It
    does not include the time for which the process was a standby.
    """
    ticks_s = process_start_ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")
    started_s = float(os.environ.get(BECAME, ticks_s))
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def _process(child: Child, memory: SharedMemory) -> dict[str, Any]:
    page = memory.counters(child.role)
    shown: dict[str, Any] = {
        "name": child.name,
        "pid": child.pid,
        "incarnation": child.incarnation,
        "restarts": child.restarts.deaths,
        "up_s": round(time.monotonic() - child.started, 1) if child.pid else 0,
        "state": "running" if child.pid else "down",
        "status": page.status,
        "last_error": page.last_error,
        "turns": page.turns,
        "heartbeat_age_ms": max(0, (time.monotonic_ns() - page.heartbeat_ns) // 1_000_000)
        if page.heartbeat_ns
        else None,
    }
    try:
        if child.pid:
            found = procfs.process(child.pid)
            shown["cpu_s"] = round(found.cpu_ticks / procfs.TICKS_PER_S, 2)
            shown["rss_bytes"] = found.resident_bytes
    except OSError:  # the process died meanwhile
        shown["state"] = "down"
    return shown
