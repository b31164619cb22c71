"""A directory as an object store: a disk of this host, or what is mounted there.

An object is a file. It is written and synced under another name first, then linked (`create`) or renamed
(`put`), so that a crash leaves all of it or nothing. Nothing here has a deadline: a request to a mounted
file system that hangs lasts as long as the file system lets it.

The directory may be on the disk that commits wait for, as far as anybody knows. So a thread that gives way to
others on the CPU (`pace.only_when_idle`) does so on the disk, too, and leaves the page cache to them.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from mpbroker.log.io.background_io import drop
from mpbroker.log.io.file_system import write_back
from mpbroker.log.io.pace import is_in_background
from mpbroker.remote.store.object_store import ObjectInfo, ObjectMissing, StoreError
from mpbroker.remote.store.sized import SizedPieces
from mpbroker.storage.checkpoints import fsync_directory, opened, write_all

# Objects that are being written.
UNFINISHED: Final = ".unfinished"
# Those of a process that was killed are removed when they are as old as that.
LEFTOVER_S: Final = 24 * 3600
LONGEST_PART: Final = 255
# Smaller steps cost more CPU. A commit that waits for one hardly notices.
STEP_BYTES: Final = 256 << 10
_NO_PARTS: Final = frozenset(("", ".", ".."))


class DirectoryStore:
    """Objects as files below `root`, which exists. (Protocol: `object_store.ObjectStore`.)"""

    def __init__(self, root: Path) -> None:
        self._root = root
        # Directories that were synced into their parents by this process.
        self._durable = {root}

    def remove_leftovers(self) -> None:
        """Remove what processes left half written more than a day ago. Raises StoreError."""
        with self._errors(UNFINISHED), contextlib.suppress(FileNotFoundError):
            for path in (self._root / UNFINISHED).iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime < time.time() - LEFTOVER_S:
                        path.unlink()

    def create(self, name: str, body: bytes) -> bool:
        """See ObjectStore."""
        path = self._path(name)
        with self._errors(name), self._written(path, [body]) as unfinished:
            try:
                os.link(unfinished, path)
                created = True
            except FileExistsError:
                # Whoever created it may not have come to sync it.
                with opened(path) as fd:
                    os.fsync(fd)
                created = False
            fsync_directory(path.parent)
        return created

    def put(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        """See ObjectStore."""
        path = self._path(name)
        sized = SizedPieces(name, pieces, size)
        try:
            with self._errors(name), self._written(path, sized) as unfinished:
                unfinished.replace(path)
                fsync_directory(path.parent)
        except StoreError:
            if sized.error is not None:
                raise sized.error from None
            raise

    def get(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        """See ObjectStore."""
        with self._errors(name), open(self._path(name), "rb") as file:
            file.seek(position)
            return file.read(-1 if length is None else length)

    def size(self, name: str) -> int | None:
        """See ObjectStore."""
        try:
            with self._errors(name):
                return self._path(name).stat().st_size
        except ObjectMissing:
            return None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """See ObjectStore."""
        with self._errors(prefix or "the root"):
            yield from self._walk(prefix, after)

    def delete(self, names: Iterable[str]) -> None:
        """See ObjectStore."""
        for name in names:
            with self._errors(name), contextlib.suppress(FileNotFoundError):
                self._path(name).unlink()

    def _path(self, name: str) -> Path:
        parts = name.split("/")
        if not _NO_PARTS.isdisjoint(parts) or parts[0] == UNFINISHED or "\0" in name:
            raise StoreError(f"{name!r} is no name of an object")
        if any(len(part.encode()) > LONGEST_PART for part in parts):
            raise StoreError(
                f"{name} has a part of more than {LONGEST_PART} bytes, which no file system takes: a "
                "topic whose name has more than 232 characters needs a bucket"
            )
        return self._root.joinpath(*parts)

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            # Perhaps somebody has removed directories: they have to be made again.
            self._durable = {self._root}
            if not self._root.is_dir():
                raise StoreError(f"{name}: {self._root} is no directory: is it mounted?") from error
            raise ObjectMissing(f"{name} is not in {self._root}") from error
        except OSError as error:
            raise StoreError(f"{name} in {self._root}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def _written(self, path: Path, pieces: Iterable[bytes]) -> Iterator[Path]:
        """Write and sync a file under a name that is gone afterwards, and make the directory of `path`."""
        unfinished = self._root / UNFINISHED / uuid.uuid4().hex
        self._make(unfinished.parent)
        self._make(path.parent)
        try:
            with opened(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                if is_in_background():
                    _write_gently(fd, pieces)
                else:
                    for piece in pieces:
                        write_all(fd, piece)
                os.fsync(fd)
            yield unfinished
        finally:
            unfinished.unlink(missing_ok=True)

    def _make(self, directory: Path) -> None:
        """Make a directory and its parents below the root, durably."""
        if directory not in self._durable:
            self._make(directory.parent)
            directory.mkdir(exist_ok=True)
            fsync_directory(directory.parent)
            self._durable.add(directory)

    def _walk(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(self._root / prefix) as entries:
                named = {entry.name + "/" * entry.is_dir(): entry for entry in entries}
        except FileNotFoundError:
            if not self._root.is_dir():
                raise
            return
        for part in sorted(named):
            name = prefix + part
            if name == f"{UNFINISHED}/":
                continue
            if part[-1] == "/":
                if name > after or after.startswith(name):
                    yield from self._walk(name, after)
            elif name > after:
                with contextlib.suppress(FileNotFoundError):
                    found = named[part].stat()
                    yield ObjectInfo(name, found.st_size, found.st_mtime_ns // 1_000_000)


def _write_gently(fd: int, pieces: Iterable[bytes]) -> None:
    """Write a file that is empty. The disk gets STEP_BYTES at a time, and the page cache keeps no more.

    There are no rests: what is not uploaded yet stays on the disk, and is lost with it. Raises OSError.
    """
    written = settled = 0
    for piece in pieces:
        write_all(fd, piece)
        written += len(piece)
        while written - settled >= STEP_BYTES:
            write_back(fd, settled, STEP_BYTES)
            drop(fd, settled, STEP_BYTES)
            settled += STEP_BYTES
