"""The lock on a log directory's `.lock`, which mpbroker and Kafka respect (Kafka: FileLock).

The supervisor takes the locks before it forks. Children inherit the open file description, so a directory
stays locked while any process of its broker lives.

mpbroker takes two locks on the same open file. Readers of the directory test flock(2), as the shell command
flock(1) does. Java's FileChannel.tryLock asks for an fcntl(2) lock on all bytes, which ignores flock(2).
Therefore mpbroker also takes an fcntl(2) lock, as an open file description lock, which lives as long as any
process has this open file description. A process-owned lock, as Java takes it, would end when the process
closes any descriptor of the file, and children would not inherit it.

A lock on one byte is enough to make Java's tryLock fail. Recovery workers lock other bytes of the file
(mpbroker.log.recovery.workers).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.pointer import read_pointer
from mpbroker.ipc.process import FatalError
from mpbroker.storage.disk_errors import NO_ROOM
from mpbroker.storage.names import LOCK

# How long to wait for a lock whose holder is unknown.
LOCK_PATIENCE_S, LOCK_POLL_S = 3.0, 0.02
# How long to wait for one with a known holder: readers of the directory briefly test whether a broker has it.
READERS_PATIENCE_S = 0.2
# Directories of mode 0750 and files of mode 0640.
UMASK = 0o027
LOCKED_BYTE: Final = 1 << 32
_FLOCK: Final = struct.Struct("@hhqqi4x")
"""The layout of C's struct flock: type, whence, start, length, pid."""
_OF_A_DESCRIPTION: Final = -1
"""The pid that fcntl(2) reports for a lock that belongs to an open file description."""


class Holder(NamedTuple):
    """The holder of the fcntl(2) lock.

    `pid` is 0 if it is unknown: for a process in another container, and for mpbroker, whose lock has no pid.
    """

    is_mpbroker: bool
    pid: int


