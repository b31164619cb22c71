"""The cache of what was fetched from the object store: windows of segments, and indexes of segments.

    remote-cache/<topic id, 32 hex digits>-<partition>/
        <base of the segment>.<segment id, 32 hex digits>.<position>.<base>.<end>/
                                                            a window: offsets [base, end), from this position
            <base>.log, .index, .timeindex, .txnindex       as in a partition's directory
        <base of the segment>.<segment id>.indexes          the indexes of a segment, as in the object store
    remote-cache/new/                                       what is being written
    remote-cache/boot                                       the kernel's boot id

A window is a directory of its own, so that a `PartitionReader` reads it, and so that all of its files come
with one rename. Nothing is synced. What a process has written survives its death; after the machine has
started again, the cache is emptied. What was used longest ago is removed first, by unlink: whoever has a file
open can go on reading it.
"""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.storage.names import OFFSET_DIGITS, segment_name

INDEXES: Final = ".indexes"
NEW: Final = "new"
BOOT: Final = "boot"
# What was handed out is kept for so long: a handler has found it by then, and a processor has opened it.
KEPT_MS: Final = 2_000
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class PartitionKey(NamedTuple):
    topic_id: bytes
    partition: int

    @property
    def directory(self) -> str:
        return f"{self.topic_id.hex()}-{self.partition}"


class WindowKey(NamedTuple):
    """A window of a segment, by the position at which it begins.

    After tiered storage was off for a topic, another segment may have the same base. The id tells them apart.
    """

    partition: PartitionKey
    segment_base: int
    segment_id: bytes
    position: int


class IndexesKey(NamedTuple):
    partition: PartitionKey
    segment_base: int
    segment_id: bytes


class Cached(NamedTuple):
    """A window in the cache, with offsets [base, end); or the indexes of a segment."""

    path: Path
    size: int
    base: int = 0
    end: int = 0

    @property
    def file(self) -> Path:
        """Return the path of the window's `.log`, or of the indexes."""
        return self.path if self.path.suffix == INDEXES else self.path / segment_name(self.base)


class _Item(NamedTuple):
    cached: Cached
    used_ms: int


Key = WindowKey | IndexesKey


