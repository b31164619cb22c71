"""Refusal of log directories whose metadata are not mpbroker's, before a start changes anything in them.

Apache Kafka keeps topics in `__cluster_metadata-0` too; its controller begins with an election, and adds
records that a single broker does not have. This module looks only at the types of the records: the
coordinator reads them whole when it starts, and the log worker judges what a crash has left.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mpbroker.coordinator.metadata.durable import batches_of
from mpbroker.coordinator.metadata.metadata_records import (
    UnreadableMetadata,
    check_version,
    is_known,
    kind_of,
)
from mpbroker.ipc.process import FatalError
from mpbroker.log.directories.directory_layout import directories_in
from mpbroker.log.format import names
from mpbroker.log.format.checkpoints import CheckpointCorrupt, read_offsets
from mpbroker.log.io.strict_stat import is_there
from mpbroker.log.partition.partition_log import segments_of
from mpbroker.protocol.topic_names import METADATA_TOPIC
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch

METADATA_DIRECTORY: Final = names.partition_name(METADATA_TOPIC, 0)
QUORUM_STATE: Final = "quorum-state"
"""The file in which Kafka's controller keeps its vote (Kafka: FileQuorumStateStore)."""
OWN_PREFIX: Final = "mpbroker."
"""The prefix of all files that mpbroker alone has in a log directory."""


@dataclass
class _Contents:
    """A summary of a metadata log's records, which tells its owner.

    `is_ours`: mpbroker's records come before any of Kafka's controller. `has_elections`: the log has
    elections of Kafka's controller. `election`: where the first election after the last clean stop is.
    `kafkas`: the offset of the first record that only Kafka's controller writes. `unreadable`: the offset of
    the first record of an unknown version, and why it is unknown.
    """

    is_ours: bool = False
    has_elections: bool = False
    election: int | None = None
    kafkas: int | None = None
    unreadable: tuple[int, str] | None = None


def refuse_foreign_metadata(log_dirs: Sequence[str]) -> None:
    """Check the metadata in these log directories, if any. Changes nothing. Raises FatalError."""
    paths = [Path(name) for name in log_dirs]
    try:
        with_metadata = [path for path in paths if (path / METADATA_DIRECTORY).is_dir()]
        for path in with_metadata:
            _refuse_records(path, paths)
        if not with_metadata:
            _refuse_partitions(paths)
    except OSError as error:
        raise FatalError(f"log.dirs: the metadata cannot be read: {error}. Repair or restore it") from error


def _refuse_records(log_dir: Path, all_dirs: Sequence[Path]) -> None:
    """Check the records of a directory's metadata. Raises FatalError, OSError."""
    directory = log_dir / METADATA_DIRECTORY
    command = shlex.join(["mpbroker", "import", *map(str, all_dirs)])
    advice = f"Go on with Kafka there; or stop it in order and take everything over with: {command}"
    bases = segments_of(directory)
    if bases and bases[0] > 0:
        raise _refusal(
            f"{log_dir} belongs to Apache Kafka: {directory} begins at offset {bases[0]}, and what was "
            f"before is in a snapshot. {advice}"
        )
    found = _read(directory, _clean_end(log_dir))
    if found.kafkas is not None:
        whose = "Apache Kafka has used {} since mpbroker" if found.is_ours else "{} belongs to Apache Kafka"
        raise _refusal(
            f"{whose.format(log_dir)}: its controller wrote the record at offset {found.kafkas} of "
            f"{directory}. {advice}"
        )
    if found.unreadable is not None:
        offset, why = found.unreadable
        raise _refusal(
            f"the record at offset {offset} of {directory} cannot be read: {why}. A later version of "
            f"mpbroker wrote it, or it is damaged: start that version, or restore {directory} from a copy"
        )
    if found.election is not None:
        raise _refusal(
            f"Apache Kafka was started on {log_dir} since mpbroker: its controller has written to "
            f"{directory} at offset {found.election}. {advice}"
        )


def _read(directory: Path, clean_end: float) -> _Contents:
    """Read up to the first record that tells whose it is, or to the first batch that is not whole.

    Raises OSError.
    """
    found = _Contents(has_elections=is_there(directory / QUORUM_STATE))
    next_offset = 0
    for batch in _batches(directory):
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


def _judge(batch: Batch, found: _Contents) -> bool:
    """Look at the records of a batch. Return whether to look on."""
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


def _batches(directory: Path) -> Iterator[Batch]:
    """Yield each batch, up to the first that is not whole. Raises OSError if a file cannot be read."""
    for base in segments_of(directory):
        path = directory / names.segment_name(base)
        with path.open("rb") as file:
            try:
                yield from batches_of(path, file, os.fstat(file.fileno()).st_size)
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


def _refuse_partitions(paths: Sequence[Path]) -> None:
    """Refuse partitions without metadata: a start would set all of them aside. Raises FatalError, OSError."""
    here = [path for path in paths if is_there(path / names.META_PROPERTIES)]
    if any(entry.name.startswith(OWN_PREFIX) for path in here for entry in path.iterdir()):
        return
    for path in here:
        if (name := next(filter(names.is_live_partition, directories_in(path)), None)) is not None:
            raise _refusal(
                f"{path} has partitions ({name}), but none of log.dirs has {METADATA_DIRECTORY} or another "
                "file of mpbroker's: it is one of several log directories of an Apache Kafka, or of an "
                "mpbroker whose others are not named. Name all that belong together, or "
                "an empty directory"
            )


def _refusal(why: str) -> FatalError:
    return FatalError(f"log.dirs: {why}. Nothing in the directory was changed")
