"""One log line format for all processes: time, level, who, what; on stderr, for systemd and terminals."""

from __future__ import annotations

import logging
import sys

_name = "supervisor"


class _Prefix(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.process_name = _name
        return True


def configure(level: str = "INFO") -> None:
    """Called once, before the first fork."""
    out = logging.StreamHandler(sys.stderr)
    out.addFilter(_Prefix())
    out.setFormatter(logging.Formatter("%(asctime)s %(levelname)s [%(process_name)s] %(message)s"))
    root = logging.getLogger("mpbroker")
    root.handlers[:] = [out]
    root.setLevel(level)
    root.propagate = False


def set_process_name(name: str) -> None:
    """In a child, after the fork."""
    global _name
    _name = name
