"""The timer that removes expired delegation tokens (Kafka: QuorumController.sweepExpiredDelegationTokens)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from mpbroker.ipc.calls import Message, RemovedTokens, RemoveExpiredTokens

Ask: TypeAlias = Callable[[Message, Callable[[Message], None]], None]


class TokenSweep:
    """Asks the state machine every `interval_ms` to remove tokens, at the start too, and while some are left.

    `ask` passes a call and takes what gets its answer.
    """

    def __init__(self, interval_ms: int, now_ms: Callable[[], int], ask: Ask, log: logging.Logger) -> None:
        self._interval_ms = interval_ms
        self._now_ms = now_ms
        self._ask = ask
        self._log = log
        self._due_ms = now_ms()
        self._is_under_way = False

    def step(self, *, has_tokens: bool) -> None:
        if has_tokens and not self._is_under_way and self._now_ms() >= self._due_ms:
            self._is_under_way = True
            self._ask(RemoveExpiredTokens(), self._answered)

    def _answered(self, answer: Message) -> None:
        """Note what is gone. After an error, which means that the log refused, wait for the next time."""
        self._is_under_way = False
        gone = answer.token_ids if isinstance(answer, RemovedTokens) else []
        for token_id in gone:
            self._log.info("delegation token %s has expired and is removed", token_id)
        if not gone:
            self._due_ms = self._now_ms() + self._interval_ms
