"""The lock on a log directory's `.lock`, which brokers of both kinds see (Kafka: FileLock).

mpbroker takes two locks on the same open file: flock(2), which flock(1) of a shell can test, and a lock
of fcntl(2), which Java's FileChannel.tryLock takes on all bytes. The second is an open file description lock,
which lives as long as a process has this very open file. A lock of the process, as Java takes it, would end
when the process closes any descriptor of the file, and no child would have it.

One byte of the lock is enough against Java. It is not one of those that the workers of a recovery lock
(mpbroker.log.recovery.workers).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from mpbroker.ipc.pointer import LOCK

LOCKED_BYTE: Final = 1 << 32
_FLOCK: Final = struct.Struct("@hhqqi4x")
"""struct flock: type, whence, start, length, pid."""
_OF_A_DESCRIPTION: Final = -1
"""The pid of a lock that no process has, but an open file description."""


class Holder(NamedTuple):
    """Names the holder of the lock of fcntl(2).

    `pid` is 0 if it is unknown: of a process in another container, or of mpbroker, whose lock has no process.
    """

    is_mpbroker: bool
    pid: int


def take(fd: int) -> bool:
    """Take both locks; return False, with neither, if somebody has one. Raises OSError."""
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
    """Return who has the lock of fcntl(2) on the file; None if nobody has, or there is no such file.

    Takes nothing. Not for a process that has a lock of the process on the file: it would lose that. Raises
    OSError.
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


def has_broker(log_dir: Path) -> bool:
    """Return whether a broker, ours or Kafka's, has locked the directory, in whatever container it runs.

    Raises OSError.
    """
    lock = log_dir / LOCK
    try:
        return holder_of(lock) is not None
    except PermissionError:
        # This user may not open the file. The kernel lists the locks of this container.
        found = lock.stat()
        name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        return any(name in line.split() for line in Path("/proc/locks").read_text("ascii").splitlines())
    except OSError as error:
        # A broker does not start where nothing can be locked.
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        return False


def _wanted() -> bytes:
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCKED_BYTE, 1, 0)


def _is_taken(error: OSError) -> bool:
    return error.errno in (errno.EAGAIN, errno.EACCES)
