"""Answers callers when their changes, which are durable already, have taken effect in other processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from mpbroker.coordinator.runtime.requests import Caller
from mpbroker.ipc.calls import Message


class Change(NamedTuple):
    """An event: all handlers know this version of a topic's settings, and this number of its partitions."""

    topic_id: bytes
    config_version: int
    partitions: int


class Awaited(StrEnum):
    """The kinds of events that a caller may wait for, besides changes of topics."""

    USABLE = "usable"  # handlers have the slots of a topic's partitions; named by its id
    REMOVED = "removed"  # the partitions of a topic are removed; named by its id
    QUOTAS = "quotas"  # handlers have them; named by the call, as are the next four
    ACLS = "acls"  # handlers have them
    SUBSCRIPTIONS = "subscriptions"  # handlers have those to client metrics
    CREDENTIALS = "credentials"  # processors have them
    RATES = "rates"  # acceptors have the rates of addresses
    SETTINGS = "settings"  # the supervisor has applied the settings of brokers; named by their version


Token = tuple[Awaited, bytes] | Change
"""An event that a caller waits for: a kind and the name of its object, or a change of a topic."""


@dataclass
class Pending:
    caller: Caller
    answer: Message
    missing: set[Token]


class WaitingCallers:
    def __init__(self, answer: Callable[[Caller, Message], object]) -> None:
        self._answer = answer
        self._pending: list[Pending] = []

    def __bool__(self) -> bool:
        return bool(self._pending)

    @property
    def pending(self) -> Sequence[Pending]:
        return self._pending

    def add(self, caller: Caller, answer: Message, missing: set[Token]) -> None:
        """Answer the caller when all events in `missing` have happened; at once if `missing` is empty."""
        if missing:
            self._pending.append(Pending(caller, answer, missing))
        else:
            self._answer(caller, answer)

    def settle(self, tokens: set[Token]) -> None:
        """Note that these events have happened. Answer the callers that wait for nothing else."""
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
