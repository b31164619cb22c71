"""Applies what was shipped after a cut to the log directories of that cut (mpbroker.remote.acks=ledger).

Bytes are written into the segment and at the position that they had. What the partition has behind them was
never acknowledged, and is removed. Indexes of changed segments are removed as well: the first start makes
them anew, as after a kill.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mpbroker.protocol.topic_names import METADATA_TOPIC_ID
from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.manifest import shipped_name
from mpbroker.remote.ledger.events import Shipped, ShippedRange
from mpbroker.remote.ledger.reader import read_entries
from mpbroker.remote.restore.mirror import place
from mpbroker.remote.restore.plan import Plan, RestoreRefused
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.storage.checkpoints import (
    Offsets,
    fsync_directory,
    opened,
    read_offsets,
    topic_id_if_any,
    write_all_at,
    write_epochs,
    write_offsets,
    write_topic_id,
)
from mpbroker.storage.names import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    INDEX_SUFFIXES,
    LOG_STARTS,
    LOG_SUFFIX,
    RECOVERY_POINTS,
    SNAPSHOT_SUFFIX,
    parse_partition,
    parse_segment,
    segment_name,
)

_DIRECTORY_MODE: Final = 0o750


def shipped_after(store: ObjectStore, plan: Plan) -> Iterator[Shipped]:
    """Yield what was shipped after the newest cut, if a plan takes it. Raises LedgerDamaged, StoreError."""
    numbers = plan.ledger.state.shipped_numbers
    if not (plan.takes_shipped and numbers):
        return
    for entry in read_entries(store, plan.cut.since + 1, plan.ledger.seq):
        for event in entry.events:
            if isinstance(event, Shipped) and event.number in numbers:
                yield event


def bytes_of(store: ObjectStore, event: Shipped) -> bytes:
    """Return the bytes of an event's pieces. Raises StoreError."""
    if not event.object_id:
        return event.data
    name = shipped_name(event.object_id)
    data = store.get(name)
    if len(data) != event.size or checksum(data) != event.crc:
        raise StoreError(f"{name} is damaged: its size or its checksum is not the one in the ledger")
    return data


def apply_all_shipped(store: ObjectStore, plan: Plan, log_dirs: Sequence[Path]) -> Plan:
    """Bring the directories of a plan's cut to the end of the ledger; return the plan with all directories.

    Raises RestoreRefused, LedgerDamaged, StoreError, OSError.
    """
    files = ShippedFiles(store, log_dirs)
    for event in shipped_after(store, plan):
        files.apply(event)
    files.finish()
    directories = [*plan.manifest.directories, *files.made]
    return plan._replace(manifest=msgspec.structs.replace(plan.manifest, directories=directories))


