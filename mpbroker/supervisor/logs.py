"""One log line format for all processes: time, level, process, message.

It goes to stderr, for systemd and terminals. Messages quote what clients have sent, so nothing in one ends
the line or reaches a terminal as an escape sequence.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from mpbroker.protocol.printable import printable, shortened
from shm.word import Words

LEVEL_VARIABLE = "MPBROKER_LOG_LEVEL"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

# A request has names of up to 32,767 bytes, and many of them.
MESSAGE_LENGTH_MAX = 16_384

_name = "supervisor"


class _Prefix(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.process_name = _name
        return True


def written(text: str) -> str:
    """Return a text as the log has it: escaped, and about MESSAGE_LENGTH_MAX characters long at most."""
    return shortened(printable(shortened(text, MESSAGE_LENGTH_MAX)), MESSAGE_LENGTH_MAX)


class _Formatter(logging.Formatter):
    """Writes each record in one line. The lines of its traceback follow, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = written(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Indent all lines: an exception may quote a text with a line break and what looks like a line."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {written(line)}" for line in lines)


def wanted_level(environment: Mapping[str, str]) -> str:
    """Return the level that the environment asks for. Raises ValueError if there is no such level."""
    text = environment.get(LEVEL_VARIABLE, "INFO")
    if text.upper() not in LEVELS:
        raise ValueError(f"{LEVEL_VARIABLE}={text}: the level is one of {', '.join(LEVELS)}")
    return text.upper()


def configure(level: str = "INFO") -> None:
    """Set up logging. Call it once, before the first fork."""
    out = logging.StreamHandler(sys.stderr)
    out.addFilter(_Prefix())
    out.setFormatter(_Formatter("%(asctime)s %(levelname)s [%(process_name)s] %(message)s"))
    root = logging.getLogger("mpbroker")
    root.handlers[:] = [out]
    root.setLevel(level)
    root.propagate = False


class _Live(logging.Logger):
    """A logger that heeds the level set by clients at once, in all processes (ipc.log_levels)."""

    word: ClassVar[Words]

    def getEffectiveLevel(self) -> int:  # noqa: N802
        return self.word.load(0) or super().getEffectiveLevel()

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        """Compute the answer anew: logging's cache would miss a change by another process."""
        return level >= self.getEffectiveLevel()


def follow(word: Words) -> None:
    """Make the logger heed the shared level. Call it before the first fork.

    All modules hold the logger already, so its class is replaced.
    """
    _Live.word = word
    logging.getLogger("mpbroker").__class__ = _Live


def set_process_name(name: str) -> None:
    """Set the name in this process's log lines. Call it in a child, after the fork."""
    global _name
    _name = name
