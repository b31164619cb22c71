"""Samples of a broker at one moment: its health, processes, partitions, groups and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mpbroker.client.group_descriptions import Group
from mpbroker.metrics.snapshot import Snapshot
from mpbroker.protocol.topic_names import TopicPartition


class Health(StrEnum):
    """The health of a broker, as it is seen from outside."""

    RUNNING = "running"
    RECOVERING = "recovering"
    NOT_READY = "not ready"
    SILENT = "supervisor does not answer"
    STOPPED = "not running"
    UNKNOWN = "cannot be reached"


@dataclass(frozen=True)
class BrokerSeen:
    """A broker as a whole. `pid`: the supervisor's, None if no broker runs. `note`: the problems."""

    health: Health
    note: str = ""
    pid: int | None = None
    node_id: int | None = None
    version: str = ""
    up_s: float | None = None
    listeners: tuple[str, ...] = ()
    log_dirs: tuple[str, ...] = ()
    connections: int | None = None
    offline_partitions: int = 0


@dataclass(frozen=True)
class ProcessSeen:
    """A process of the broker. `cpu_s`: its CPU time since its start. None means unknown."""

    name: str
    pid: int | None
    state: str
    restarts: int
    cpu_s: float | None = None
    pss_bytes: int | None = None
    heartbeat_age_ms: float | None = None
    last_error: str = ""


@dataclass(frozen=True)
class PartitionSeen:
    """A partition. Size and number of segments are None until they have been counted.

    `high_watermark_at`: (base offset of the segment with the high watermark, position in bytes in this
    segment); None if the broker does not run.
    """

    topic: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    size_bytes: int | None = None
    segments: int | None = None
    high_watermark_at: tuple[int, int] | None = None


@dataclass(frozen=True)
class GroupSeen:
    """A group, its committed offsets, and the partitions of its members; `members` is None if unknown.

    `described`: its members and epochs, as far as known.
    """

    group: str
    state: str
    members: int | None
    committed: Mapping[TopicPartition, int]
    assigned: frozenset[TopicPartition] = frozenset()
    type: str = ""
    described: Group | None = None

    @property
    def places(self) -> list[TopicPartition]:
        """Return the group's partitions, with or without a committed offset, sorted."""
        return sorted({*self.committed, *self.assigned})


@dataclass(frozen=True)
class Groups:
    """All groups at one moment. `problem`: why they are not known. `taken_ns`: CLOCK_MONOTONIC."""

    taken_ns: int
    groups: tuple[GroupSeen, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Sample:
    """A sample of a broker. `taken_ns`: CLOCK_MONOTONIC; `counts`: None without shared memory."""

    taken_ns: int
    broker: BrokerSeen
    processes: tuple[ProcessSeen, ...] = ()
    counts: Snapshot | None = None
    partitions: tuple[PartitionSeen, ...] = ()
