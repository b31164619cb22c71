"""The broker's log: one line for each event, from all processes, to stderr, for people or for machines.

A line of text has time, level, process and message. A line of JSON has these as an object (`LogFormat`). If
journald reads stderr (`JOURNAL_STREAM`, systemd.exec(5)), each line begins with its priority (sd-daemon(3)),
and text has no time, because journald adds the time. Messages quote texts from clients, so line breaks and
escape sequences in messages are escaped.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar

from mpbroker.config.environment import LOG_FORMAT, LOG_LEVEL
from mpbroker.ipc.log_levels import ALL, LOGGERS, given_level, inherited_words
from mpbroker.protocol.printable import printable, shortened
from shm.word import Words

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

# A request has names of up to 32,767 bytes, and many of them.
MESSAGE_LENGTH_MAX = 16_384

_name = "supervisor"


class LogFormat(StrEnum):
    """Log formats. JSON has time (RFC 3339, UTC), level, process, pid, logger, message, any exception."""

    TEXT = "text"
    JSON = "json"


class _ProcessName(logging.Filter):
    """Adds the name of the process to each record as `process_name`, for the formats."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.process_name = _name
        return True


def written(text: str) -> str:
    """Return a text as the log shows it: escaped, and cut to about MESSAGE_LENGTH_MAX characters."""
    return shortened(printable(shortened(text, MESSAGE_LENGTH_MAX)), MESSAGE_LENGTH_MAX)


class _TextFormatter(logging.Formatter):
    """Writes each record in one line. The lines of a traceback follow, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = written(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Indent all lines of a traceback, because an exception may quote a text that imitates a log line."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {written(line)}" for line in lines)


class _JsonFormatter(logging.Formatter):
    """Writes each record as one line with one JSON object in ASCII, its traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        fields = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "process": record.__dict__.get("process_name", _name),
            "pid": record.process,
            "logger": record.name,
            "message": shortened(record.getMessage(), MESSAGE_LENGTH_MAX),
        }
        if record.exc_info:
            fields["exception"] = shortened(self.formatException(record.exc_info), MESSAGE_LENGTH_MAX)
        return json.dumps(fields)


class _JournalFormatter(logging.Formatter):
    """Puts journald's priority before each line that the formatter `lines` writes."""

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_priority(record.levelno)}>"
        return "\n".join(prefix + line for line in self._lines.format(record).split("\n"))


def _priority(level: int) -> int:
    """Return the priority of syslog(3) for a level of `logging`."""
    steps = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
    return next((priority for least, priority in steps if level >= least), 7)


def wanted_level(environment: Mapping[str, str]) -> str:
    """Return the log level that the environment names, by default INFO. Raises ValueError."""
    text = environment.get(LOG_LEVEL, "INFO")
    if text.upper() not in LEVELS:
        raise ValueError(f"{LOG_LEVEL}={text}: the level is one of {', '.join(LEVELS)}")
    return text.upper()


def wanted_format(environment: Mapping[str, str], flag: str | None = None) -> LogFormat:
    """Return the log format that `flag` (--log-format) or the environment names. Raises ValueError."""
    text = environment.get(LOG_FORMAT) or LogFormat.TEXT if flag is None else flag
    try:
        return LogFormat(text)
    except ValueError:
        origin = LOG_FORMAT if flag is None else "--log-format"
        raise ValueError(f"{origin}={text}: the format is one of {', '.join(LogFormat)}") from None


def is_journal(environment: Mapping[str, str], fd: int) -> bool:
    """Return whether journald reads `fd`, by the device and inode in JOURNAL_STREAM.

    It is not enough that the variable is set: a shell may have redirected the output of a service.
    """
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))


def formatter(log_format: LogFormat, *, to_journal: bool) -> logging.Formatter:
    lines: logging.Formatter
    if log_format is LogFormat.JSON:
        lines = _JsonFormatter()
    else:
        time = "" if to_journal else "%(asctime)s "
        lines = _TextFormatter(f"{time}%(levelname)s [%(process_name)s] %(message)s")
    return _JournalFormatter(lines) if to_journal else lines


def handler(log_format: LogFormat) -> logging.Handler:
    """Return a handler that writes records to stderr in this format, with priorities for journald."""
    out = logging.StreamHandler(sys.stderr)
    out.addFilter(_ProcessName())
    out.setFormatter(formatter(log_format, to_journal=is_journal(os.environ, 2)))
    return out


def configure(level: str = "INFO", log_format: LogFormat = LogFormat.TEXT) -> None:
    """Set up logging. Call it once, before the first fork."""
    root = logging.getLogger(ALL)
    root.handlers[:] = [handler(log_format)]
    root.setLevel(level)
    root.propagate = False


class _FollowingLogger(logging.Logger):
    """A logger whose level clients can change at any time, in all processes at once (ipc.log_levels)."""

    words: ClassVar[Words]

    def getEffectiveLevel(self) -> int:  # noqa: N802
        indices = self.__dict__.get("indices")
        if indices is None:
            indices = self.__dict__["indices"] = inherited_words(self.name)
        return given_level(self.words, indices) or super().getEffectiveLevel()

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        """Return whether the level is enabled. Not cached, because other processes may change the level."""
        return level >= self.getEffectiveLevel()


def follow(words: Words) -> None:
    """Make all loggers use the levels in shared memory. Call it before the first fork.

    Modules already hold their logger objects, so this replaces the class of these objects.
    """
    _FollowingLogger.words = words
    for name in LOGGERS:
        logging.getLogger(name).__class__ = _FollowingLogger


def set_process_name(name: str) -> None:
    """Set the process name in the log lines of this process. Call it in a child, after the fork."""
    global _name
    _name = name
