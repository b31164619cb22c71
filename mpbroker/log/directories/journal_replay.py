"""Write the content of a commit journal back into the segments, before any partition is opened.

After a power cut, segments lack records that were acknowledged but never synced. The journal is emptied only
when all segments that it names are synced, so the next start repeats an interrupted replay.

An extent (a record's bytes for one segment) is skipped if its segment does not exist. Then the topic was
deleted, or created again with another id, or the segment was deleted. A power cut cannot be the reason:
no batch in a segment is acknowledged before the segment's name is on disk.

If only the log process died, the segments lack nothing: its successor continues the journal, and syncs
the segments in the background.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mpbroker.ipc.process import FatalError
from mpbroker.log.io.file_system import FileSystem
from mpbroker.log.partition.durable_reads import reread
from mpbroker.log.partition.epoch_validation import are_refuted, stored_epochs
from mpbroker.protocol.topic_names import TopicPartition
from mpbroker.protocol.uuids import uuid_text
from mpbroker.records.batch import LEADER_EPOCH_AT
from mpbroker.storage.checkpoints import read_whole, write_all_at
from mpbroker.storage.disk_errors import NO_ROOM
from mpbroker.storage.journal import Extent, JournalFile, Record
from mpbroker.storage.leader_epochs import NO_EPOCH
from mpbroker.storage.names import PARTITION_METADATA, PartitionName, segment_name

OPEN_AT_ONCE = 128
# More segments than this are synced by one call, with all else on their file system.
MANY = 100
TOPIC_ID_LETTERS = 22
# A single record adds at most as much again.
GROUP_BYTES = 16 << 20
_log = logging.getLogger("mpbroker.log")


class Replayed(NamedTuple):
    """The outcome of a replay.

    `ends`: for each partition, the end offset of its last extent from a commit round that was finished.
    All records below that offset are in segments now.
    """

    restored_bytes: int
    ends: dict[TopicPartition, int]


def replay(
    journal: JournalFile,
    partitions: Iterable[tuple[Path, PartitionName]],
    recovery_points: Mapping[TopicPartition, int],
    say: Callable[[str], None],
    file_system: FileSystem | None = None,
) -> Replayed:
    """Write the journal's extents into their segments, all of which are synced on return.

    `file_system`: the file system of the segments, opened before any write there. Raises OSError, FatalError.
    """
    ends: dict[TopicPartition, int] = {}
    # These count once the next record confirms that the round was finished.
    unconfirmed: dict[TopicPartition, int] = {}
    targets: _Targets | None = None
    segments = _Segments()
    try:
        for records in _in_groups(journal.records()):
            say(f"replaying {journal.path}")
            targets = targets or _Targets(partitions, recovery_points)
            chosen = [
                [(path, one) for one in record.extents if (path := targets.segment_of(one)) is not None]
                for record in records
            ]
            for path, extent in chain.from_iterable(chosen):
                segments.reread(path, extent)
            for record, extents in zip(records, chosen, strict=True):
                if not record.is_first:
                    ends |= unconfirmed
                unconfirmed = {
                    targets.name_of(extent): extent.end_offset
                    for path, extent in extents
                    if segments.restore(path, extent)
                }
        say(f"syncing what {journal.path} names")
        if file_system is not None and file_system.is_synced_at_once and segments.touched > MANY:
            file_system.sync()
            segments.sync(synced=file_system)
        else:
            segments.sync()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise FatalError(
            f"{journal.path} holds acknowledged records that the machine lost from their segments, and there "
            f"is no room to write them back: {os.strerror(error.errno)}. Free some space in "
            f"{journal.path.parent} and start the broker again; do not delete the journal"
        ) from error
    finally:
        segments.close()
    return Replayed(segments.restored_bytes, ends)


def _in_groups(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield the records in groups, each small enough for concurrent reads of all its segments."""
    group: list[Record] = []
    extents = data_bytes = 0
    for record in records:
        group.append(record)
        extents += len(record.extents)
        data_bytes += sum(len(extent.data) for extent in record.extents)
        if extents >= OPEN_AT_ONCE or data_bytes >= GROUP_BYTES:
            yield group
            group, extents, data_bytes = [], 0, 0
    if group:
        yield group


