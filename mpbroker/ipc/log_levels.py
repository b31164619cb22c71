"""Log levels in shared memory: clients alter them, all processes read them. They end with the broker.

The block `log_levels` has a word for each of LOGGERS, `request_log` one word for the request log: the level
that a client has set, or 0. Other words of shared memory have one writer each, but these have several: the
supervisor, and any handler that serves a client. Each change is one store, and no writer waits for another,
so the last writer wins. (Kafka: LoggingController.)
"""

from __future__ import annotations

import logging
from typing import Final

from mpbroker.ipc import topology
from mpbroker.ipc.topology import SharedMemory
from shm.word import Words

ROOT, REQUESTS = "root", "kafka.request.logger"
# The logger of `logging` that ROOT is, and the one above all others.
ALL: Final = "mpbroker"
# The loggers of the broker's parts: of its rooms, and of folders that do work of a kind of their own. A
# folder's logger inherits the level of its room's, and that one ROOT's.
SUBSYSTEMS: Final = (
    *("mpbroker.coordinator", "mpbroker.coordinator.groups", "mpbroker.coordinator.metadata"),
    *("mpbroker.coordinator.transactions", "mpbroker.exporter", "mpbroker.handlers", "mpbroker.ipc"),
    *("mpbroker.log", "mpbroker.log.compaction", "mpbroker.log.recovery", "mpbroker.log.replica_move"),
    *("mpbroker.log.retention", "mpbroker.log.scrub", "mpbroker.network", "mpbroker.network.acceptor"),
    *("mpbroker.network.processor", "mpbroker.remote", "mpbroker.security", "mpbroker.supervisor"),
)
# In the order of their words.
LOGGERS: Final = (ALL, *SUBSYSTEMS)
assert len(LOGGERS) == topology.LOG_LEVELS
# Kafka's names with the numbers of `logging`. Nothing is logged below DEBUG.
LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}


def _name(number: int) -> str:
    return next(name for name, least in reversed(LEVELS.items()) if least <= number)


def logger_of(role: int) -> str:
    """Return the name of the logger that the process `role` uses for its own messages."""
    if topology.is_handler(role):
        return "mpbroker.handlers"
    if topology.is_processor(role):
        return "mpbroker.network.processor"
    if topology.is_log_worker(role):
        return "mpbroker.log"
    return {
        topology.SUPERVISOR: "mpbroker.supervisor",
        topology.COORDINATOR: "mpbroker.coordinator",
        topology.CLEANER: "mpbroker.log.compaction",
        topology.SCRUBBER: "mpbroker.log.scrub",
        topology.EXPORTER: "mpbroker.exporter",
        topology.TIER: "mpbroker.remote",
    }.get(role, "mpbroker.network.acceptor")


def inherited_words(logger: str) -> tuple[int, ...]:
    """Return the indices of the words that decide a logger's level: its own, then those of its parents."""
    found = [at for at, name in enumerate(LOGGERS) if f"{logger}.".startswith(f"{name}.")]
    return tuple(reversed(found))


def level_at_start() -> int:
    """Return the level that all loggers have until a client sets one."""
    return logging.getLogger(ALL).level or logging.WARNING


def given_level(words: Words, indices: tuple[int, ...]) -> int:
    """Return the first level that is set among `indices` (see `inherited_words`); 0 if none is set."""
    for index in indices:
        if level := words.load(index):
            return level
    return 0


class LogLevels:
    """The levels of the broker's loggers, by Kafka's names of levels."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._levels = memory.words("log_levels")
        self._requests = memory.words("request_log")

    def all(self) -> dict[str, str]:
        """Return the level of each logger, set or inherited, by the logger's name."""
        at_start = level_at_start()
        levels = {name: given_level(self._levels, inherited_words(name)) or at_start for name in LOGGERS}
        requests = self._requests.load(0) or LEVELS["WARN"]
        return {
            REQUESTS: _name(requests),
            **{name: _name(levels[name]) for name in SUBSYSTEMS},
            ROOT: _name(levels[ALL]),
        }

    def check(self, logger: str, level: str) -> None:
        """Raise ValueError for an unknown logger or level. The level "" is allowed: it stands for a reset."""
        if logger not in self.all():
            raise ValueError(f"there is no logger {logger!r}; there are {', '.join(self.all())}")
        if level and level not in LEVELS:
            raise ValueError(f"there is no level {level!r}; there are {', '.join(LEVELS)}")

    def put(self, logger: str, level: str | None) -> None:
        """Set a logger's level. None resets root to the level at start, others to the inherited level."""
        number = 0 if level is None else LEVELS[level]
        if logger == REQUESTS:
            self._log_requests(number)
        else:
            self._levels.store(LOGGERS.index(ALL if logger == ROOT else logger), number)

    @property
    def logs_requests(self) -> bool:
        return 0 < self._requests.load(0) <= LEVELS["DEBUG"]

    def log_requests(self, on: bool) -> None:
        self._log_requests(LEVELS["DEBUG"] if on else 0)

    def _log_requests(self, level: int) -> None:
        """Set the level of the request log, and wake the handlers, which then read the level."""
        self._requests.store(0, level)
        for handler in topology.HANDLERS:
            self._memory.doorbell(handler).ring()
