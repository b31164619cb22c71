"""The runtime directory, on a tmpfs: it has a running broker's public memory region and control socket."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import time
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.environment import RUNTIME_DIR
from mpbroker.config.listeners import PATH_BYTES_MAX
from mpbroker.ipc.pointer import CONTROL_NAME
from mpbroker.ipc.process import FatalError
from mpbroker.storage.directory_lock import LOCK_POLL_S, READERS_PATIENCE_S, make_directory, remove_empty
from shm.ownership import UntrustedPath, check_path
from shm.region import refuse_disk

log = logging.getLogger("mpbroker.supervisor")


def check(config: BrokerConfig) -> Path:
    """Return the path of this broker's directory: MPBROKER_RUNTIME_DIR, else systemd's, else one in /dev/shm.

    Do not make the directory. Raises FatalError, RegionUnavailable.
    """
    named = _named()
    mark = hashlib.sha256(str(Path(config.log_dirs[0]).resolve()).encode()).hexdigest()[:12]
    directory = (
        Path(named) if named else Path(f"/dev/shm/mpbroker-{os.getuid()}") / f"{config.node_id}-{mark}"
    )
    if len(os.fsencode(directory / CONTROL_NAME)) > PATH_BYTES_MAX:
        raise FatalError(
            f"the runtime directory {directory} has too long a name for a socket in it. "
            "Name another in MPBROKER_RUNTIME_DIR"
        )
    refuse_disk(directory)
    return directory


def make(config: BrokerConfig) -> tuple[Path, list[Path]]:
    """Make the directory. Return (its path, all directories that were made, the deepest first).

    Raises FatalError, RegionUnavailable.
    """
    directory = check(config)
    try:
        made = make_directory(directory, 0o750)
    except OSError as error:
        raise FatalError(
            f"cannot make the runtime directory {directory}: {error.strerror}. "
            "Name another in MPBROKER_RUNTIME_DIR"
        ) from error
    try:
        check_path(directory, os.getuid())
    except UntrustedPath as error:
        remove_empty(made)
        raise FatalError(
            f"the runtime directory {directory} is not safe: {error}. Or name another in MPBROKER_RUNTIME_DIR"
        ) from error
    return directory, made


def claim(directory: Path) -> int:
    """Lock the directory for as long as the returned fd is open. Raises FatalError.

    Two brokers in one directory would remove each other's memory region and socket.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    give_up_at = time.monotonic() + READERS_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EAGAIN and time.monotonic() < give_up_at:
                # A reader of the log directories may just be testing whether a broker is here.
                time.sleep(LOCK_POLL_S)
                continue
            os.close(fd)
            if error.errno != errno.EAGAIN:
                raise FatalError(
                    f"cannot lock the runtime directory {directory}: {error.strerror}"
                ) from error
            raise FatalError(
                f"the runtime directory {directory} is in use by another broker. Give each its own in "
                "MPBROKER_RUNTIME_DIR, or leave that unset"
            ) from error
        return fd


def remove(directory: Path) -> None:
    """Remove the directory, unless the operator or systemd named it. Log a failure."""
    if _named():
        return
    try:
        directory.rmdir()
    except OSError as error:
        log.warning("cannot remove the runtime directory %s: %s", directory, error.strerror)


def _named() -> str:
    """Return the directory that the operator or systemd named; "" if neither did."""
    return os.environ.get(RUNTIME_DIR) or os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
