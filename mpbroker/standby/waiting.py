"""Tries again until the store and the disk answer, tells why it waits, and stops on a signal."""

from __future__ import annotations

import logging
import math
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from mpbroker.ipc.disk_problems import mebibytes
from mpbroker.remote.store.object_store import StoreError
from mpbroker.storage.disk_errors import NO_ROOM
from mpbroker.storage.names import FENCED
from mpbroker.supervisor.notify import Notifier

T = TypeVar("T")

LONGEST_WAIT_S: Final = 1.0
NOTE_EVERY_S: Final = 60.0
log = logging.getLogger("mpbroker.supervisor")


class Stopped(BaseException):
    """Raised when a signal ends the standby."""


class Waiting:
    """How a standby waits. `what` names who waits; `after_wait` is called after each wait."""

    def __init__(self, notifier: Notifier, log_dirs: Sequence[Path]) -> None:
        self.notifier = notifier
        self.what = "this standby"
        self.after_wait: Callable[[], object] = lambda: None
        self._log_dirs = log_dirs
        # What is waited for, and when that was logged.
        self._problem, self._noted_at_s = "", -math.inf
        self._stops = False
        self._signals = select.poll()

    def until_answered(self, do: Callable[[], T]) -> T:
        """Do something that needs the store, until it is done. Raises what is no matter of time."""
        while True:
            try:
                done = do()
            except (StoreError, OSError) as error:
                self.note(error)
                self.wait(LONGEST_WAIT_S)
            else:
                self.settled()
                return done

    def note(self, error: Exception) -> None:
        """Log a problem that may pass: a new one at once, the same one after a minute."""
        now_s, number = time.monotonic(), getattr(error, "errno", None)
        if str(error) == self._problem and now_s < self._noted_at_s + NOTE_EVERY_S:
            return
        self._problem, self._noted_at_s = str(error), now_s
        advice = ""
        if number in NO_ROOM:
            free = ", ".join(f"{one} {mebibytes(shutil.disk_usage(one).free)}" for one in self._log_dirs)
            advice = f". Make room (free: {free}); what is in {FENCED} may be deleted when it is not missed"
        log.warning("%s waits: %s%s", self.what, error, advice)
        self.notifier.status(f"{self.what} waits: {error}")

    def settled(self) -> None:
        """Tell that the problem has passed, if there was one."""
        if self._problem:
            self._problem = ""
            log.info("%s goes on", self.what)
            self.notifier.status(f"{self.what} goes on")

    def seen(self, count: int) -> None:
        """Tell systemd that this process lives, in what takes long. Raises Stopped if a signal has come."""
        if self._stops:
            raise Stopped
        if not count:
            self.after_wait()
        self.notifier.extend()
        if self.notifier.is_ping_due():
            self.notifier.ping()

    def wait(self, timeout_s: float) -> None:
        """Wait for LONGEST_WAIT_S at most, or raise Stopped once a signal has come."""
        if not self._stops:
            self._signals.poll(min(timeout_s, LONGEST_WAIT_S) * 1000)
        self.seen(0)

    def install_signals(self) -> None:
        """Have SIGTERM and SIGINT wake up `wait`, which raises Stopped then."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer)
        self._signals.register(reader, select.POLLIN)

        def stop(*_: object) -> None:
            self._stops = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
