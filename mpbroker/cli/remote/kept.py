"""Finds what keeps each local segment of a tiered partition on the disk. Sans-I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from mpbroker.cli.text.sizes import binary_size
from mpbroker.client.times import format_time
from mpbroker.config.remote import AS_RETENTION
from mpbroker.protocol.printable import counted
from mpbroker.storage.remote_segments import RemoteSegments


class Segment(NamedTuple):
    """A local segment, and when it was last written."""

    base: int
    size: int
    written_ms: int


class Partition(NamedTuple):
    """The local segments by offset, of which the last is the active one; what the object store has."""

    segments: Sequence[Segment]
    last_stable_offset: int
    remote: RemoteSegments


class Tier(NamedTuple):
    """The tier's state, as its counters had it at a time of the wall clock."""

    is_fenced: bool
    down_since_ms: int | None
    status: str
    last_error: str
    now_ms: int


class Retention(NamedTuple):
    """Settings of the topic; limits are those of local retention, -1 for none."""

    is_tiered: bool
    is_copy_disabled: bool
    ms: int
    bytes: int

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Retention:
        def limit(unit: str) -> int:
            local = int(settings[f"local.retention.{unit}"])
            return int(settings[f"retention.{unit}"]) if local == AS_RETENTION else local

        is_tiered = settings["remote.storage.enable"] == "true"
        return cls(is_tiered, settings["remote.log.copy.disable"] == "true", limit("ms"), limit("bytes"))


class Kept(NamedTuple):
    """Local segments with offsets [start, end) that stay for one reason, and what to do about it."""

    start: int
    end: int
    segments: int
    bytes: int
    why: str
    do: str


class _Reason(NamedTuple):
    why: str
    do: str


def kept(partition: Partition, retention: Retention, tier: Tier) -> Iterator[Kept]:
    """Yield the reasons why local segments stay, one for neighbours that share it."""
    segments = partition.segments
    ends = [*(one.base for one in segments[1:]), max(partition.last_stable_offset, 0)]
    total = sum(one.size for one in segments)
    reasons, before = [], 0
    for one, end in zip(segments, ends, strict=True):
        is_active = one is segments[-1]
        before += one.size
        reasons.append((_reason(partition, one, end, is_active, total - before, retention, tier), one, end))
    for reason, grouped in groupby(reasons, key=lambda found: found[0]):
        some = list(grouped)
        first, last_end = some[0][1].base, max(some[-1][2], some[-1][1].base + 1)
        yield Kept(first, last_end, len(some), sum(one.size for _, one, _ in some), *reason)


def _reason(
    partition: Partition,
    segment: Segment,
    end: int,
    is_active: bool,
    size_after: int,
    retention: Retention,
    tier: Tier,
) -> _Reason:
    if not retention.is_tiered:
        return _Reason(
            "the topic is not tiered",
            "mpbroker topic alter with remote.storage.enable=true has its segments copied",
        )
    if is_active:
        return _Reason(
            "it is not sealed: it is the segment that is written now",
            "segment.bytes and segment.ms say when the next one begins",
        )
    if end > partition.remote.end:
        return _of_upload(partition, end, retention, tier)
    return _of_retention(partition, segment, size_after, retention, tier)


def _of_upload(partition: Partition, end: int, retention: Retention, tier: Tier) -> _Reason:
    """Return why a sealed segment is not in the object store."""
    if retention.is_copy_disabled:
        return _Reason("remote.log.copy.disable is true, so it is not copied", "set it to false")
    if end > partition.last_stable_offset:
        return _Reason(
            f"it has offsets above the last stable offset, {partition.last_stable_offset:,}: a transaction "
            "is open, or records are not durable yet",
            "mpbroker txn list shows open transactions",
        )
    waits = "it waits for its upload"
    if tier.is_fenced:
        return _Reason(f"{waits}, but the tier writes nothing: {tier.last_error}", "mpbroker remote status")
    if tier.down_since_ms is not None:
        down = format_time(tier.down_since_ms)
        return _Reason(
            f"{waits}: the object store fails since {down}: {tier.last_error}",
            "nothing is lost: uploads go on by themselves when it answers",
        )
    return _Reason(waits, f"the tier says: {tier.status}")


def _of_retention(
    partition: Partition, segment: Segment, size_after: int, retention: Retention, tier: Tier
) -> _Reason:
    """Return why a segment that the store has stays: local retention."""
    if retention.ms < 0 and retention.bytes < 0:
        return _Reason("it is uploaded, and local retention has no limit", "set local.retention.ms or .bytes")
    uploaded = partition.remote.find(segment.base)
    largest_ms = segment.written_ms if uploaded is None else uploaded.largest_ms
    is_old = 0 <= retention.ms < tier.now_ms - largest_ms
    is_beyond = 0 <= retention.bytes <= size_after
    if is_old or is_beyond:
        return _Reason(
            "it is uploaded, and local retention has passed",
            "the next check deletes it: log.retention.check.interval.ms",
        )
    limits = [
        text
        for text in (
            _duration(retention.ms) if retention.ms >= 0 else "",
            binary_size(retention.bytes) if retention.bytes >= 0 else "",
        )
        if text
    ]
    return _Reason(
        f"it is uploaded, and within local retention ({' or '.join(limits)})",
        "local.retention.ms and local.retention.bytes set that",
    )


def _duration(ms: int) -> str:
    """Return a time as settings have it, or in days or hours if it is that many."""
    for length, unit in ((86_400_000, "day"), (3_600_000, "hour")):
        if ms and ms % length == 0:
            return counted(ms // length, unit)
    return f"{ms:,} ms"
