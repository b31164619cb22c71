"""The pointer files in log directories, by which tools and Spark find the running broker."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.ipc.pointer import POINTER_NAME, Pointer, read_pointer, write_pointer
from mpbroker.storage.names import CLEAN_SHUTDOWN

RETRY_S = 2.0

log = logging.getLogger("mpbroker.supervisor")


def report_unclean_end(config: BrokerConfig) -> None:
    """Log each leftover pointer. It means that the last broker's supervisor was killed or crashed.

    Call it after locking the log directories, so that no process of the last broker remains.
    """
    for log_dir in map(Path, config.log_dirs):
        try:
            left = read_pointer(log_dir)
        except (OSError, msgspec.DecodeError) as error:
            log.info("%s cannot be read (%s); it is replaced", log_dir / POINTER_NAME, error)
            continue
        if left is None:
            continue
        is_clean = (log_dir / CLEAN_SHUTDOWN).exists()
        log.info(
            "%s: the last broker (supervisor %d) did not end in order: it was killed, the host went down, or "
            "this is a copy. None of its processes runs; %s",
            log_dir,
            left.pid,
            "those that outlived the supervisor closed the log cleanly"
            if is_clean
            else "they left the log open, and it is recovered",
        )


class Pointers:
    """The pointer files of this broker.

    A broker with a full disk must still serve and delete records. Therefore a pointer that cannot be written
    is no error, and `write` retries it.
    """

    def __init__(self, config: BrokerConfig, directory: Path, http: str = "") -> None:
        self._pointer = Pointer(str(directory), os.getpid(), config.node_id, http=http)
        self._log_dirs = config.log_dirs
        self._missing = list(config.log_dirs)
        self._next_s = 0.0
        self.name(config.listeners)

    def name(self, listeners: Iterable[Listener]) -> None:
        """Set the bound listeners of the pointer files. If any differs, the next `write` writes the files."""
        addresses = {one.name: str(one).partition("://")[2] for one in listeners}
        if addresses != self._pointer.listeners:
            self._pointer.listeners = addresses
            self._missing = list(self._log_dirs)
            self._next_s = 0.0

    def write(self) -> None:
        """Write new and changed pointers; retry a failed one after RETRY_S. Call it often."""
        if not self._missing or time.monotonic() < self._next_s:
            return
        is_again, self._next_s = self._next_s > 0, time.monotonic() + RETRY_S
        for log_dir in list(self._missing):
            try:
                write_pointer(Path(log_dir), self._pointer)
            except OSError as error:
                if not is_again:
                    log.warning(
                        "cannot write %s: %s. mpbroker ctl and Spark do not find the broker by %s until it "
                        "is written; the write is retried every %d s",
                        Path(log_dir) / POINTER_NAME,
                        error.strerror,
                        log_dir,
                        RETRY_S,
                    )
                continue
            self._missing.remove(log_dir)
            if is_again:
                log.info("%s was written", Path(log_dir) / POINTER_NAME)

    def remove(self) -> None:
        """Remove the pointers. A leftover pointer does no harm: its shared memory no longer exists."""
        for path in (Path(log_dir) / POINTER_NAME for log_dir in self._log_dirs):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("cannot remove %s: %s", path, error.strerror)
