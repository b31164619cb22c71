"""A log directory: its partitions, their checkpointed offsets, and whether a broker has it open."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.inspection.findings import Finding, Severity, finding
from mpbroker.inspection.partition import Partition
from mpbroker.storage.checkpoints import CheckpointCorrupt, read_offsets
from mpbroker.storage.directory_layout import check_format, directories_in
from mpbroker.storage.directory_lock import is_in_use, lock_log_dirs
from mpbroker.storage.names import (
    CLEAN_SHUTDOWN,
    DURABLE_MARK,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    NotAPartition,
    parse_partition,
)
from mpbroker.storage.strict_stat import is_there


class NotALogDirectory(ValueError):
    """Raised for a path that is neither a log directory nor the directory of a partition."""


@dataclass
class InspectedDirectory:
    """A log or partition directory. `is_live`: a broker has it open. `is_clean`: the last stop was clean."""

    path: Path
    is_live: bool
    is_clean: bool
    partitions: list[Partition] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def open_directory(path: Path) -> InspectedDirectory:
    """Return the directory with its partitions, which are not read yet. Raises NotALogDirectory, OSError."""
    if not is_there(path / META_PROPERTIES):
        return _single_partition(path)
    directory = InspectedDirectory(path, is_in_use(path), is_there(path / CLEAN_SHUTDOWN))
    offsets = {name: _checkpoint(directory, name) for name in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS)}
    durable = dict(offsets[RECOVERY_POINTS])
    if is_there(path / DURABLE_MARK):
        for key, offset in offsets[HIGH_WATERMARKS].items():
            durable[key] = max(durable.get(key, 0), offset)
    starts = offsets[LOG_STARTS]
    for entry in sorted(path / name for name in directories_in(path)):
        try:
            name = parse_partition(entry.name)
        except NotAPartition:
            directory.findings.append(finding(Severity.NOTE, entry, "it is not the directory of a partition"))
            continue
        if name.suffix:
            directory.findings.append(finding(Severity.NOTE, entry, "it is set aside and not served"))
            continue
        key = (name.topic, name.partition)
        directory.partitions.append(Partition(entry, *key, durable.get(key), starts.get(key, 0)))
    directory.partitions.sort(key=lambda partition: (partition.topic, partition.partition))
    return directory


def _single_partition(path: Path) -> InspectedDirectory:
    if not path.is_dir():
        raise NotALogDirectory(f"{path} is {'no directory' if is_there(path) else 'not there'}")
    try:
        name = parse_partition(path.name)
    except NotAPartition as error:
        raise NotALogDirectory(
            f"{path} has no {META_PROPERTIES} and is not the directory of a partition (<topic>-<number>)"
        ) from error
    is_live = is_there(path.parent / META_PROPERTIES) and is_in_use(path.parent)
    partition = Partition(path, name.topic, name.partition)
    return InspectedDirectory(path, is_live, is_clean=False, partitions=[partition])


def _checkpoint(directory: InspectedDirectory, name: str) -> Mapping[tuple[str, int], int]:
    try:
        return read_offsets(directory.path / name)
    except CheckpointCorrupt as error:
        directory.findings.append(finding(Severity.DERIVED, directory.path / name, str(error)))
        return {}


@contextmanager
def locked(directories: Sequence[Path]) -> Iterator[None]:
    """Hold the locks of log directories, so that no broker starts on them. Raises FatalError, OSError."""
    for one in directories:
        check_format(one)
    fds = lock_log_dirs(BrokerConfig(log_dirs=tuple(map(str, directories))))
    try:
        yield
    finally:
        for fd in fds:
            os.close(fd)


def check_against_each_other(directories: Iterable[InspectedDirectory]) -> list[Finding]:
    """Return a finding for each partition that two directories have. No broker starts on such directories."""
    homes: dict[tuple[str, int], Path] = {}
    found = []
    for directory in directories:
        for partition in directory.partitions:
            key = (partition.topic, partition.partition)
            other = homes.setdefault(key, partition.path)
            if other != partition.path:
                text = f"the partition is in {other}, too; keep the one that is whole and move the other away"
                found.append(finding(Severity.DAMAGE, partition.path, text))
    return found
