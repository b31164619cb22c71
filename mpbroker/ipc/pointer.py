"""The pointer `mpbroker.json` in each log directory: the addresses of the broker that uses the directory.

The supervisor writes the file; `mpbroker ctl` and Spark read it when they know only the log directory. A
broker uses a log directory for as long as it holds the lock of the file `.lock` there.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

from mpbroker.ipc.replaced_files import read_json, write_json

POINTER_NAME = "mpbroker.json"
LOCK = ".lock"
# Names of files in the runtime directory that the pointer names.
PUBLIC_NAME = "public"
CONTROL_NAME = "control.sock"

_NO_LOCKS_THERE: Final = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


class Pointer(msgspec.Struct):
    """The content of `mpbroker.json`.

    `pid` is the process id of the supervisor. `listeners` has the address of each listener by the listener's
    name: `host:port`, with the real port if 0 was configured, or `unix:/path`. `http` is the address of the
    HTTP server, "" without one.
    """

    runtime_dir: str
    pid: int
    node_id: int
    listeners: dict[str, str] = {}
    http: str = ""


def write_pointer(log_dir: Path, pointer: Pointer) -> None:
    write_json(log_dir / POINTER_NAME, pointer)


def read_pointer(log_dir: Path) -> Pointer | None:
    """Return the pointer in a log directory, or None if the directory has none.

    Raises OSError, msgspec.DecodeError.
    """
    return read_json(log_dir / POINTER_NAME, Pointer)


def is_locked(path: Path) -> bool:
    """Return whether a process, in any container, has locked the file or directory. Raises OSError.

    The test takes a shared lock and releases it at once. A broker that starts meanwhile retries its lock.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        # No broker starts where nothing can be locked.
        if error.errno not in _NO_LOCKS_THERE:
            raise
    finally:
        os.close(fd)
    return False


def has_broker(log_dir: Path) -> bool:
    """Return whether mpbroker, in any container, uses the log directory. Raises OSError.

    It does not notice Apache Kafka, whose lock is another one: `mpbroker.storage.directory_lock.is_in_use`
    detects both brokers.
    """
    return is_locked(log_dir / LOCK)
