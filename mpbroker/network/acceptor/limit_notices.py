"""Log lines about connections that a limit keeps out: one for each limit of a listener, and a minute later
the number of further ones. At DEBUG each connection has its line.

(Kafka: SocketServer logs "Rejected connection from …" for each connection beyond max.connections.per.ip, and
nothing about the other limits; neither helps a broker that is flooded.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

EVERY_MS = 60_000


@dataclass
class _Told:
    at_ms: float
    level: int
    more: int = 0


class LimitNotices:
    """The notices of one acceptor."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: dict[tuple[str, str], _Told] = {}

    def tell(
        self, now_ms: float, level: int, listener: str, limit: str, message: str, *arguments: object
    ) -> None:
        """Log that a connection met a limit: the first at `level`, further ones at DEBUG."""
        told = self._told.get((listener, limit))
        if told is None:
            self._told[listener, limit] = _Told(now_ms, level)
        else:
            told.more += 1
            level = logging.DEBUG
        self._log.log(level, message, *arguments)

    def follow(self, now_ms: float) -> None:
        """Sum up each minute that is over. Call it now and then."""
        over = [key for key, told in self._told.items() if now_ms >= told.at_ms + EVERY_MS]
        for listener, limit in over:
            told = self._told.pop((listener, limit))
            if told.more:
                text = "%d more connections on %s met %s in the last %d s"
                self._log.log(told.level, text, told.more, listener, limit, (now_ms - told.at_ms) / 1000)
                self._told[listener, limit] = _Told(now_ms, told.level)
