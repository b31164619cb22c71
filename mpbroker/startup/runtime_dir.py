"""The directory on a tmpfs for what lives only while the broker runs: public region and control socket."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.environment import RUNTIME_DIR
from mpbroker.config.listeners import PATH_BYTES_MAX, Listener
from mpbroker.ipc.pointer import CONTROL_NAME, POINTER_NAME, Pointer, read_pointer, write_pointer
from mpbroker.ipc.process import FatalError
from mpbroker.storage.directory_lock import LOCK_POLL_S, READERS_PATIENCE_S, make_directory, remove_empty
from mpbroker.storage.names import CLEAN_SHUTDOWN
from shm.ownership import UntrustedPath, check_path
from shm.region import refuse_disk

RETRY_S = 2.0

log = logging.getLogger("mpbroker.supervisor")


def check(config: BrokerConfig) -> Path:
    """Return this broker's own directory: MPBROKER_RUNTIME_DIR, else systemd's, else below /dev/shm.

    Makes nothing. Raises FatalError, RegionUnavailable.
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
    """Make the directory. Return it, and what was made for it, the lowest first.

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
    """Lock the directory while the returned fd is open. Raises FatalError.

    Two brokers in one directory would take each other's region and socket away.
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


def tell_of_unclean_end(config: BrokerConfig) -> None:
    """Log if a pointer was left: the last broker's supervisor did not come to its end.

    Call it with the log directories locked: no process of that broker is there any more.
    """
    for log_dir in map(Path, config.log_dirs):
        try:
            left = read_pointer(log_dir)
        except (OSError, msgspec.DecodeError) as error:
            log.info("%s was left and cannot be read (%s); it is replaced", log_dir / POINTER_NAME, error)
            continue
        if left is None:
            continue
        is_clean = (log_dir / CLEAN_SHUTDOWN).exists()
        log.info(
            "%s: the last broker (supervisor %d) did not end in order: it was killed, the host went down, or "
            "this is a copy. None of its processes is left; %s",
            log_dir,
            left.pid,
            "they closed the log cleanly" if is_clean else "the log was left open and is recovered",
        )


class Pointers:
    """The files that tell tools and Spark, which know the log directory, where the broker is.

    A full disk must not keep a broker from serving what it has, and from deleting it: a pointer that cannot
    be written is tried again while the broker runs.
    """

    def __init__(self, config: BrokerConfig, directory: Path, http: str = "") -> None:
        self._pointer = Pointer(str(directory), os.getpid(), config.node_id, http=http)
        self._log_dirs = config.log_dirs
        self._missing = list(config.log_dirs)
        self._next_s = 0.0
        self.name(config.listeners)

    def name(self, listeners: Iterable[Listener]) -> None:
        """Name these listeners, which are bound, from the next `write` on."""
        addresses = {one.name: str(one).partition("://")[2] for one in listeners}
        if addresses != self._pointer.listeners:
            self._pointer.listeners = addresses
            self._missing = list(self._log_dirs)
            self._next_s = 0.0

    def write(self) -> None:
        """Write the missing pointers, if it is time. Call it often."""
        if not self._missing or time.monotonic() < self._next_s:
            return
        is_again, self._next_s = self._next_s > 0, time.monotonic() + RETRY_S
        for log_dir in list(self._missing):
            try:
                write_pointer(Path(log_dir), self._pointer)
            except OSError as error:
                if not is_again:
                    log.warning(
                        "cannot write %s: %s. Until there is room mpbroker ctl and Spark do not find the "
                        "broker by %s; it is tried again every %d s",
                        Path(log_dir) / POINTER_NAME,
                        error.strerror,
                        log_dir,
                        RETRY_S,
                    )
                continue
            self._missing.remove(log_dir)
            if is_again:
                log.info("%s was written", Path(log_dir) / POINTER_NAME)


def remove_pointers(config: BrokerConfig) -> None:
    """Remove the pointers. One that stays does no harm: the region that it names is gone."""
    for path in (Path(log_dir) / POINTER_NAME for log_dir in config.log_dirs):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s stays: %s", path, error.strerror)


def remove(directory: Path) -> None:
    """Remove the directory if it was made here and is empty. The log directories are still locked."""
    if _named():
        return
    try:
        directory.rmdir()
    except OSError as error:
        log.warning("the runtime directory %s stays: %s", directory, error.strerror)


def _named() -> str:
    """Return the directory that the operator or systemd named, or ""."""
    return os.environ.get(RUNTIME_DIR) or os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
