"""Where the lines of the audit log go: into a file of their own, or into the broker's log.

Several processes append to the file, each line with one write(2) to a descriptor with O_APPEND, so that no
line is torn. The path is looked at before each line: whoever rotates the file by renaming it loses nothing,
and needs to tell nobody. A line that cannot be written stands in the broker's log instead.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.security.audit import Audit, Event, LeftOut, as_json, as_text, line

# Kafka's name for refusals. It has all of the audit, whatever the level of the broker's log is.
log = logging.getLogger("mpbroker.kafka.authorizer.logger")
log.setLevel(logging.INFO)
_broker_log = logging.getLogger("mpbroker")

MODE: Final = 0o640
COMPLAINTS_EVERY_NS: Final = 60_000_000_000


class AppendedFile:
    """A file that several processes append lines to."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._file = (0, 0)  # device and inode

    def append(self, text: str) -> None:
        """Append a line. Raises OSError if it is not, or not whole, in the file."""
        self.follow()
        data = text.encode("utf-8", "replace") + b"\n"
        if self._ends_within_a_line():
            data = b"\n" + data
        if os.write(self._fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _ends_within_a_line(self) -> bool:
        """Return whether a full disk has cut a line off, which must not run into the next one.

        A line that another process is writing may look so too. Then an empty line comes of it at worst.
        """
        size = -1
        while size != (now := os.fstat(self._fd).st_size):
            size = now
            if not size or os.pread(self._fd, 1, size - 1) in (b"\n", b""):
                return False
        return True

    def follow(self) -> None:
        """Open the file that the path names now, if another one is open or none. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            found = Path(self.path).stat()
            if self._fd >= 0 and (found.st_dev, found.st_ino) == self._file:
                return
        self.close()
        fd = self._open()
        opened = os.fstat(fd)
        if not stat.S_ISREG(opened.st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "it is no regular file")
        self._fd, self._file = fd, (opened.st_dev, opened.st_ino)

    def _open(self) -> int:
        # O_NONBLOCK: a pipe that nobody reads must not hold up the process; O_RDWR: to see how it ends.
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        with contextlib.suppress(FileNotFoundError):
            return os.open(self.path, flags)
        try:
            fd = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, MODE)
        except FileExistsError:
            return os.open(self.path, flags)  # another process was faster
        os.fchmod(fd, MODE)  # whatever the umask is
        return fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class AuditLog:
    """The lines of one process, in the file and the form that `config` names now."""

    def __init__(
        self,
        config: BrokerConfig,
        now_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._config = config
        self._now_ns = now_ns
        self._wall_ns = wall_ns
        self._file: AppendedFile | None = None
        self._complain_at_ns = 0

    def write(self, told: Event | LeftOut) -> None:
        """Write a line. A file that cannot be written is complained of now and then; nothing is raised."""
        if not self._into_file(told):
            in_json = self._config.audit_log_format == "json"
            log.info("audit: %s", as_json(told) if in_json else as_text(told))

    def _into_file(self, told: Event | LeftOut) -> bool:
        path = self._config.audit_log_file
        if self._file is not None and self._file.path != path:
            self._file.close()
            self._file = None
        if not path:
            return False
        if self._file is None:
            self._file = AppendedFile(path)
        try:
            self._file.append(line(told, self._config.audit_log_format, self._wall_ns() // 1_000_000))
        except OSError as error:
            if self._now_ns() >= self._complain_at_ns:
                self._complain_at_ns = self._now_ns() + COMPLAINTS_EVERY_NS
                _broker_log.warning("%s", _complaint(path, error))
            return False
        return True


def audit_of(config: BrokerConfig) -> Audit:
    """Return the audit of a process that has this configuration."""
    return Audit(config, AuditLog(config).write)


def problem(config: BrokerConfig) -> str | None:
    """Return why the audit log cannot be written, None if it can be. Makes the file."""
    if not config.audit_log_file or config.audit_log_level == "OFF":
        return None
    file = AppendedFile(config.audit_log_file)
    try:
        file.follow()
    except OSError as error:
        return _complaint(config.audit_log_file, error)
    file.close()
    return None


def _complaint(path: str, error: OSError) -> str:
    return (
        f"audit.log.file={path} cannot be written: {error.strerror}. Its lines stand in this log until it "
        "can be: make room, or a directory that the broker's user may write"
    )