class RemoteCache:
    """The cache in a directory, of at most `limit()` bytes. Other threads write in `new` only.

    `now_ms` is a monotonic clock.
    """

    def __init__(self, directory: Path, limit: Callable[[], int], now_ms: Callable[[], int]) -> None:
        self.directory = directory.absolute()
        self._limit = limit
        self._now_ms = now_ms
        # Used longest ago first.
        self._items: OrderedDict[Key, _Item] = OrderedDict()
        self._bytes = 0
        self.promised = 0
        self._count = 0

    @property
    def bytes(self) -> int:
        """Return the size of what is in the cache, and of what will be."""
        return self._bytes + self.promised

    def open(self) -> None:
        """List what an earlier process has left; remove what it did not finish. Raises OSError."""
        self.directory.mkdir(exist_ok=True)
        boot, boot_id = self.directory / BOOT, _BOOT_ID.read_text()
        if not boot.exists() or boot.read_text() != boot_id:
            # After a power cut files may lack what was written to them.
            for entry in self.directory.iterdir():
                _remove(entry)
            boot.write_text(boot_id)
        # A full disk may have no room for a directory.
        (self.directory / NEW).mkdir(exist_ok=True)
        for entry in (self.directory / NEW).iterdir():
            _remove(entry)
        found = []
        for partition in self.directory.iterdir():
            if (of := _partition_of(partition.name)) is not None:
                found += [(of, path) for path in partition.iterdir()]
        listed = []
        for partition_key, path in found:
            try:
                listed.append(_listed(partition_key, path))
            except (ValueError, FileNotFoundError):
                # Nothing of ours, or not whole.
                _remove(path)
        for _, key, cached in sorted(listed, key=lambda one: one[0]):
            self._add(key, cached, 0)
        self._make_room(0, self._now_ms())

    def __contains__(self, key: Key) -> bool:
        return key in self._items

    def peek(self, key: Key) -> Cached | None:
        """Return what is cached under a key, without counting it as used."""
        item = self._items.get(key)
        return item.cached if item is not None else None

    def find(self, key: Key) -> Cached | None:
        """Return what is cached under a key, and note that it is used now."""
        item = self._items.get(key)
        if item is None:
            return None
        try:
            # For the order after a restart.
            os.utime(item.cached.file)
        except FileNotFoundError:
            # Somebody has removed it.
            self._forget(key)
            return None
        self._items[key] = item._replace(used_ms=self._now_ms())
        self._items.move_to_end(key)
        return item.cached

    def promise(self, size: int) -> bool:
        """Reserve `size` bytes until `put` or `give_up`; return False if there is no room now.

        An empty cache has room for a window of any size.
        """
        if not self._make_room(size, self._now_ms()):
            return False
        self.promised += size
        return True

    def give_up(self, promised: int, path: Path | None) -> None:
        """Remove what was written at `path`, which is not wanted any more."""
        self.promised -= promised
        if path is not None:
            _remove(path)

    def new_path(self) -> Path:
        """Return a path for a file or directory to be written and then `put`."""
        self._count += 1
        return self.directory / NEW / str(self._count)

    def put(self, key: Key, made: Path, promised: int, base: int = 0, end: int = 0) -> Cached:
        """Move what was written at `made` into place. Raises OSError."""
        self.promised -= promised
        self._forget(key)
        directory = self.directory / key.partition.directory
        directory.mkdir(exist_ok=True)
        name = f"{key.segment_base:0{OFFSET_DIGITS}d}.{key.segment_id.hex()}"
        if isinstance(key, WindowKey):
            path = directory / f"{name}.{key.position}.{base}.{end}"
            size = sum(file.stat().st_size for file in made.iterdir())
        else:
            path, size = directory / f"{name}{INDEXES}", made.stat().st_size
        made.rename(path)
        return self._add(key, Cached(path, size, base, end), self._now_ms())

    def _add(self, key: Key, cached: Cached, used_ms: int) -> Cached:
        self._items[key] = _Item(cached, used_ms)
        self._bytes += cached.size
        return cached

    def _make_room(self, size: int, now_ms: int) -> bool:
        room = self._limit() - size
        for key, item in list(self._items.items()):
            if self.bytes <= room:
                break
            if isinstance(key, IndexesKey) or now_ms - item.used_ms >= KEPT_MS or not item.used_ms:
                self._forget(key)
        return self.bytes <= max(room, 0)

    def _forget(self, key: Key) -> None:
        item = self._items.pop(key, None)
        if item is not None:
            self._bytes -= item.cached.size
            _remove(item.cached.path)
            with suppress(OSError):
                item.cached.path.parent.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _listed(partition: PartitionKey, path: Path) -> tuple[int, Key, Cached]:
    """Return the last use, key and value of what is at `path`. Raises ValueError, FileNotFoundError."""
    if path.suffix == INDEXES:
        segment, segment_id = path.stem.split(".")
        key: Key = IndexesKey(partition, int(segment), bytes.fromhex(segment_id))
        cached = Cached(path, path.stat().st_size)
    else:
        segment, segment_id, *numbers = path.name.split(".")
        position, base, end = map(int, numbers)
        key = WindowKey(partition, int(segment), bytes.fromhex(segment_id), position)
        cached = Cached(path, sum(file.stat().st_size for file in path.iterdir()), base, end)
    return cached.file.stat().st_mtime_ns, key, cached


def _partition_of(name: str) -> PartitionKey | None:
    topic_id, _, partition = name.partition("-")
    try:
        return PartitionKey(bytes.fromhex(topic_id), int(partition))
    except ValueError:
        return None
