"""The writer of the audit log: to a file, to journald, or to the broker's log.

Several processes append to the file. Each line is one write(2) to a descriptor with O_APPEND, so that lines
do not mix. The path is checked before each line, so a rotation by renaming loses nothing and needs no signal.
If the path is a socket, each line is a datagram in journald's native protocol
(https://systemd.io/JOURNAL_NATIVE_PROTOCOL). A line that cannot be written goes to the broker's log instead.
When the file can be written again, a first line there reports the number of missing lines.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.security.audit import Audit, Entry, Gap, as_json, as_text, line

# Kafka's name for refusals. It has all of the audit, whatever the level of the broker's log is.
log = logging.getLogger("mpbroker.kafka.authorizer.logger")
log.setLevel(logging.INFO)
_broker_log = logging.getLogger("mpbroker.security")

MODE: Final = 0o640
# A file that fails now and then is complained of no more often than this.
COMPLAINTS_EVERY_NS: Final = 60_000_000_000
JOURNAL_IDENTIFIER: Final = "mpbroker-audit"
_INFO, _WARNING = 6, 4  # journald's priorities, syslog's


class AppendedFile:
    """A file to which several processes append lines."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._file = (0, 0)  # device and inode

    def append(self, text: str) -> None:
        """Append a line. Raises OSError if the line was not written completely."""
        self.follow()
        data = text.encode("utf-8", "replace") + b"\n"
        if self._ends_within_a_line():
            data = b"\n" + data
        if os.write(self._fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _ends_within_a_line(self) -> bool:
        """Return whether the file's last line is incomplete, as after a full disk, and needs a line break.

        True is possible also while another process writes a line. Then the line break adds a blank line.
        """
        size = -1
        while size != (now := os.fstat(self._fd).st_size):
            size = now
            if not size or os.pread(self._fd, 1, size - 1) in (b"\n", b""):
                return False
        return True

    def follow(self) -> None:
        """Open the file that is at the path now, unless it is open already. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            found = Path(self.path).stat()
            if self._fd >= 0 and (found.st_dev, found.st_ino) == self._file:
                return
        self.close()
        fd = self._open()
        opened = os.fstat(fd)
        if not stat.S_ISREG(opened.st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "it is neither a regular file nor a socket")
        self._fd, self._file = fd, (opened.st_dev, opened.st_ino)

    def _open(self) -> int:
        # O_NONBLOCK: a pipe without a reader must not hold up the process; O_RDWR: to read the last byte.
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


class Journal:
    """The socket of journald. The journal adds the sending process and unit to each message."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        # A journal that does not keep up must not hold up the process.
        self._socket.setblocking(False)

    def append(self, text: str, priority: int) -> None:
        """Send a printable line with a syslog priority. Raises OSError if it cannot be sent at once."""
        fields = f"SYSLOG_IDENTIFIER={JOURNAL_IDENTIFIER}\nPRIORITY={priority}\nMESSAGE={text}\n"
        self._socket.sendto(fields.encode(), self.path)

    def follow(self) -> None:
        """Check that a process reads from the socket. Raises OSError."""
        self._socket.connect(self.path)

    def close(self) -> None:
        self._socket.close()


def _open(path: str) -> AppendedFile | Journal:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(Path(path).stat().st_mode):
            return Journal(path)
    return AppendedFile(path)


class AuditLog:
    """The audit log of one process. `config()` returns the settings, with the file and the form of lines."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        now_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._config = config
        self._now_ns = now_ns
        self._wall_ns = wall_ns
        self._path = ""
        self._out: AppendedFile | Journal | None = None
        self._missing = 0  # lines that the file does not have
        self._why = ""
        self._is_told = False  # of the lines that are missing now
        self._complain_at_ns = 0

    def write(self, entry: Entry) -> None:
        """Write a line, to the broker's log if need be. A failure is logged once and raises nothing."""
        if not self._into_file(entry):
            log.info("audit: %s", self._body(entry))

    def _body(self, entry: Entry) -> str:
        return as_json(entry) if self._config().audit_log_format == "json" else as_text(entry)

    def _into_file(self, entry: Entry) -> bool:
        path = self._config().audit_log_file
        if path != self._path:
            self.close()
            self._path, self._missing, self._is_told, self._complain_at_ns = path, 0, False, 0
        if not path:
            return False
        try:
            if self._missing:
                self._append(Gap(self._missing, self._why))
                _broker_log.info(
                    "audit.log.file=%s is written again: %d line(s) are in this log alone",
                    path,
                    self._missing,
                )
                self._missing, self._is_told = 0, False
            self._append(entry)
        except OSError as error:
            self._miss(error)
            return False
        return True

    def _append(self, entry: Entry) -> None:
        if self._out is None:
            self._out = _open(self._path)
        if isinstance(self._out, Journal):
            is_refusal = isinstance(entry, Gap) or entry.kind.is_refusal
            self._out.append(self._body(entry), _WARNING if is_refusal else _INFO)
        else:
            self._out.append(line(entry, self._config().audit_log_format, self._wall_ns() // 1_000_000))

    def _miss(self, error: OSError) -> None:
        """Count a line that could not be written; log the first failure."""
        self.close()
        self._missing += 1
        self._why = error.strerror or str(error)
        if not self._is_told and self._now_ns() >= self._complain_at_ns:
            self._is_told = True
            self._complain_at_ns = self._now_ns() + COMPLAINTS_EVERY_NS
            _broker_log.warning("%s", _complaint(self._path, error))

    def close(self) -> None:
        """Close the file. The next line opens it again."""
        if self._out is not None:
            self._out.close()
            self._out = None


def audit_of(config: BrokerConfig) -> Audit:
    """Return a process's audit. It reads its settings from `config`, which the process updates in place."""
    return Audit(lambda: config, AuditLog(lambda: config).write)


def problem(config: BrokerConfig) -> str | None:
    """Return why the audit log cannot be written, None if it can. Creates the file if it is missing."""
    if not config.audit_log_file or config.audit_log_level == "OFF":
        return None
    try:
        with contextlib.closing(_open(config.audit_log_file)) as out:
            out.follow()
    except OSError as error:
        return _complaint(config.audit_log_file, error)
    return None


def _complaint(path: str, error: OSError) -> str:
    return (
        f"audit.log.file={path} cannot be written: {error.strerror}. Its lines are in this log until it can "
        "be: make room, or a directory that the broker's user may write"
    )
