"""Finds out whether a metadata log is mpbroker's or Apache Kafka's. Changes nothing.

Kafka keeps topics in `__cluster_metadata-0`, too. Its controller begins with an election, and adds records
that a single broker does not have. This module reads only the types and versions of records; the coordinator
reads the records completely when it starts.
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
    """What the records of a metadata log show about its owner.

    `begins_at`: the first offset of the log; None if it has no segment.
    `is_ours`: the log begins with records of mpbroker, before any election.
    `has_elections`: Kafka's controller has held an election.
    `election`: the offset of the first election after the last clean stop, or None.
    `kafkas`: the offset of the first record that only Kafka's controller writes, or None.
    `unreadable`: the offset of the first record with an unknown version, and the problem, or None.
    """

    begins_at: int | None = None
    is_ours: bool = False
    has_elections: bool = False
    election: int | None = None
    kafkas: int | None = None
    unreadable: tuple[int, str] | None = None

    @property
    def is_kafkas(self) -> bool:
        """Return whether Kafka owns the log: Kafka has created it, or has used it after mpbroker.

        A log that does not begin at offset 0 is Kafka's: mpbroker keeps its metadata log from the start.
        """
        begins_in_snapshot = self.begins_at != 0
        is_used = self.kafkas is not None or self.election is not None
        return begins_in_snapshot or is_used or (self.has_elections and not self.is_ours)


def read_ownership(log_dir: Path) -> Ownership:
    """Read the metadata log of a log directory, up to the first record that only Kafka's controller writes.

    Reading also ends at an unreadable record and at the first batch that is not whole. Raises OSError.
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
    """Note in `found` what the records of a batch show. Return False if reading must end."""
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
    """Yield each batch, up to the first batch that is not whole. Raises OSError if a file cannot be read."""
    for base in bases:
        path = directory / names.segment_name(base)
        with path.open("rb") as file:
            try:
                yield from batches_of(file, os.fstat(file.fileno()).st_size)
            except CorruptBatch:
                return


def _clean_end(log_dir: Path) -> float:
    """Return the end offset of the metadata at the last clean stop; infinite if it is not known."""
    if not is_there(log_dir / names.CLEAN_SHUTDOWN):
        return float("inf")
    try:
        points = read_offsets(log_dir / names.RECOVERY_POINTS)
    except CheckpointCorrupt:
        return float("inf")
    return points.get((METADATA_TOPIC, 0), float("inf"))
