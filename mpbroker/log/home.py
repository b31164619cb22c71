"""One entry of log.dirs in the log process: whether it works, and its checkpoints.

(Kafka: OffsetCheckpointFile, LogManager.) A checkpoint keeps the offsets of every partition that it has
named: what is not open, not yet or because it is damaged, stands in it with what was known of it. Only
`forget` takes one out, when the partition's files go: without its offsets a damaged partition would be cut at
the next start as if nothing of it had been durable, and with those of a deleted one a new topic of its name
would miss what it never had.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from mpbroker.log import names
from mpbroker.log.checkpoints import (
    CheckpointCorrupt,
    TopicPartition,
    fsync_directory,
    read_offsets,
    write_offsets,
    write_whole,
)
from mpbroker.log.helper import Helper
from mpbroker.log.log_dir import take_clean_shutdown
from mpbroker.log.names import NotAPartition, PartitionName, parse_partition

CHECKPOINTS = (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS)
_log = logging.getLogger("mpbroker")


def _read_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """What cannot be read is as if it were not there: recovery then looks at more than it had to."""
    try:
        return read_offsets(path)
    except (CheckpointCorrupt, OSError) as error:
        _log.warning("%s is ignored: %s", path, error)
        return {}


class LogDir:
    """`known` is what the next checkpoints say, `on_disk` what the files say as far as it is certain.

    A directory that `failed` before this process began is not touched at all.
    """

    def __init__(self, number: int, path: Path, *, group: bool, failed: bool) -> None:
        self.number = number
        self.path = path
        self.failed = failed
        self.clean = not failed and take_clean_shutdown(path)
        self.known: dict[str, dict[TopicPartition, int]] = {
            name: {} if failed else _read_checkpoint(path / name) for name in CHECKPOINTS
        }
        self.on_disk: dict[str, Mapping[TopicPartition, int]] = {
            name: dict(offsets) for name, offsets in self.known.items()
        }
        # Partitions were forgotten since the checkpoints were written.
        self.is_stale = False
        self._group = group
        self._submitted: dict[str, dict[TopicPartition, int]] = {}
        self._strangers: set[str] = set()
        if not failed:
            self._heed_policy()

    def _heed_policy(self) -> None:
        """High watermarks that were written without group commit, by us or by Kafka, need not be on disk."""
        mark = self.path / names.DURABLE_MARK
        self._is_marked = mark.exists()
        if self._group and not self._is_marked:
            self.known[names.HIGH_WATERMARKS] = dict(self.known[names.RECOVERY_POINTS])
        elif self._is_marked and not self._group:
            mark.unlink()
            fsync_directory(self.path)

    def durable(self, key: TopicPartition) -> int:
        """Everything of the partition below this offset is on disk, whatever happened to the machine."""
        recovery_point = self.known[names.RECOVERY_POINTS].get(key, 0)
        if not self._group:
            return recovery_point
        return max(recovery_point, self.known[names.HIGH_WATERMARKS].get(key, 0))

    def forget(self, key: TopicPartition) -> None:
        """The partition's files go away; see `is_stale`."""
        for offsets in self.known.values():
            if offsets.pop(key, None) is not None:
                self.is_stale = True

    def is_on_disk(self, key: TopicPartition) -> bool:
        """Whether a checkpoint names the partition, or may do so after a crash."""
        return any(key in offsets for offsets in self.on_disk.values())

    def checkpoint(self, name: str, offsets: Mapping[TopicPartition, int], helper: Helper) -> None:
        """Writes the file with what is new, if anything is."""
        known = self.known[name]
        known.update(offsets)
        if self.failed:
            return
        if name == names.LOG_STARTS:
            known = {key: offset for key, offset in known.items() if offset > 0}
        if self._submitted.get(name) != known:
            self._submitted[name] = dict(known)
            helper.submit(partial(self._write, name, self._submitted[name]), self.number)

    def write_stale(self, helper: Helper) -> None:
        """Without what was forgotten."""
        self.is_stale = False
        for name in CHECKPOINTS:
            self.checkpoint(name, {}, helper)

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """In the helper's thread."""
        write_offsets(self.path / name, offsets)
        self.on_disk[name] = offsets
        if name == names.HIGH_WATERMARKS and self._group and not self._is_marked:
            write_whole(self.path / names.DURABLE_MARK, b"")
            self._is_marked = True

    def write_again(self) -> None:
        """A checkpoint may not be on disk, although the directory works: the next one is written anyway."""
        self._submitted.clear()

    def partitions(self) -> Iterator[tuple[Path, PartitionName]]:
        """The directories of partitions, also of those to be deleted. What else is here is left alone."""
        if self.failed:
            return
        for entry in list(self.path.iterdir()):
            if entry.name in names.NOT_PARTITIONS or not entry.is_dir():
                continue
            try:
                parsed = parse_partition(entry.name)
            except NotAPartition:
                if entry.name not in self._strangers:
                    self._strangers.add(entry.name)
                    _log.warning(
                        "%s is not the directory of a partition (<topic>-<number>). Move it out of %s: "
                        "with it the broker will not start again",
                        entry,
                        self.path,
                    )
                continue
            yield entry, parsed
