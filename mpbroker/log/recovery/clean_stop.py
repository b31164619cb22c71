"""A clean stop: write the last files of a log directory, then sync all partitions at once.

(Kafka: LogManager.shutdown, which syncs the files of each log one by one.) No file on disk may describe data
that is not on disk yet. So the stop is done in steps, with a sync of the file system
(`mpbroker.log.io.file_system`) after each:

1. The files of active segments are finished.
2. The producers' snapshots are written. A recovery trusts the indexes up to a snapshot.
3. Older snapshots are removed. Then the files that describe the directory are written: checkpoints, the empty
   journal, the clean mark.

If the power fails before the end, the mark is missing, and the checkpoints are the old ones. A file is
synced by itself if the file system cannot be synced as a whole, or if its partition is on another one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.partition.partition_log import PartitionLog

_log = logging.getLogger("mpbroker.log.recovery")


def close_cleanly(
    log_dir: LogDirectory, logs: Sequence[PartitionLog], say: Callable[[str], None]
) -> list[PartitionLog]:
    """Close the partitions; return those that are wholly on disk. If one is not, mark `log_dir` failed."""
    touched = [log for log in logs if not log.is_settled]
    untouched = _each(log_dir, [log for log in logs if log.is_settled], PartitionLog.close_files)
    say(f"closing {len(touched)} partitions in {log_dir.path}")
    together: list[PartitionLog] = []
    apart: list[PartitionLog] = []
    for log in touched:
        (together if _is_synced_with(log_dir, log) else apart).append(log)
    closed = untouched + _each(log_dir, apart, PartitionLog.close_cleanly)
    return closed + _closed_together(log_dir, together, say)


def is_all_closed(log_dir: LogDirectory, closed: AbstractSet[str]) -> bool:
    """Return whether the directory can be marked clean: all its partitions are in `closed` (paths)."""
    try:
        return closed >= {
            f"{log_dir.path}/{name}" for name, found in log_dir.own_partitions() if not found.suffix
        }
    except OSError as error:
        _log.error("%s cannot be marked clean, the next start checks it: %s", log_dir.path, error)
        return False


def _is_synced_with(log_dir: LogDirectory, log: PartitionLog) -> bool:
    """Return whether a sync of the directory's file system covers the partition."""
    if log_dir.file_system is None or not log_dir.file_system.is_synced_at_once:
        return False
    try:
        return log_dir.file_system.has(log.path)
    except OSError:
        # Closing the partition meets the same error and reports it.
        return False


def _closed_together(
    log_dir: LogDirectory, touched: list[PartitionLog], say: Callable[[str], None]
) -> list[PartitionLog]:
    for step in (PartitionLog.end_files, PartitionLog.write_last_snapshot, PartitionLog.note_settled):
        touched = _each(log_dir, touched, step)
        if touched and step is not PartitionLog.note_settled and not _synced(log_dir, say):
            return []
    return touched


def _each(
    log_dir: LogDirectory, logs: Sequence[PartitionLog], step: Callable[[PartitionLog], None]
) -> list[PartitionLog]:
    """Do `step` with each partition; return the partitions for which it succeeded."""
    done = []
    for log in logs:
        try:
            step(log)
            done.append(log)
        except OSError as error:
            _say_failed(log_dir, str(log.directory), error)
    return done


def _synced(log_dir: LogDirectory, say: Callable[[str], None]) -> bool:
    say(f"syncing the file system of {log_dir.path}")
    assert log_dir.file_system is not None
    try:
        log_dir.file_system.sync()
    except OSError as error:
        _say_failed(log_dir, f"the file system of {log_dir.path}", error)
        return False
    return True


def _say_failed(log_dir: LogDirectory, what: str, error: OSError) -> None:
    problem = os.strerror(error.errno) if error.errno else error
    _log.error("%s cannot be closed cleanly: %s; the next start recovers it", what, problem)
    log_dir.failed = True
