"""A move's future replica: the partition's new directory until it replaces the current replica.

(Kafka: UnifiedLog.logFutureDirName, LogManager.replaceCurrentWithFutureLog; KIP-113.) The steps, each safe
against a crash of the process or of the machine:

1. `<topic>-<partition>.<uuid>-future` is made in the target directory. A restart continues the copy into it.
2. It has all records of the current replica, on disk, and the target's checkpoints have the partition. No
   append follows before step 4. It gets a mark, the file `mpbroker.moved`.
3. It loses its suffix, and the target directory is synced. From here on it is the partition's replica.
4. The replica in the old directory becomes `...-delete`, and the old directory is synced.
5. The mark is removed.

A start that finds the partition in two log directories uses the marked replica. Step 4 was not reached, so
neither replica has later appends. (Kafka does not start then.) In a single replica a mark has no meaning, and
is removed before the partition moves again.

If step 3 fails between rename and sync, the content of the target's disk is unknown. Then the current replica
gets a mark, the file `mpbroker.stayed`, and is used by any later start.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.storage import names
from mpbroker.storage.checkpoints import fsync_directory, opened, topic_id_if_any, write_topic_id, write_whole
from mpbroker.storage.strict_stat import is_there

_log = logging.getLogger("mpbroker.log")


def new_name(topic: str, partition: int) -> str:
    """Return the name of a new future replica. With a long topic name it exceeds NAME_MAX (KAFKA-4893)."""
    return f"{names.partition_name(topic, partition)}.{uuid.uuid4().hex}{names.FUTURE_SUFFIX}"


def make(directory: Path, topic_id: bytes) -> None:
    """Make the future replica's directory (step 1). Raises OSError."""
    directory.mkdir()
    write_topic_id(directory, topic_id)
    fsync_directory(directory.parent)


def place(future: Path, current: Path) -> None:
    """Rename the future replica to the partition's name (step 3). Raises OSError."""
    _rename(future, current)


def set_aside(directory: Path) -> Path:
    """Rename an old (step 4) or abandoned replica to `...-delete`; return its new path. Raises OSError."""
    parsed = names.parse_partition(directory.name)
    renamed = names.renamed(parsed.topic, parsed.partition, uuid.uuid4().hex, names.DELETE_SUFFIX)
    return _rename(directory, directory.with_name(renamed))


def _rename(directory: Path, to: Path) -> Path:
    """Rename a directory durably; return its new path. Raises OSError."""
    with opened(to.parent, os.O_DIRECTORY) as fd:
        directory.rename(to)
        os.fsync(fd)
    return to


def stay(current: Path) -> None:
    """Mark the current replica as the one that any later start uses. Raises OSError."""
    write_whole(current / names.STAYED, b"")


def has_stayed(current: Path) -> bool:
    """Return whether `stay` has marked the replica. Raises OSError."""
    return is_there(current / names.STAYED)


def unmark(directory: Path) -> None:
    """Remove the files `mpbroker.moved` (step 5) and `mpbroker.stayed` from a replica. Raises OSError."""
    marks = [path for path in (directory / names.MOVED, directory / names.STAYED) if is_there(path)]
    for path in marks:
        path.unlink()
    if marks:
        fsync_directory(directory)


def settle(log_dirs: Sequence[LogDirectory]) -> None:
    """Keep one replica of each partition that a crash left in two log directories. Raises OSError."""
    found: dict[str, list[Path]] = {}
    if len(log_dirs) == 1:
        return
    for log_dir in log_dirs:
        for name in _names_in(log_dir):
            found.setdefault(name, []).append(log_dir.path / name)
    for paths in found.values():
        if len(paths) == 2 and _is_own(log_dirs[0], paths):
            _settle(paths)


def _names_in(log_dir: LogDirectory) -> list[str]:
    return [] if log_dir.failed else os.listdir(log_dir.path)  # noqa: PTH208 - thousands, and only their names


def _is_own(log_dir: LogDirectory, paths: list[Path]) -> bool:
    """Return whether the directories belong to a partition of this log worker."""
    try:
        parsed = names.parse_partition(paths[0].name)
    except names.NotAPartition:
        return False
    return not parsed.suffix and log_dir.worker.owns(parsed.topic, parsed.partition)


def _settle(paths: list[Path]) -> None:
    marked = [path for path in paths if has_stayed(path)] or [p for p in paths if is_there(p / names.MOVED)]
    holders = {topic_id_if_any(path) for path in paths}
    if len(marked) != 1 or len(holders) != 1 or holders == {None}:
        return
    for path in paths:
        if path not in marked:
            renamed = set_aside(path)
            _log.warning("using %s; duplicate %s renamed to %s", marked[0], path, renamed.name)
    unmark(marked[0])


def futures_in(log_dirs: Sequence[LogDirectory]) -> Iterator[tuple[LogDirectory, Path, names.PartitionName]]:
    """Yield (log directory, path, parsed name) of each future replica of this log worker."""
    for log_dir in log_dirs:
        for name in _names_in(log_dir):
            if not name.endswith(names.FUTURE_SUFFIX):
                continue
            try:
                parsed = names.parse_partition(name)
            except names.NotAPartition:
                # Reported already, and left alone.
                continue
            if log_dir.worker.owns(parsed.topic, parsed.partition):
                yield log_dir, log_dir.path / name, parsed
