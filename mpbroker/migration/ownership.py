"""Finds out whose a metadata log is: mpbroker's or Apache Kafka's. Changes nothing.

Kafka keeps topics in `__cluster_metadata-0` too; its controller begins with an election, and adds records
that a single broker does not have. This module reads only the types of the records: the coordinator reads
them whole when it starts, and the log worker recovers the log after a crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mpbroker.coordinator.metadata.metadata_records import (
    UnreadableMetadata,
    check_version,
    is_known,
    kind_of,
)
from mpbroker.protocol.topic_names import METADATA_TOPIC
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch
from mpbroker.storage import names
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_offsets
from mpbroker.storage.segments import batches_of, segments_of
from mpbroker.storage.strict_stat import is_there


@dataclass
class Ownership:
    """The owner of a metadata log, by its records.

    `begins_at`: the offset where the log begins; None if it has no segment. `is_ours`: mpbroker's records
    come before any of Kafka's controller. `has_elections`: the log has elections of Kafka's controller.
    `election`: where the first election after the last clean stop is. `kafkas`: the offset of the first
    record that only Kafka's controller writes. `unreadable`: the offset of the first record of an unknown
    version, and why it is unknown.
    """

    begins_at: int | None = None
    is_ours: bool = False
    has_elections: bool = False
    election: int | None = None
    kafkas: int | None = None
    unreadable: tuple[int, str] | None = None

    @property
    def is_kafkas(self) -> bool:
        """Return whether Kafka owns the log, by its beginning or because it was the last to use it.

        Records before a log's beginning are in a snapshot, which mpbroker never makes.
        """
        begins_in_snapshot = self.begins_at != 0
        is_used = self.kafkas is not None or self.election is not None
        return begins_in_snapshot or is_used or (self.has_elections and not self.is_ours)


def read_ownership(log_dir: Path) -> Ownership:
    """Read the metadata of a log directory up to the first record that shows which broker wrote them.

    Ends at the first batch that is not whole. Raises OSError.
    """
    directory = log_dir / names.METADATA_DIRECTORY
    bases = segments_of(directory)
    found = Ownership(bases[0] if bases else None, has_elections=is_there(directory / names.QUORUM_STATE))
    if found.begins_at != 0:
        return found
    clean_end = _clean_end(log_dir)
    next_offset = 0
    for batch in _batches(directory, bases):
        if batch.header.base_offset != next_offset:
            break
        next_offset = batch.last_offset + 1
        if batch.is_control:
            found.has_elections = True
            if found.election is None and batch.header.base_offset >= clean_end:
                found.election = batch.header.base_offset
            continue
        if not _judge(batch, found):
            break
        found.is_ours = found.is_ours or batch.header.base_offset == 0
    return found


def _judge(batch: Batch, found: Ownership) -> bool:
    """Judge the records of a batch. Return whether to continue."""
    try:
        records = batch.records()
    except CorruptBatch:
        return False
    for record in records:
        value = record.value or b""
        try:
            if found.has_elections and not is_known(kind_of(value)):
                found.kafkas = record.offset
                return False
            check_version(value)
        except UnreadableMetadata as error:
            found.unreadable = record.offset, str(error)
            return False
    return True


def _batches(directory: Path, bases: list[int]) -> Iterator[Batch]:
    """Yield each batch, up to the first that is not whole. Raises OSError if a file cannot be read."""
    for base in bases:
        path = directory / names.segment_name(base)
        with path.open("rb") as file:
            try:
                yield from batches_of(file, os.fstat(file.fileno()).st_size)
            except CorruptBatch:
                return


def _clean_end(log_dir: Path) -> float:
    """Return the end of the metadata at the last clean stop; infinite if there was none or it is unknown."""
    if not is_there(log_dir / names.CLEAN_SHUTDOWN):
        return float("inf")
    try:
        points = read_offsets(log_dir / names.RECOVERY_POINTS)
    except CheckpointCorrupt:
        return float("inf")
    return points.get((METADATA_TOPIC, 0), float("inf"))