def take(fd: int) -> bool:
    """Take the flock(2) and fcntl(2) locks on an open `.lock`. Raises OSError.

    Returns False, and holds neither lock, if another broker has one of them.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not _is_taken(error):
            raise
        return False
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _wanted())
    except OSError as error:
        fcntl.flock(fd, fcntl.LOCK_UN)
        if not _is_taken(error):
            raise
        return False
    return True


def holder_of(lock: Path) -> Holder | None:
    """Return the holder of the fcntl(2) lock on the file, None if it is not locked. Raises OSError.

    Do not call this in a process that holds a process-owned lock on the file. The lock would be lost.
    """
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _wanted()))
    finally:
        os.close(fd)
    if kind == fcntl.F_UNLCK:
        return None
    return Holder(pid == _OF_A_DESCRIPTION, max(pid, 0))


def is_in_use(log_dir: Path) -> bool:
    """Return whether a broker, mpbroker or Kafka, has locked the directory, in any container.

    /proc/locks is read, too, because this user may lack permission to open the file. Raises OSError.
    """
    lock = log_dir / LOCK
    with contextlib.suppress(PermissionError):
        if holder_of(lock) is not None:
            return True
    try:
        found = lock.stat()
        locks = Path("/proc/locks").read_text("ascii").splitlines()
    except FileNotFoundError:
        return False
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return any(device in line.split() for line in locks)


def _wanted() -> bytes:
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCKED_BYTE, 1, 0)


def _is_taken(error: OSError) -> bool:
    return error.errno in (errno.EAGAIN, errno.EACCES)


def lock_log_dirs(config: BrokerConfig) -> list[int]:
    """Lock the log directories by `LogDirLocks`; return its fds, which hold the locks. Raises FatalError."""
    return LogDirLocks(config).fds


class LogDirLocks:
    """Creates missing log directories and locks all. A lock is held while any process has its fd (`fds`).

    If a directory cannot be locked, the created files are removed and FatalError is raised.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.fds: list[int] = []
        self._made_locks: list[Path] = []
        self._made_dirs: list[Path] = []
        try:
            for name in config.log_dirs:
                self._lock(Path(name))
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Remove the files and directories that this object created, and release the locks.

        A leftover directory with a lock file would be in the way of a mount or a restored backup. A lock file
        is removed while its lock is held: see `_is_there`.
        """
        for path in self._made_locks:
            path.unlink(missing_ok=True)
        remove_empty(self._made_dirs)
        for fd in self.fds:
            os.close(fd)
        self.fds, self._made_locks, self._made_dirs = [], [], []

    def _lock(self, directory: Path) -> None:
        while True:
            lock = directory / LOCK
            try:
                self._made_dirs += make_directory(directory)
                is_new = not lock.exists()
                fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise FatalError(f"log.dirs: cannot use {directory}: {_why(error, directory)}") from error
            self.fds.append(fd)
            _take(fd, directory)
            if _is_there(fd, lock):
                break
            os.close(self.fds.pop())
        if is_new:
            self._made_locks.append(lock)


def _why(error: OSError, directory: Path) -> str:
    """Return a text that says why the directory cannot be used and what to do."""
    reason = os.strerror(error.errno or 0)
    if error.errno in NO_ROOM:
        return f"{reason}. Make room"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        file = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
        reason = f"{file} is not a directory" if file != directory else "it is not a directory"
        return f"{reason}. Name one, or a path where one can be made"
    advice = "Name a directory that this user may write"
    return f"{reason}. {advice}, or run this as its owner" if directory.is_dir() else f"{reason}. {advice}"


def _take(fd: int, directory: Path) -> None:
    """Lock `fd`, the directory's open `.lock`. Wait briefly for a killed broker's end. Raises FatalError."""
    begun = time.monotonic()
    try:
        while not take(fd):
            holder = locked_by(directory)
            if time.monotonic() - begun >= (READERS_PATIENCE_S if holder else LOCK_PATIENCE_S):
                raise FatalError(
                    f"log.dirs: {directory} is locked by another broker{holder}. Stop that broker, or give "
                    "this one its own directory with --log-dirs"
                )
            time.sleep(LOCK_POLL_S)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise FatalError(f"log.dirs: cannot lock {directory}: {why}") from error


def _is_there(fd: int, lock: Path) -> bool:
    """Return whether `lock` is still the open file's name. Another broker's `undo` may have removed it."""
    try:
        return os.path.samestat(os.fstat(fd), lock.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def restricted_new_files() -> Iterator[None]:
    """Set the umask in this context: new directories get mode 0750, new files 0640; the group can read."""
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def open_modes(config: BrokerConfig) -> Iterator[str]:
    """Yield a warning for each log directory that other users may access (older versions made such)."""
    for directory in map(Path, config.log_dirs):
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(directory.stat().st_mode)
            if mode & UMASK:
                may = "write" if mode & 0o022 else "read"
                yield (
                    f"log.dirs: other users may {may} {directory} (mode {mode:04o}). "
                    f"Run chmod -R g-w,o= {shlex.quote(str(directory))}"
                )


def make_directory(directory: Path, mode: int = 0o777) -> list[Path]:
    """Create a directory and its parents; return the created ones, the deepest first. Raises OSError."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode, parents=True, exist_ok=True)
    return missing


def remove_empty(directories: Iterable[Path]) -> None:
    """Remove the directories that are empty, the deepest first."""
    for directory in sorted(directories, key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):
            directory.rmdir()


def locked_by(directory: Path) -> str:
    """Return " (mpbroker, pid 7)" or the like for the broker that has locked the directory; "" if unknown.

    Returns "" also for an mpbroker that is starting: it has not written its pid yet, and the file may still
    have the pid of a dead broker.
    """
    try:
        other = holder_of(directory / LOCK)
        if other is not None and not other.is_mpbroker:
            where = f"pid {other.pid}" if other.pid else "in another container"
            return f" (Apache Kafka, {where})"
        pointer = read_pointer(directory)
    except (OSError, msgspec.DecodeError):
        return ""
    if pointer is None or not Path(f"/proc/{pointer.pid}").exists():
        return ""
    return f" (mpbroker, pid {pointer.pid})"
