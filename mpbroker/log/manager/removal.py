"""Removal of partition directories: of deleted topics, and of those that belong to no topic."""

from __future__ import annotations

import errno
import logging
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from mpbroker.log.append.turn import AppendTurn
from mpbroker.log.directories.delayed_deletions import DelayedDeletions
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.format import names
from mpbroker.log.format.checkpoints import topic_id_if_any
from mpbroker.log.format.partition_map import PartitionMap
from mpbroker.log.io.disk_errors import PASSING
from mpbroker.log.io.file_removal import remove_tree
from mpbroker.log.io.io_thread import IoThread
from mpbroker.log.io.strict_stat import is_directory
from mpbroker.log.partition.partition_log import PartitionLog

_log = logging.getLogger("mpbroker.log")


class Removal:
    """Files of partitions that are no longer served: renamed at once, deleted later (`deletions`).

    `logs`: the worker's partitions by slot, as its LogManager keeps them. What an earlier run renamed and did
    not delete is deleted now.
    """

    def __init__(
        self,
        dirs: Sequence[LogDirectory],
        logs: Mapping[int, PartitionLog],
        turn: AppendTurn,
        io_thread: IoThread,
    ) -> None:
        self._dirs = dirs
        self._logs = logs
        self._turn = turn
        self.deletions = DelayedDeletions(io_thread)
        self._queue_old_deletions()

    def remove(
        self, name: str, topic_id: bytes, delay_ms: int, numbers: set[int], unreadable: set[Path]
    ) -> None:
        """Rename a topic's directories and delete them after `delay_ms`.

        `numbers`: the known partition numbers of the topic; those found on disk are added. `unreadable`:
        directories that are the topic's even if their topic id cannot be read. Raises OSError if a log
        directory failed, after the others are done.
        """
        failure: OSError | None = None
        for log_dir in self._dirs:
            try:
                self._remove_from(log_dir, name, topic_id, delay_ms, numbers, unreadable)
            except OSError as error:
                # The other directories are cleared all the same.
                failure = error
                if error.errno not in PASSING:
                    self._turn.storage_failed(log_dir.number, error.errno or errno.EIO)
        if failure is not None:
            raise failure

    def _remove_from(
        self,
        log_dir: LogDirectory,
        name: str,
        topic_id: bytes,
        delay_ms: int,
        numbers: set[int],
        unreadable: set[Path],
    ) -> None:
        """Remove the topic's partitions from one log directory.

        `numbers`: the known partition numbers of the topic; those found here are added. Raises OSError if
        the directory cannot be read or changed.
        """
        for directory, number in log_dir.directories_of(name):
            holder = topic_id_if_any(directory)
            if holder == topic_id or (holder is None and directory in unreadable):
                gone = self._rename(directory, names.DELETE_SUFFIX)
                self.deletions.add(delay_ms, log_dir.number, partial(remove_tree, gone))
                numbers.add(number)
        for number in numbers:
            # The name may belong to another topic by now: then its offsets stay.
            if not is_directory(log_dir.path / names.partition_name(name, number)):
                log_dir.forget((name, number))

    def set_strays_aside(self, topics: dict[str, bytes]) -> None:
        """Rename partition directories that belong to no topic, and forget their checkpointed offsets.

        To be called when every existing topic has been ensured.
        """
        known: PartitionMap[str] = PartitionMap()
        for slot, log in self._logs.items():
            known[log.topic, log.partition] = slot
        for log_dir in self._dirs:
            unknown = [
                (log_dir.path / name, (parsed.topic, parsed.partition))
                for name, parsed in log_dir.own_partitions()
                if not parsed.suffix and (parsed.topic, parsed.partition) not in known
            ]
            for directory, key in unknown:
                holder = topic_id_if_any(directory)
                if key[0] not in topics or holder not in (None, topics[key[0]]):
                    self.set_aside(directory)
                    log_dir.forget(key)
            named = {key for offsets in log_dir.known.values() for key in offsets if key not in known}
            for key in named:
                if key[0] not in topics and not is_directory(log_dir.path / names.partition_name(*key)):
                    log_dir.forget(key)

    def set_aside(self, directory: Path) -> None:
        renamed = self._rename(directory, names.STRAY_SUFFIX)
        _log.warning("%s belongs to no topic; it is %s now", directory, renamed.name)

    def _rename(self, directory: Path, suffix: str) -> Path:
        parsed = names.parse_partition(directory.name)
        renamed = directory.with_name(names.renamed(parsed.topic, parsed.partition, uuid.uuid4().hex, suffix))
        return directory.rename(renamed)

    def _queue_old_deletions(self) -> None:
        for log_dir in self._dirs:
            for name, parsed in log_dir.own_partitions(names.DELETE_SUFFIX):
                self.deletions.add(0, log_dir.number, partial(remove_tree, log_dir.path / name))
                if not is_directory(log_dir.path / names.partition_name(parsed.topic, parsed.partition)):
                    # The last run ended before its checkpoints were written without this partition.
                    log_dir.forget((parsed.topic, parsed.partition))
