"""Log lines about connections that a limit delays or refuses; few lines even for many connections.

The first connection that meets a limit of a listener is logged. A minute later the number of further
connections that met this limit is logged. At DEBUG each of them is logged at once. (Kafka logs each
connection beyond max.connections.per.ip, and nothing about the other limits.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

EVERY_MS = 60_000


@dataclass
class _Logged:
    at_ms: float
    level: int
    more: int = 0


class LimitNotices:
    """The log lines of one process about connections that met a limit."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: dict[tuple[str, str], _Logged] = {}

    def report(
        self, now_ms: float, level: int, listener: str, limit: str, message: str, *arguments: object
    ) -> None:
        """Log that a connection met a limit: the first one of a minute at `level`, further ones at DEBUG."""
        logged = self._logged.get((listener, limit))
        if logged is None:
            self._logged[listener, limit] = _Logged(now_ms, level)
        else:
            logged.more += 1
            level = logging.DEBUG
        self._log.log(level, message, *arguments)

    def follow(self, now_ms: float) -> None:
        """Log how many more connections met a limit, a minute after its last log line. Call this often."""
        over = [key for key, logged in self._logged.items() if now_ms >= logged.at_ms + EVERY_MS]
        for listener, limit in over:
            logged = self._logged.pop((listener, limit))
            if logged.more:
                text = "%d more connections on %s met %s in the last %d s"
                seconds = (now_ms - logged.at_ms) / 1000
                self._log.log(logged.level, text, logged.more, listener, limit, seconds)
                self._logged[listener, limit] = _Logged(now_ms, logged.level)
