"""The words of the log levels: several processes write them, so each change is one store."""

from __future__ import annotations

from typing import cast

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.log_levels import (
    LOGGERS,
    REQUESTS,
    ROOT,
    LogLevels,
    inherited_words,
    logger_of,
)
from mpbroker.ipc.topology import SharedMemory


class Word:
    """A block of words that remembers how often it was written."""

    def __init__(self) -> None:
        self.words = [0] * len(LOGGERS)
        self.stores = 0

    def load(self, index: int) -> int:
        return self.words[index]

    def store(self, index: int, value: int) -> None:
        self.words[index] = value
        self.stores += 1

    def ring(self) -> None:
        pass


class Memory:
    def __init__(self) -> None:
        self.blocks = {name: Word() for name in ("log_levels", "request_log")}

    def words(self, name: str) -> Word:
        return self.blocks[name]

    def doorbell(self, _index: int) -> Word:
        return self.blocks["log_levels"]


@pytest.mark.parametrize(
    ("logger", "level", "logs", "known"),
    [
        (ROOT, "ERROR", False, "ERROR"),
        ("mpbroker.log.scrub", "DEBUG", False, "DEBUG"),
        (REQUESTS, "TRACE", True, "TRACE"),
        (REQUESTS, "DEBUG", True, "DEBUG"),
        (REQUESTS, "INFO", False, "INFO"),
        (REQUESTS, None, False, "WARN"),
    ],
)
def test_a_change_is_one_store(logger: str, level: str | None, logs: bool, known: str) -> None:
    """Of two, what another process wrote between them would stay half."""
    memory = Memory()
    levels = LogLevels(cast(SharedMemory, memory))
    levels.put(logger, level)
    assert [block.stores for block in memory.blocks.values()] == [logger != REQUESTS, logger == REQUESTS]
    assert (levels.logs_requests, levels.all()[logger]) == (logs, known)


def test_the_switch_of_the_request_log_is_one_store() -> None:
    memory = Memory()
    levels = LogLevels(cast(SharedMemory, memory))
    for stores, on in enumerate((True, False), 1):
        levels.log_requests(on)
        assert memory.blocks["request_log"].stores == stores
        assert (levels.logs_requests, levels.all()[REQUESTS]) == (on, "DEBUG" if on else "WARN")


def test_levels_are_inherited_by_name() -> None:
    assert [LOGGERS[at] for at in inherited_words("mpbroker.log.scrub")] == [
        "mpbroker.log.scrub",
        "mpbroker.log",
        "mpbroker",
    ]
    for module, logger in (
        ("mpbroker.log.scrub.scrubber", "mpbroker.log.scrub"),
        ("mpbroker.log.append.journal_ring", "mpbroker.log"),
        ("mpbroker.logistics", "mpbroker"),
    ):
        assert LOGGERS[inherited_words(module)[0]] == logger


def test_every_process_has_a_logger() -> None:
    assert {logger_of(role) for role in range(topology.PROCESSES)} < set(LOGGERS)
    assert logger_of(topology.CONTROL_ACCEPTOR) == "mpbroker.network.acceptor"
    assert logger_of(topology.SECOND_LOG_WORKER) == "mpbroker.log"
