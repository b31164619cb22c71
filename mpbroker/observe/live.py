"""Takes samples of a running broker: its supervisor's report, shared memory, the kernel's data of processes.

Samples cost the data path nothing. Shared memory and the kernel are read even if the supervisor does not
answer.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.metrics import snapshot
from mpbroker.metrics.processes import ProcessLooker
from mpbroker.metrics.snapshot import Snapshot
from mpbroker.observe.samples import BrokerSeen, Health, PartitionSeen, ProcessSeen, Sample
from mpbroker.protocol.topic_names import METADATA_TOPIC
from shm.region import LayoutMismatch, Region, RegionUnavailable

SUPERVISOR_PATIENCE_S: Final = 2.0


class LiveBroker:
    """Takes samples of one run of a broker. `control` is the client of its supervisor."""

    def __init__(self, control: ControlClient) -> None:
        self.control = control
        control.timeout_seconds = SUPERVISOR_PATIENCE_S
        self._public: Region | None = None
        self._processes: tuple[ProcessSeen, ...] = ()
        self._looker = ProcessLooker()
        self._broker = BrokerSeen(Health.UNKNOWN)

    def sample(self) -> Sample:
        """Take a sample. Raises ControlError if the supervisor neither answers nor is known to be alive."""
        taken_ns = time.monotonic_ns()
        try:
            status = self.control.call("status")
        except ControlError as error:
            if self._public is None or not self._public.owner_is_alive():
                raise
            return self._sample(taken_ns, self._silent(str(error)), self._processes)
        self._broker = broker_of(status)
        self._processes = processes_of(status, self._looker)
        self._attach(self._broker.pid)
        return self._sample(taken_ns, self._broker, self._processes)

    def _silent(self, problem: str) -> BrokerSeen:
        known = self._broker
        return BrokerSeen(
            Health.SILENT,
            problem,
            known.pid,
            known.node_id,
            known.version,
            None,
            known.listeners,
            known.log_dirs,
        )

    def _sample(self, taken_ns: int, broker: BrokerSeen, processes: tuple[ProcessSeen, ...]) -> Sample:
        counts = snapshot.take(self._public) if self._public is not None else None
        return Sample(
            taken_ns, broker, processes, counts, partitions_of(counts) if counts is not None else ()
        )

    def _attach(self, pid: int | None) -> None:
        """Attach the public region of the supervisor `pid`, unless it is attached. Raises ControlError."""
        if self._public is not None and self._public.owner_pid == pid:
            return
        self._public = None
        self._public = attach(self.control.checked(PUBLIC_NAME))


def attach(path: Path) -> Region:
    """Attach the public region (counters, partition table) in a file. Raises ControlError."""
    try:
        return snapshot.attach(path)
    except RegionUnavailable as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ControlError(f"{path} cannot be read ({reason}): no broker runs, or another user's") from error
    except LayoutMismatch as error:
        raise ControlError(str(error)) from error


def broker_of(status: dict[str, Any]) -> BrokerSeen:
    """Return the broker as a whole, from its supervisor's status."""
    recovery = status.get("recovery") or []
    offline = int(status.get("offline_partitions", 0))
    notes = []
    if recovery:
        notes.append(_recovery_text(recovery))
    if offline:
        notes.append(f"{offline} partition(s) offline, see its log")
    problems = [] if recovery else status.get("problems", ())
    health = Health.RECOVERING if recovery else Health.NOT_READY if problems else Health.RUNNING
    return BrokerSeen(
        health=health,
        note="; ".join([*problems, *notes]),
        pid=status.get("pid"),
        node_id=status.get("node_id"),
        version=str(status.get("version", "")),
        up_s=status.get("up_s"),
        listeners=tuple(status.get("listeners", ())),
        log_dirs=tuple(one["log_dir"] for one in status.get("log_dirs", ())),
        connections=status.get("connections"),
        offline_partitions=offline,
    )


def _recovery_text(rows: list[dict[str, Any]]) -> str:
    done, left = (sum(int(row[name]) for row in rows) for name in ("partitions_done", "partitions_left"))
    return f"{done:,} of {done + left:,} partitions recovered"


def processes_of(status: dict[str, Any], looker: ProcessLooker) -> tuple[ProcessSeen, ...]:
    """Return the supervisor and the processes in its status, with the memory that the kernel counts."""
    pid = status.get("pid")
    rows = status.get("processes", ())
    usage = looker.look({one: one for one in (pid, *(row["pid"] for row in rows)) if one})
    own = usage.get(pid) if pid else None
    cpu_s, pss_bytes = (None, None) if own is None else (own.cpu_s, own.pss_bytes)
    found = [ProcessSeen("supervisor", pid, "running", 0, cpu_s, pss_bytes)]
    for row in rows:
        used = usage.get(row["pid"])
        is_running = row["state"] == "running"
        found.append(
            ProcessSeen(
                name=row["name"],
                pid=row["pid"] or None,
                state=row.get("status") or row["state"] if is_running else row["state"],
                restarts=row["restarts"],
                cpu_s=row.get("cpu_s"),
                pss_bytes=None if used is None else used.pss_bytes,
                heartbeat_age_ms=row.get("heartbeat_age_ms"),
                last_error=row.get("last_error", ""),
            )
        )
    return tuple(found)


def partitions_of(counts: Snapshot) -> tuple[PartitionSeen, ...]:
    """Return all partitions except the metadata topic's."""
    return tuple(
        PartitionSeen(
            one.topic,
            one.partition,
            one.log_start,
            one.log_end,
            one.high_watermark,
            one.sizes[1] if one.sizes is not None else None,
            one.sizes[0] if one.sizes is not None else None,
            one.high_watermark_at,
        )
        for one in counts.logs
        if one.topic != METADATA_TOPIC
    )