def sync_named(
    named: Iterable[tuple[bytes, int, int]], partitions: Iterable[tuple[Path, PartitionName]]
) -> None:
    """Sync the segments given by (topic id, partition, base offset).

    Raises OSError: EIO if a sync failed, else an error that may be temporary.
    """
    targets, segments = _Targets(partitions, {}), _Segments()
    try:
        for topic_id, partition, base in named:
            path = targets.path_of(topic_id, partition, base)
            if path is not None:
                segments.touch(path)
        segments.sync(is_final=True)
    finally:
        segments.close()


class _Target(NamedTuple):
    """An existing partition. `letters`: the topic id as text, from the end of `partition.metadata`."""

    directory: Path
    name: TopicPartition
    letters: bytes
    synced_up_to: int


class _Targets:
    """The existing partitions by topic id.

    A partition is also found if a bit of its topic id on disk has flipped. Otherwise its records in the
    journal would be lost. The damage is reported when the partition is opened.
    """

    def __init__(
        self, partitions: Iterable[tuple[Path, PartitionName]], synced: Mapping[TopicPartition, int]
    ) -> None:
        self._by_letters: dict[tuple[bytes, int], _Target] = {}
        self._numbered: dict[int, list[_Target]] = {}
        self._logged: set[Path] = set()
        # Leader epochs of the partitions that a journal names.
        self._epochs: dict[Path, int] = {}
        self._refuted: dict[Path, bool] = {}
        self._paths: dict[tuple[bytes, int, int], str | None] = {}
        for directory, parsed in partitions:
            if parsed.suffix:
                continue
            try:
                letters = read_whole(f"{directory}/{PARTITION_METADATA}")[-TOPIC_ID_LETTERS:]
            except FileNotFoundError:
                continue
            key = parsed.topic, parsed.partition
            target = _Target(directory, key, letters, synced.get(key, 0))
            self._by_letters[letters, parsed.partition] = target
            self._numbered.setdefault(parsed.partition, []).append(target)

    def _target(self, topic_id: bytes, partition: int) -> _Target | None:
        text = uuid_text(topic_id).encode()
        if (text, partition) not in self._by_letters:
            flipped = [one for one in self._numbered.get(partition, []) if _is_flipped(one.letters, text)]
            if not flipped:
                return None
            self._by_letters[text, partition] = flipped[0]
        return self._by_letters[text, partition]

    def path_of(self, topic_id: bytes, partition: int, base: int) -> str | None:
        """Return the segment's path, whether it exists or not; None if there is no such partition."""
        key = (topic_id, partition, base)
        if key not in self._paths:
            found = self._target(topic_id, partition)
            self._paths[key] = str(found.directory / segment_name(base)) if found is not None else None
        return self._paths[key]

    def name_of(self, extent: Extent) -> TopicPartition:
        """Return the name of the partition of an extent for which `segment_of` found a segment."""
        target = self._target(extent.topic_id, extent.partition)
        assert target is not None
        return target.name

    def segment_of(self, extent: Extent) -> str | None:
        """Return the path of the extent's segment, or None if the extent must not be written back.

        An extent must not be written back if it is synced, or if its partition was deleted or was later
        written by another broker.
        """
        if self.path_of(extent.topic_id, extent.partition, extent.segment_base) is None:
            return None
        target = self._target(extent.topic_id, extent.partition)
        if target is None or extent.end_offset <= target.synced_up_to:
            return None
        first_epoch = int.from_bytes(extent.data[LEADER_EPOCH_AT : LEADER_EPOCH_AT + 4], "big", signed=True)
        if first_epoch < self._epoch_of(target) and not self._is_refuted(target):
            if target.directory not in self._logged:
                self._logged.add(target.directory)
                _log.warning(
                    "%s: its records in the commit journal are ignored: another broker wrote there since",
                    target.directory,
                )
            return None
        return self.path_of(extent.topic_id, extent.partition, extent.segment_base)

    def _epoch_of(self, target: _Target) -> int:
        """Return the checkpoint's last leader epoch; NO_EPOCH, which refuses no extent, if it is unknown."""
        if target.directory not in self._epochs:
            epochs = stored_epochs(str(target.directory))
            self._epochs[target.directory] = epochs[-1][0] if epochs else NO_EPOCH
        return self._epochs[target.directory]

    def _is_refuted(self, target: _Target) -> bool:
        """Return whether the batches show that the checkpoint's leader epochs are wrong (a flipped bit)."""
        if target.directory not in self._refuted:
            epochs = stored_epochs(str(target.directory)) or ()
            self._refuted[target.directory] = are_refuted(target.directory, epochs)
        return self._refuted[target.directory]


