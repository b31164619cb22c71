"""Reads `__cluster_metadata-0` of a stopped node: its latest snapshot, and the log after it.

A snapshot `<offset>-<epoch>.checkpoint` has the outcome of all records below its offset. The files are not
changed. (Kafka: KafkaRaftLog, Snapshots, MetadataLoader; KIP-630 for snapshots, KIP-868 for transactions.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mpbroker.migration.cluster_image import ClusterImage, ClusterRecord
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.kraft_snapshot import ControlRecord, control_key
from mpbroker.migration.snapshot_files import snapshots_of
from mpbroker.protocol.metadata_records import read_frame
from mpbroker.protocol.wire import Buffer, MalformedMessage
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch
from mpbroker.storage.names import LOG_SUFFIX, QUORUM_STATE, segment_name
from mpbroker.storage.segments import batches_of, segments_of
from mpbroker.storage.strict_stat import is_there


def read_image(directory: Path, *, is_log_whole: bool = False) -> ClusterImage:
    """Return the metadata at the end of the log.

    `is_log_whole`: the log has all records, like mpbroker's log; ignore snapshots, which may be out of date.
    Raises CannotMove if the metadata cannot be read or understood, or are incomplete, as in an interrupted
    copy. Raises OSError.
    """
    reading = _Reading()
    snapshots = [] if is_log_whole else snapshots_of(directory)
    if snapshots:
        _read_snapshot(directory / snapshots[-1].file_name, reading)
        reading.image.next_offset, reading.image.epoch = snapshots[-1]
    if not segments_of(directory):
        raise CannotMove(f"{directory} has no segment (*{LOG_SUFFIX}): {_RESTORE}")
    for batch in _log_batches(directory, reading.image.next_offset):
        base, expected = batch.header.base_offset, reading.image.next_offset
        if base != expected:
            raise CannotMove(f"{directory} has no records from offset {expected} to {base}: {_RESTORE}")
        reading.take(directory, batch)
        reading.image.next_offset = batch.last_offset + 1
        reading.image.epoch = batch.header.leader_epoch
    if not reading.has_records:
        raise CannotMove(f"{directory} has no records: {_RESTORE}")
    return reading.image


def _read_snapshot(path: Path, reading: _Reading) -> None:
    """Apply a snapshot. Raises CannotMove if it is damaged or its last record is no footer; OSError."""
    last = None
    for batch in _batches(path):
        reading.take(path, batch)
        last = batch
    if last is None or not _is_footer(last):
        raise CannotMove(f"the snapshot {path} has no end: {_RESTORE}")


def _is_footer(batch: Batch) -> bool:
    try:
        keys = [record.key for record in batch.records()] if batch.is_control else []
    except CorruptBatch:
        return False
    return bool(keys) and bytes(keys[-1] or b"") == control_key(ControlRecord.SNAPSHOT_FOOTER)


def quorum_leader(directory: Path) -> int | None:
    """Return the node id of the leader in the file `quorum-state`, None if the file names no leader.

    Raises CannotMove, OSError.
    """
    path = directory / QUORUM_STATE
    if not is_there(path):
        return None
    try:
        leader = msgspec.json.decode(path.read_bytes(), type=_QuorumState).leader_id
    except msgspec.DecodeError as error:
        raise CannotMove(f"{path} is not a state of a quorum: {error}. {_RESTORE.capitalize()}") from error
    return None if leader < 0 else leader


class _QuorumState(msgspec.Struct, rename="camel"):
    """The fields of the file `quorum-state` that an import needs (Kafka: QuorumStateData)."""

    leader_id: int = -1


_RESTORE = "restore it from a copy"


class _Reading:
    """Applies batches to an image; records of a transaction wait for its end (KIP-868)."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.has_records = False
        self._pending: list[bytes] | None = None

    def take(self, where: Path, batch: Batch) -> None:
        """Apply a batch, which was read from `where`. Raises CannotMove if a record is damaged or invalid."""
        if batch.is_control:
            return
        self.has_records = True
        try:
            for record in batch.records():
                self._take_record(record.value or b"")
        except (CorruptBatch, MalformedMessage, KeyError, IndexError) as error:
            raise CannotMove(
                f"{where}: the records from offset {batch.header.base_offset} on cannot be read: {error}. "
                f"A later version may have written them; if they are damaged, {_RESTORE}"
            ) from error

    def _take_record(self, value: Buffer) -> None:
        kind = read_frame(value)[0]
        if kind == ClusterRecord.BEGIN_TRANSACTION:
            self._pending = []
        elif kind == ClusterRecord.ABORT_TRANSACTION:
            self._pending = None
        elif kind == ClusterRecord.END_TRANSACTION:
            pending, self._pending = self._pending or [], None
            for one in pending:
                self.image.apply(one)
        elif self._pending is not None:
            self._pending.append(bytes(value))
        else:
            self.image.apply(value)


def _log_batches(directory: Path, start: int) -> Iterator[Batch]:
    """Yield the log's batches whose base offset is at least `start`. Raises CannotMove, OSError."""
    bases = segments_of(directory)
    for number, base in enumerate(bases):
        if number + 1 < len(bases) and bases[number + 1] <= start:
            continue
        for batch in _batches(directory / segment_name(base)):
            if batch.header.base_offset >= start:
                yield batch


def _batches(path: Path) -> Iterator[Batch]:
    """Yield a file's batches. Raises CannotMove if the file is damaged, OSError."""
    try:
        with path.open("rb") as file:
            yield from batches_of(file, os.fstat(file.fileno()).st_size)
    except CorruptBatch as error:
        raise CannotMove(f"{path} is damaged at byte {error.position}: {error.reason}. {_RESTORE}") from error
