"""A partition's directory: its segments, and the files derived from them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from mpbroker.inspection.findings import Finding, Severity, finding
from mpbroker.inspection.segment import Seen, Segment, inspect
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_epochs, read_topic_id
from mpbroker.storage.leader_epochs import Epochs
from mpbroker.storage.names import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    REMOTE_SEGMENTS,
    SNAPSHOT_SUFFIX,
    segment_name,
)
from mpbroker.storage.producer_state import Producers, SnapshotCorrupt
from mpbroker.storage.remote_segments import read_remote_segments
from mpbroker.storage.segments import offsets_of, segments_of
from mpbroker.storage.strict_stat import is_there


@dataclass
class Partition:
    """A partition and its findings.

    `durable`: the checkpoints say that records below this offset are on disk; None if no checkpoint names
    the partition.
    `log_start`: the checkpointed log start offset, by default 0.
    """

    path: Path
    topic: str
    partition: int
    durable: int | None = None
    log_start: int = 0
    topic_id: bytes | None = None
    segments: list[Segment] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def start_offset(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def end_offset(self) -> int:
        return self.segments[-1].next_offset if self.segments else 0

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def all_findings(self) -> list[Finding]:
        return [one for segment in self.segments for one in segment.findings] + self.findings


def segment_paths(directory: Path) -> list[Path]:
    return [directory / segment_name(base) for base in segments_of(directory)]


def log_bytes(partition: Partition) -> int:
    """Return the total size of the segments in bytes. Skip deleted files. Raises OSError."""
    total = 0
    with suppress(FileNotFoundError):
        for path in segment_paths(partition.path):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
    return total


def check(partition: Partition, seen: Seen | None = None) -> None:
    """Read the whole partition, and fill its segments and findings. `seen`: see `inspect`. Raises OSError."""
    try:
        # List snapshots first: those that a broker writes meanwhile are of later offsets.
        snapshots = offsets_of(partition.path, SNAPSHOT_SUFFIX)
        epochs = _read_epochs(partition)
        _read_segments(partition, seen, epochs)
    except FileNotFoundError:
        if is_there(partition.path):
            raise
        partition.segments = []
        partition.findings = [finding(Severity.NOTE, partition.path, "it was deleted meanwhile")]
        return
    if any(segment.old_at for segment in partition.segments):
        # The end of a log with old messages is not known.
        return
    _check_durable(partition)
    _check_snapshots(partition, snapshots)
    _check_epochs_of_batches(partition)
    _check_topic_id(partition)
    _check_remote(partition)


def _read_segments(partition: Partition, seen: Seen | None, epochs: Epochs) -> None:
    """Read the segments in order.

    A broker may delete some meanwhile: then list the directory again. Raises FileNotFoundError for a file
    that is listed again and still cannot be opened, such as a link to a missing disk.
    """
    paths = segment_paths(partition.path)
    missing: Path | None = None
    while paths:
        path = paths.pop(0)
        try:
            segment = inspect(path, is_last=not paths, seen=seen, epochs=epochs)
        except FileNotFoundError:
            if path == missing:
                raise
            missing = path
            paths = [one for one in segment_paths(partition.path) if one >= path]
            continue
        _follows(partition, segment)
        partition.segments.append(segment)


def _follows(partition: Partition, segment: Segment) -> None:
    before = partition.segments[-1] if partition.segments else None
    if before is not None and before.next_offset > segment.base:
        text = f"the segment before it ends at offset {before.next_offset - 1:,}"
        partition.findings.append(finding(Severity.DAMAGE, segment.path, text, offset=segment.base))


def _check_durable(partition: Partition) -> None:
    if partition.durable is not None and partition.end_offset < partition.durable:
        text = (
            f"it ends at offset {partition.end_offset:,}, but those below {partition.durable:,} were on disk"
        )
        partition.findings.append(finding(Severity.DAMAGE, partition.path, text, offset=partition.end_offset))


def _check_snapshots(partition: Partition, offsets: list[int]) -> None:
    for offset in offsets:
        path = partition.path / segment_name(offset, SNAPSHOT_SUFFIX)
        try:
            Producers().load(path.read_bytes())
        except FileNotFoundError:
            continue  # a running broker has deleted it: it keeps only few
        except SnapshotCorrupt as error:
            partition.findings.append(finding(Severity.DERIVED, path, str(error)))
        if offset > partition.end_offset:
            text = f"it is of offset {offset:,}, the log ends at {partition.end_offset:,}"
            partition.findings.append(finding(Severity.DERIVED, path, text))


def _read_epochs(partition: Partition) -> Epochs:
    path = partition.path / LEADER_EPOCHS
    try:
        epochs = read_epochs(partition.path)
    except CheckpointCorrupt as error:
        partition.findings.append(finding(Severity.DERIVED, path, str(error)))
        return ()
    for before, after in pairwise(epochs):
        if after[0] <= before[0] or after[1] < before[1]:
            text = f"epoch {after[0]} from offset {after[1]:,} is not after epoch {before[0]}"
            partition.findings.append(finding(Severity.DERIVED, path, text))
            return ()
    return epochs


def _check_epochs_of_batches(partition: Partition) -> None:
    """Report batches that contradict the checkpoint of leader epochs; if most do, report the checkpoint."""
    odd = sum(len(segment.odd_epochs) for segment in partition.segments)
    if 2 * odd > sum(segment.batches for segment in partition.segments):
        text = f"{odd:,} batches are of another leader epoch"
        partition.findings.append(finding(Severity.DERIVED, partition.path / LEADER_EPOCHS, text))
        for segment in partition.segments:
            segment.odd_epochs.clear()
    for segment in partition.segments:
        for position, offset, epoch in segment.odd_epochs:
            text = f"its leader epoch is not {epoch}, as in {LEADER_EPOCHS}"
            segment.findings.append(finding(Severity.DAMAGE, segment.path, text, position, offset))


def _check_topic_id(partition: Partition) -> None:
    path = partition.path / PARTITION_METADATA
    try:
        partition.topic_id = read_topic_id(partition.path)
    except CheckpointCorrupt as error:
        partition.findings.append(finding(Severity.DAMAGE, path, str(error)))
        return
    if partition.topic_id is None:
        partition.findings.append(finding(Severity.NOTE, path, "it is missing: the topic's id is not known"))


def _check_remote(partition: Partition) -> None:
    """Compare the log with what the object store has of it. The store's objects are not read."""
    path = partition.path / REMOTE_SEGMENTS
    try:
        remote = read_remote_segments(partition.path)
    except CheckpointCorrupt as error:
        partition.findings.append(finding(Severity.DERIVED, path, str(error)))
        return
    stored = max(remote.end, partition.log_start)
    if remote and partition.end_offset < remote.end:
        text = (
            f"the object store has offsets up to {remote.end - 1:,}, the log ends at {partition.end_offset:,}"
        )
        partition.findings.append(finding(Severity.DAMAGE, path, text, offset=partition.end_offset))
    elif remote and stored < partition.start_offset:
        text = (
            f"offsets {stored:,} to {partition.start_offset - 1:,} are neither in the object store nor here"
        )
        partition.findings.append(finding(Severity.DAMAGE, path, text, offset=stored))
