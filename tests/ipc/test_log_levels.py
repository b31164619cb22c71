"""The words of the log levels: several processes write them, so each change is one store."""

from __future__ import annotations

from typing import cast

import pytest

from mpbroker.ipc.log_levels import REQUESTS, ROOT, LogLevels
from mpbroker.ipc.topology import SharedMemory


class Word:
    """A block of words that remembers how often it was written."""

    def __init__(self) -> None:
        self.words = [0] * 8
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
        self.blocks = {name: Word() for name in ("log_level", "request_log")}

    def words(self, name: str) -> Word:
        return self.blocks[name]

    def doorbell(self, _index: int) -> Word:
        return self.blocks["log_level"]


@pytest.mark.parametrize(
    ("logger", "level", "logs", "known"),
    [
        (ROOT, "ERROR", False, "ERROR"),
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
    assert [block.stores for block in memory.blocks.values()] == [logger == ROOT, logger == REQUESTS]
    assert (levels.logs_requests, levels.all()[logger]) == (logs, known)


def test_the_switch_of_the_request_log_is_one_store() -> None:
    memory = Memory()
    levels = LogLevels(cast(SharedMemory, memory))
    for stores, on in enumerate((True, False), 1):
        levels.log_requests(on)
        assert memory.blocks["request_log"].stores == stores
        assert (levels.logs_requests, levels.all()[REQUESTS]) == (on, "DEBUG" if on else "WARN")