def _is_flipped(one: bytes, other: bytes) -> bool:
    """Return whether the topic ids `one` and `other`, as text, differ in exactly one letter."""
    # Then one of their halves is equal: a fast test.
    half = TOPIC_ID_LETTERS // 2
    if one[:half] != other[:half] and one[half:] != other[half:]:
        return False
    return len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) == 1


class _Segments:
    """The segments being written to, at most OPEN_AT_ONCE of them open at a time."""

    def __init__(self) -> None:
        self.restored_bytes = 0
        self._open: OrderedDict[str, int] = OrderedDict()
        self._touched: dict[str, None] = {}
        self._missing: set[str] = set()

    def touch(self, path: str) -> None:
        self._fd(path)

    def reread(self, path: str, extent: Extent) -> None:
        """Begin to read the extent's range of the segment from the disk, so that `restore` can compare it.

        After a failed sync the page cache may hold bytes that the disk lacks. Reads of many files run
        concurrently.
        """
        if path in self._touched or path in self._missing:
            return
        fd = self._fd(path)
        if fd is not None:
            reread(fd, extent.position)
            os.posix_fadvise(fd, extent.position, len(extent.data), os.POSIX_FADV_WILLNEED)

    @property
    def touched(self) -> int:
        return len(self._touched)

    def restore(self, path: str, extent: Extent) -> bool:
        """Write the extent if its segment lacks it. Return whether the segment has it now, synced or not."""
        if path in self._missing:
            return False
        fd = self._fd(path)
        if fd is None:
            return False
        count = len(extent.data)
        if os.pread(fd, count, extent.position) == extent.data:
            return True
        write_all_at(fd, extent.data, extent.position)
        self.restored_bytes += count
        return True

    def sync(self, *, is_final: bool = False, synced: FileSystem | None = None) -> None:
        """Sync all segments opened so far, also unchanged ones: their data may be only in the page cache.

        `synced`: a file system that is synced already; only segments on other file systems (by a link or a
        mount) are synced then. Raises OSError. With `is_final` the errno of any failed sync is EIO.
        """
        for path in self._touched:
            if synced is not None and _is_on(synced, path):
                continue
            fd = self._fd(path)
            # The segment was deleted meanwhile, with its topic or by retention.
            if fd is None:
                continue
            try:
                os.fsync(fd)
            except OSError as error:
                if not is_final:
                    raise
                # Report EIO whatever the reason: the next sync would report success, and pages may be lost.
                raise OSError(errno.EIO, f"cannot be synced: {error.strerror}", path) from error

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _fd(self, path: str) -> int | None:
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            self._missing.add(path)
            return None
        if len(self._open) == OPEN_AT_ONCE:
            os.close(self._open.popitem(last=False)[1])
        self._open[path] = fd
        self._touched[path] = None
        return fd


def _is_on(file_system: FileSystem, path: str) -> bool:
    """Return whether the file lies on that file system, or was deleted. Raises OSError."""
    try:
        return file_system.has(path)
    except FileNotFoundError:
        return True
