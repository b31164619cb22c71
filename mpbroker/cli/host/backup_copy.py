"""Copies of log directories below a directory of backups: the layout, and how the next copy is made.

    DIR/
    ├── lock                    locked while a backup is made
    ├── incoming/               the copy that is being made
    │   ├── copied-….jsonl      the copied files, one per line, for a run that continues the copy
    │   ├── 0/ 1/ …             each of log.dirs
    │   └── manifest.json       the last file that is written
    └── 2026-11-28T12.00.00Z/   a whole copy: `incoming`, renamed

A copy is made in passes over the log directories. The broker serves during all passes but the last. Each pass
copies the files that are new or have changed since the pass before. Unchanged files are hard links to files
of the former copy, so no file of a whole copy is ever written again. A file is unchanged if its inode, size
and time of change (ctime) are the same. Times of modification do not count, since the cleaner sets them. The
kernel counts ctime in ticks of some ms, so a file that changed just before the check is copied once more. A
copied file has its original's time of modification. If time or size of the copied file differ later, it is
damaged and is not linked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from mpbroker.cli.errors import USAGE_ERROR, CliError
from mpbroker.ipc.pointer import LOCK, POINTER_NAME
from mpbroker.storage.checkpoints import opened
from mpbroker.storage.names import META_PROPERTIES, NOT_PARTITIONS

MANIFEST, INCOMING = "manifest.json", "incoming"
# finish() makes it; "+" distinguishes copies of one second.
_COPY_NAME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d\.\d\d\.\d\dZ\+*", re.ASCII)
_BACKUP_LOCK: Final = "lock"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# Files and directories that are of the running broker, or about to be removed.
_NOT_COPIED: Final = NOT_PARTITIONS | {LOCK, POINTER_NAME}
_REMOVED: Final = (".deleted", "-delete")
# In the state file, as the inode: the next run copies the file, and does not link it.
_NOT_LINKED: Final = -1
_UNSURE_NS: Final = 1_000_000_000
_PIECE_BYTES: Final = 8 << 20
# This many last bytes of a copied segment must agree with the original before its new tail is added.
_OVERLAP_BYTES: Final = 64 << 10
# A larger copied piece is synced at once, except in the last pass.
_SYNC_BYTES: Final = 1 << 20


class _BecameShorter(OSError):
    """A file has become shorter while it was copied."""


class CopiedFile(msgspec.Struct):
    """A file of a copy. `inode` and `changed_ns` (ctime) are the original's.

    `changed_ns` is 0 if the original changed just before it was copied. `modified_s` is the time of
    modification of the copy and its original, in whole seconds, which all file systems keep.
    """

    path: str
    size: int
    inode: int
    changed_ns: int
    modified_s: int = 0

    def is_of(self, found: os.stat_result) -> bool:
        return (self.size, self.inode, self.changed_ns) == (found.st_size, found.st_ino, found.st_ctime_ns)

    def is_as_copied(self, found: os.stat_result) -> bool:
        return (self.size, self.modified_s) == (found.st_size, int(found.st_mtime))


class Manifest(msgspec.Struct):
    """The list of a whole copy's files. `log_dirs`: the original paths of the directories 0, 1 …

    `keep`: how many copies the backup kept. Later backups keep as many, unless the user names another number.
    """

    log_dirs: list[str]
    made_ms: int
    paused_ms: int
    files: list[CopiedFile]
    keep: int = 1
    version: int = 1

    @property
    def size_bytes(self) -> int:
        return sum(one.size for one in self.files)


class Copy(NamedTuple):
    """A whole copy: its path and its manifest."""

    path: Path
    manifest: Manifest

    @property
    def directories(self) -> list[Path]:
        return [self.path / str(number) for number in range(len(self.manifest.log_dirs))]

    def problems(self) -> Iterator[str]:
        """Yield a text for each file that is missing or whose size differs from the manifest."""
        for one in self.manifest.files:
            try:
                size = (self.path / one.path).stat().st_size
            except FileNotFoundError:
                yield f"{self.path / one.path} is missing"
                continue
            if size != one.size:
                yield f"{self.path / one.path} has {size:,} bytes, and had {one.size:,}"

    def changed(self) -> list[Path]:
        """Return the existing files whose size or time of modification differs from the manifest."""
        paths = [(one, self.path / one.path) for one in self.manifest.files]
        return [path for one, path in paths if path.exists() and not one.is_as_copied(path.stat())]


def whole_copies(target: Path) -> list[Copy]:
    """Return the whole copies, the oldest first. Raises CliError, OSError."""
    if not target.is_dir():
        return []
    found = []
    for path in sorted(target.iterdir()):
        if not _COPY_NAME.fullmatch(path.name):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            try:
                manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
            except msgspec.DecodeError as error:
                raise CliError(
                    f"{path / MANIFEST} is damaged ({error}): move {path} away, and use another copy"
                ) from error
            found.append(Copy(path, manifest))
    return found


@contextmanager
def backup_lock(target: Path) -> Iterator[bool]:
    """Create a directory of backups if missing, and lock it. Yield False if another process has the lock."""
    target.mkdir(mode=0o750, parents=True, exist_ok=True)
    fd = os.open(target / _BACKUP_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


@contextmanager
def held(copy: Copy, how: int) -> Iterator[bool]:
    """Lock a whole copy, to read it (LOCK_SH) or remove it (LOCK_EX). Yield False if it is in use or removed.

    On a file system without locks the copy counts as not in use.
    """
    fd = os.open(copy.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        yield (copy.path / MANIFEST).exists()
    finally:
        os.close(fd)


class Incoming:
    """The unfinished copy of log directories. The caller holds the lock of the directory of backups.

    Its state file exists until the copy is whole. Raises CliError if there are files, but no state file.
    """

    def __init__(self, target: Path, log_dirs: list[Path], former: Copy | None) -> None:
        self.path = target / INCOMING
        self.log_dirs = log_dirs
        self._target = target
        self._former = former
        self._linkable = {one.path: one for one in former.manifest.files} if former is not None else {}
        self.path.mkdir(mode=0o750, exist_ok=True)
        there = list(self.path.iterdir())
        if there and next(self.path.glob("copied-*.jsonl"), None) is None:
            raise CliError(
                f"{self.path} is not an unfinished backup: move it away, or name another directory",
                USAGE_ERROR,
            )
        self._state_path = self.path / f"copied-{_BOOT_ID.read_text('ascii').strip()}.jsonl"
        self._state = self._state_path.open("ab")
        _sync(self.path)
        if self._state_path not in there:
            # The machine was restarted since: files that were not synced may lack content.
            for path in there:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        self._known: dict[str, CopiedFile] = {}
        for line in self._state_path.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):  # the last line of a run that was killed
                one = msgspec.json.decode(line, type=CopiedFile)
                self._known[one.path] = one
        for one in self._known.values():
            if one.inode == _NOT_LINKED:
                self._linkable.pop(one.path, None)
        # A line begins after the end of a torn one.
        self._state.write(b"\n")
        self.files: dict[str, CopiedFile] = {}
        # Files of the former copy that are missing or damaged there.
        self.replaced: list[Path] = []

    def close(self) -> None:
        self._state.close()

    def segment_bytes(self) -> int:
        """Return the approximate size of all segments of the broker, which may delete some meanwhile."""
        total = 0
        for directory, _, names in (one for log_dir in self.log_dirs for one in os.walk(log_dir)):
            for name in names:
                with suppress(FileNotFoundError):
                    total += Path(directory, name).stat().st_size if name.endswith(".log") else 0
        return total

    def copy(self, seen: Callable[[int], None], *, at_rest: bool = False) -> int:
        """Copy new and changed files in one pass; return the number of bytes copied. Raises OSError.

        `seen` is called with the size of each file. `at_rest`: the originals do not change, so a
        missing file is an error.
        """
        self.files, copied = {}, 0
        for number, log_dir in enumerate(self.log_dirs):
            for path in _files(log_dir, at_rest=at_rest):
                name = f"{number}/{path.relative_to(log_dir)}"
                try:
                    copied += self._copy(path, name, at_rest=at_rest)
                except _BecameShorter:
                    if at_rest:
                        raise
                    # The broker has cut off what a full disk did not take. The next pass copies the file.
                    continue
                except FileNotFoundError:
                    if at_rest or path.exists():
                        raise
                    continue
                seen(self.files[name].size)
        self._state.flush()
        return copied

    def _copy(self, path: Path, name: str, *, at_rest: bool) -> int:
        now_ns = time.time_ns()
        with path.open("rb") as source:
            found = os.fstat(source.fileno())
            known, to = self._known.get(name), self.path / name
            is_sure = found.st_ctime_ns < now_ns - _UNSURE_NS
            one = CopiedFile(
                name, found.st_size, found.st_ino, found.st_ctime_ns if is_sure else 0, int(found.st_mtime)
            )
            count = 0
            if known is None or not (known.is_of(found) and to.exists()):
                former = self._linkable.get(name)
                if former is None or not (former.is_of(found) and self._link(former)):
                    # Forget what is known of the file until it is copied.
                    self._note(CopiedFile(name, 0, found.st_ino, 0))
                    count = self._write(source.fileno(), found, to, grown=known, at_rest=at_rest)
                self._note(one)
            self.files[name] = one
            return count

    def _note(self, one: CopiedFile) -> None:
        self._known[one.path] = one
        self._state.write(msgspec.json.encode(one) + b"\n")

    def _link(self, one: CopiedFile) -> bool:
        """Hard-link a file of the former copy. Return False if that file is damaged or cannot be linked."""
        assert self._former is not None
        there, to = self._former.path / one.path, self.path / one.path
        if not (there.exists() and one.is_as_copied(there.stat())):
            self.replaced.append(there)
            return False
        to.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        to.unlink(missing_ok=True)
        try:
            os.link(there, to)
        except OSError as error:
            if error.errno not in (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP):
                raise
            return False
        return True

    def _write(
        self, source: int, found: os.stat_result, to: Path, *, grown: CopiedFile | None, at_rest: bool
    ) -> int:
        """Copy a file, or only the new end of a segment that has grown; return the bytes copied."""
        begin = 0
        if grown is not None and grown.inode == found.st_ino and to.name.endswith(".log"):
            begin = _agreement(source, to, found.st_size)
        if not begin:
            to.unlink(missing_ok=True)
            to.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        fd = os.open(to, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            _copy_bytes(source, fd, begin, found.st_size)
            _copy_owner(fd, found)
            if not at_rest and found.st_size - begin > _SYNC_BYTES:
                # Otherwise, in the last pass, writers would wait for all bytes that are not on disk yet.
                os.fsync(fd)
        finally:
            os.close(fd)
        return found.st_size - begin

    def finish(self, paused_ms: int, keep: int = 1) -> Copy:
        """Sync all files, write the manifest, and rename the copy to its final name. Raises OSError."""
        self._forget_rest()
        for name in self.files:
            _sync(self.path / name)
        for directory, _, _ in os.walk(self.path):
            _sync(Path(directory))
        manifest = Manifest(
            [str(one) for one in self.log_dirs],
            time.time_ns() // 1_000_000,
            paused_ms,
            list(self.files.values()),
            keep,
        )
        making = self.path / f"{MANIFEST}.tmp"
        making.write_bytes(msgspec.json.encode(manifest))
        _sync(making)
        making.rename(self.path / MANIFEST)
        _sync(self.path)
        # Later than the former copy, whatever the clock does.
        name = time.strftime("%Y-%m-%dT%H.%M.%SZ", time.gmtime())
        if self._former is not None and name <= self._former.path.name:
            name = f"{self._former.path.name}+"
        self.path.rename(self._target / name)
        _sync(self._target)
        (self._target / name / self._state_path.name).unlink()
        return Copy(self._target / name, manifest)

    def _forget_rest(self) -> None:
        """Remove from this copy the files whose originals no longer exist, but not the state file."""
        self._state.close()
        for directory, names, files in os.walk(self.path, topdown=False):
            for file in files:
                path = Path(directory, file)
                if path != self._state_path and str(path.relative_to(self.path)) not in self.files:
                    path.unlink()
            for name in names:
                with suppress(OSError):
                    Path(directory, name).rmdir()

    def new_partitions(self) -> set[Path]:
        """Return the partition directories of this copy with a segment that no former copy has."""
        return {
            path.parent
            for name in self.files
            if name.endswith(".log") and (path := self.path / name).stat().st_nlink == 1
        }

    def forget(self, directory: Path) -> None:
        """Remove a directory with a damaged file. The next run copies all its files, and links none."""
        shutil.rmtree(directory)
        prefix = f"{directory.relative_to(self.path)}/"
        with self._state_path.open("ab") as state:
            for name in filter(lambda name: name.startswith(prefix), self.files):
                state.write(msgspec.json.encode(CopiedFile(name, 0, _NOT_LINKED, 0)) + b"\n")


def remove_former(target: Path, keep: int) -> int:
    """Remove all whole copies except the last `keep`, and the remains of interrupted removals.

    A copy in use stays until the next run. Return the number of whole copies that were removed.
    """
    removed = 0
    for copy in whole_copies(target)[:-keep]:
        with held(copy, fcntl.LOCK_EX) as is_ours:
            if is_ours:
                # First the file that marks it as whole.
                (copy.path / MANIFEST).unlink()
                shutil.rmtree(copy.path)
                removed += 1
    for path in target.iterdir():
        if _COPY_NAME.fullmatch(path.name) and path.is_dir() and not (path / MANIFEST).exists():
            shutil.rmtree(path)
    return removed


def copy_back(copy: Copy, number: int, to: Path, seen: Callable[[int], None]) -> None:
    """Restore directory `number` of a copy into an empty one, meta.properties last. Raises OSError."""
    prefix = f"{number}/"
    names = [one.path.removeprefix(prefix) for one in copy.manifest.files if one.path.startswith(prefix)]
    for name in sorted(names, key=lambda name: name == META_PROPERTIES):
        if name == META_PROPERTIES:
            for directory, _, _ in os.walk(to):
                _sync(Path(directory))
        source = os.open(copy.path / prefix / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(source)
            (to / name).parent.mkdir(mode=0o750, exist_ok=True)
            fd = os.open(to / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            try:
                _copy_bytes(source, fd, 0, found.st_size)
                _copy_owner(fd, found)
                os.fsync(fd)
            finally:
                os.close(fd)
        finally:
            os.close(source)
        seen(found.st_size)
    _sync(to)


def _files(log_dir: Path, *, at_rest: bool) -> Iterator[Path]:
    """Yield the files to copy from a log directory. Unless `at_rest`, partitions may be deleted meanwhile."""
    for entry in sorted(log_dir.iterdir()):
        if entry.name in _NOT_COPIED or entry.name.endswith((".tmp", *_REMOVED)):
            continue
        if entry.is_file():
            yield entry
        elif entry.is_dir():
            try:
                inner = sorted(entry.iterdir())
            except FileNotFoundError:
                if at_rest:
                    raise
                continue
            yield from (one for one in inner if one.is_file() and not one.name.endswith(_REMOVED))


def _agreement(source: int, to: Path, size: int) -> int:
    """Return the number of bytes that copy and source share: the copy's size, or 0 if its last bytes differ.

    The last bytes differ if the log was truncated and has grown again.
    """
    try:
        fd = os.open(to, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        there = os.fstat(fd)
        count = min(there.st_size, _OVERLAP_BYTES)
        if there.st_nlink > 1 or there.st_size > size:
            return 0
        begin = there.st_size - count
        return there.st_size if os.pread(fd, count, begin) == os.pread(source, count, begin) else 0
    finally:
        os.close(fd)


def _copy_bytes(source: int, to: int, begin: int, end: int) -> None:
    """Copy the bytes [begin, end) in the kernel, which shares blocks instead if the file system can."""
    while begin < end:
        try:
            count = os.copy_file_range(source, to, min(end - begin, 1 << 30), begin, begin)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            piece = os.pread(source, min(end - begin, _PIECE_BYTES), begin)
            count = os.pwrite(to, piece, begin) if piece else 0
        if not count:
            raise _BecameShorter(errno.ENODATA, "it has become shorter meanwhile")
        begin += count


def _copy_owner(fd: int, found: os.stat_result) -> None:
    os.fchmod(fd, found.st_mode & 0o777)
    if os.geteuid() == 0:
        os.fchown(fd, found.st_uid, found.st_gid)
    os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))


def _sync(path: Path) -> None:
    with opened(path) as fd:
        os.fsync(fd)