class ShippedFiles:
    """The log directories of a cut. Call `apply` for each event in its order, then `finish`.

    `made` are directories of partitions that the cut does not have, as in `CutManifest.directories`. Both
    methods return which files they have changed: paths as in `CutFile.path`, and the first position.
    """

    def __init__(self, store: ObjectStore, log_dirs: Sequence[Path]) -> None:
        self._store = store
        self._log_dirs = log_dirs
        self.made: list[str] = []
        # By directory: the last range.
        self._last: dict[str, ShippedRange] = {}
        self._unsynced: set[Path] = set()

    def apply(self, event: Shipped) -> list[tuple[str, int]]:
        """Write an event's bytes to their segments, and cut off what lies behind them. Idempotent.

        Raises RestoreRefused, StoreError, OSError.
        """
        changed: list[tuple[str, int]] = []
        for log_dir in self._log_dirs:
            # What is written below has no indexes.
            (log_dir / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        data = memoryview(bytes_of(self._store, event))
        for one in event.ranges:
            path = self._directory(one, changed)
            for base, position, length in one.pieces:
                self._write(f"{path}/{segment_name(base)}", data[:length], position)
                changed.append((f"{path}/{segment_name(base)}", position))
                data = data[length:]
            self._cut_off(path, one, changed)
            self._last[path] = one
        return changed

    def finish(self) -> list[tuple[str, int]]:
        """Correct the checkpoints, then sync all changes. Raises OSError, CheckpointCorrupt."""
        changed = []
        for number, log_dir in enumerate(self._log_dirs):
            own = {path: one for path, one in self._last.items() if path.startswith(f"{number}/")}
            for name in (LOG_STARTS, HIGH_WATERMARKS, RECOVERY_POINTS):
                if own and self._write_offsets(log_dir / name, own, is_start=name == LOG_STARTS):
                    changed.append((f"{number}/{name}", 0))
        for path in self._unsynced:
            if path.exists():
                with opened(path) as fd:
                    os.fsync(fd)
        for directory in {one.parent for one in self._unsynced} | set(self._log_dirs):
            if directory.exists():
                fsync_directory(directory)
        self._unsynced.clear()
        return changed

    def _directory(self, one: ShippedRange, changed: list[tuple[str, int]]) -> str:
        """Return the partition's directory: that of the cut, which it may have left since, or a new one.

        A directory of this name that is another topic's is that of a topic that was deleted since.
        """
        name = one.directory.partition("/")[2]
        for number, log_dir in enumerate(self._log_dirs):
            path, found = f"{number}/{name}", log_dir / name
            if path in self._last and self._last[path].topic_id == one.topic_id:
                return path
            if not found.is_dir():
                continue
            if one.topic_id in (METADATA_TOPIC_ID, topic_id_if_any(found)):
                return path
            changed += [(f"{path}/{file.name}", 0) for file in found.iterdir()]
            shutil.rmtree(found)
            self._unsynced.add(found)
        directory = self._log_dirs[int(one.directory.partition("/")[0])] / name
        directory.mkdir(_DIRECTORY_MODE)
        write_epochs(directory, [(0, 0)])
        # Last, so that a failure leaves a directory without a topic id, which is made anew.
        write_topic_id(directory, one.topic_id)
        self._unsynced.add(directory)
        self.made.append(one.directory)
        return one.directory

    def _write(self, path: str, data: memoryview, position: int) -> None:
        """Write the last bytes of a segment."""
        real_path = place(self._log_dirs, path)
        with opened(real_path, os.O_RDWR | os.O_CREAT) as fd:
            if (size := os.fstat(fd).st_size) < position:
                raise RestoreRefused(
                    f"{path} has {size} bytes in the cut, what was shipped after it begins at {position}: "
                    "the ledger lacks what is between; restore an older cut with --before"
                )
            write_all_at(fd, data, position)
            os.ftruncate(fd, position + len(data))
        self._unsynced.add(real_path)

    def _cut_off(self, path: str, one: ShippedRange, changed: list[tuple[str, int]]) -> None:
        """Remove what lies behind the end of the log, and the indexes of segments that have changed."""
        offset, last, position = one.end
        touched = {base for base, _, _ in one.pieces} | {last}
        for name in os.listdir(place(self._log_dirs, path)):  # noqa: PTH208 - names are all that is wanted
            suffix = name[name.find(".") :]
            base = parse_segment(name, suffix)
            if base is None:
                continue
            is_index = suffix in INDEX_SUFFIXES and (base in touched or base > last)
            is_behind = suffix == LOG_SUFFIX and base > last
            if is_index or is_behind or (suffix == SNAPSHOT_SUFFIX and base > offset):
                place(self._log_dirs, f"{path}/{name}").unlink()
                self._unsynced.add(place(self._log_dirs, f"{path}/{name}"))
                changed.append((f"{path}/{name}", 0))
        with opened(place(self._log_dirs, f"{path}/{segment_name(last)}"), os.O_RDWR | os.O_CREAT) as fd:
            if os.fstat(fd).st_size != position:
                os.ftruncate(fd, position)
                changed.append((f"{path}/{segment_name(last)}", position))

    def _write_offsets(self, file: Path, own: dict[str, ShippedRange], *, is_start: bool) -> bool:
        """Raise a file's log start offsets to those shipped, or lower its other offsets to the log ends."""
        offsets = read_offsets(file) if file.exists() else Offsets()
        before = offsets.copy()
        for path, one in own.items():
            topic, partition, _ = parse_partition(path.partition("/")[2])
            if path in self.made:
                # What is said of this name is of a topic that was deleted.
                offsets.pop((topic, partition), None)
            if is_start:
                offsets[topic, partition] = max(offsets.get((topic, partition), 0), one.log_start)
            elif offsets.get((topic, partition), 0) > one.end[0]:
                offsets[topic, partition] = one.end[0]
        if offsets == before:
            return False
        write_offsets(file, offsets)
        return True
