"""The lock on a log directory's `.lock`, which brokers of both kinds see (Kafka: FileLock).

mpbroker takes two locks on the same open file. flock(2) is what readers of the directory look at. Java's
FileChannel.tryLock asks for a lock of fcntl(2) on all bytes, which does not see flock: so mpbroker takes one
of these too, as an open file description lock. Such a lock lives as long as a process has this very open
file. A lock of the process, which Java takes, would end when the process closes any descriptor of the file,
and no child would have it.

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


def _wanted() -> bytes:
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, LOCKED_BYTE, 1, 0)


def _is_taken(error: OSError) -> bool:
    return error.errno in (errno.EAGAIN, errno.EACCES)
