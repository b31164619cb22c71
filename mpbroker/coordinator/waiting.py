"""Callers whose decision is durable, and who are answered when everybody can see what it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from mpbroker.ipc.calls import Message


@dataclass(frozen=True)
class Caller:
    """Who waits for an answer; `life` counts the deaths of that handler.

    `api_key` and `version` are those of a forwarded request, in which its response is wanted.
    """

    handler: int
    life: int
    request: int
    api_key: int = field(default=-1, compare=False)
    version: int = field(default=-1, compare=False)


class Change(NamedTuple):
    """A topic as it has to be seen at least: so many settings later, with so many partitions."""

    topic_id: bytes
    config_version: int
    partitions: int


class Awaited(StrEnum):
    """What a caller may wait for beside changes of topics."""

    USABLE = "usable"  # a topic, by its id: handlers know where its partitions are
    GONE = "gone"  # the same: its partitions are removed
    QUOTAS = "quotas"  # told to handlers; these three by the call
    CREDENTIALS = "credentials"  # told to processors
    RATES = "rates"  # of addresses, told to acceptors
    SETTINGS = "settings"  # of brokers, by their version: the supervisor has followed


Token = tuple[Awaited, bytes] | Change
"""What has not happened yet: a kind and what it is about, or a change."""


@dataclass
class Pending:
    caller: Caller
    answer: Message
    missing: set[Token]


class Waiting:
    def __init__(self, answer: Callable[[Caller, Message], object]) -> None:
        self._answer = answer
        self._pending: list[Pending] = []

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def pending(self) -> Sequence[Pending]:
        return self._pending

    def add(self, caller: Caller, answer: Message, missing: set[Token]) -> None:
        """Answers at once if nothing is missing."""
        if missing:
            self._pending.append(Pending(caller, answer, missing))
        else:
            self._answer(caller, answer)

    def settle(self, tokens: set[Token]) -> None:
        """These have happened."""
        self.settle_if(tokens.__contains__)

    def settle_if(self, has_happened: Callable[[Token], bool]) -> None:
        waiting = []
        for pending in self._pending:
            pending.missing = {token for token in pending.missing if not has_happened(token)}
            if pending.missing:
                waiting.append(pending)
            else:
                self._answer(pending.caller, pending.answer)
        self._pending = waiting
