"""Log levels: words that clients alter and that all the broker's processes look at, until it stops.

`log_level` and `request_log` hold the level that somebody has given to root and to the request log; 0 means
as the broker was started. They are the exception to one writer per word: the supervisor writes them, and any
handler for a client. Each change is one store and nobody waits for another, so the last writer wins. (Kafka:
LoggingController.)
"""

from __future__ import annotations

import logging

from mpbroker.ipc import topology
from mpbroker.ipc.topology import SharedMemory

ROOT, REQUESTS = "root", "kafka.request.logger"
# Kafka's names with the numbers of `logging`. Nothing is logged below DEBUG.
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}


def _name(number: int) -> str:
    return next(name for name, least in reversed(LEVELS.items()) if least <= number)


class LogLevels:
    """The loggers and their levels by name."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._root = memory.words("log_level")
        self._requests = memory.words("request_log")

    def all(self) -> dict[str, str]:
        root = self._root.load(0) or logging.getLogger("mpbroker").getEffectiveLevel()
        requests = self._requests.load(0) or LEVELS["WARN"]
        return {REQUESTS: _name(requests), ROOT: _name(root)}

    def put(self, logger: str, level: str | None) -> None:
        """Set a logger's level; None restores the level at start."""
        number = 0 if level is None else LEVELS[level]
        if logger == ROOT:
            self._root.store(0, number)
        else:
            self._log_requests(number)

    @property
    def logs_requests(self) -> bool:
        return 0 < self._requests.load(0) <= LEVELS["DEBUG"]

    def log_requests(self, on: bool) -> None:
        self._log_requests(LEVELS["DEBUG"] if on else 0)

    def _log_requests(self, level: int) -> None:
        """Set the level of the request log. Handlers look at the word when they are rung."""
        self._requests.store(0, level)
        for handler in topology.HANDLERS:
            self._memory.doorbell(handler).ring()
