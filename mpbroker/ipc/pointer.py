"""`mpbroker.json` in each log directory: where the broker that uses the directory can be found while it runs.

Written by the supervisor; read by `mpbroker ctl` and by Spark, which know the log directory only. The broker
has the directory for as long as the file `.lock` in it is locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

import msgspec

POINTER_NAME = "mpbroker.json"
LOCK = ".lock"
# Names of files in the runtime directory that the pointer names.
PUBLIC_NAME = "public"
CONTROL_NAME = "control.sock"

_NO_LOCKS_THERE: Final = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


class Pointer(msgspec.Struct):
    """The content of the file.

    `pid` is the supervisor's. `listeners` has the address of each listener by its name, `host:port` or
    `unix:/path`, with the port that port 0 became; `http` that of metrics and health, "" if not served.
    """

    runtime_dir: str
    pid: int
    node_id: int
    listeners: dict[str, str] = {}
    http: str = ""


def write_pointer(log_dir: Path, pointer: Pointer) -> None:
    path = log_dir / POINTER_NAME
    making = path.with_suffix(".json.tmp")
    try:
        making.write_bytes(msgspec.json.encode(pointer) + b"\n")
        making.rename(path)
    except OSError:
        making.unlink(missing_ok=True)
        raise


def read_pointer(log_dir: Path) -> Pointer | None:
    """Read the pointer in a log directory; None if it has none: no broker runs on the directory.

    Raises OSError, msgspec.DecodeError.
    """
    try:
        return msgspec.json.decode((log_dir / POINTER_NAME).read_bytes(), type=Pointer)
    except FileNotFoundError:
        return None


def is_locked(path: Path) -> bool:
    """Return whether a process, in any container, has locked the file or directory. Raises OSError.

    The test takes a shared lock and releases it at once. A broker that starts in that moment tries again.
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

    Kafka takes no such lock (`mpbroker.storage.directory_lock.is_in_use` detects both).
    """
    return is_locked(log_dir / LOCK)
