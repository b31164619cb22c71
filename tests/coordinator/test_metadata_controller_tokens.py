"""The timer that removes expired delegation tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from mpbroker.coordinator.metadata_controller import TokenSweep
from mpbroker.ipc.calls import Failed, Message, RemovedTokens, RemoveExpiredTokens
from mpbroker.protocol.errors import ErrorCode

INTERVAL_MS = 1000


class Swept:
    """A sweep, its clock, and its questions that are not answered yet."""

    def __init__(self) -> None:
        self.now_ms = 5
        self.asked: list[tuple[Message, Callable[[Message], None]]] = []
        self.sweep = TokenSweep(
            INTERVAL_MS, lambda: self.now_ms, lambda call, then: self.asked.append((call, then))
        )

    def answer(self, message: Message) -> None:
        (_, then), self.asked = self.asked[0], []
        then(message)

    def asks(self) -> bool:
        """Return whether a step asks."""
        before = len(self.asked)
        self.sweep.step(has_tokens=True)
        assert all(call == RemoveExpiredTokens() for call, _ in self.asked)
        return len(self.asked) > before


def test_it_goes_on_until_none_is_left_and_then_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mpbroker")
    swept = Swept()
    swept.sweep.step(has_tokens=False)
    assert not swept.asked
    assert swept.asks()
    assert not swept.asks()  # one question at a time
    swept.answer(RemovedTokens(["a", "b"]))
    assert "delegation token b has expired and is removed" in caplog.text
    assert swept.asks()
    swept.answer(RemovedTokens([]))
    assert not swept.asks()
    swept.now_ms += INTERVAL_MS - 1
    assert not swept.asks()
    swept.now_ms += 1
    assert swept.asks()


def test_it_waits_after_an_error() -> None:
    swept = Swept()
    assert swept.asks()
    swept.answer(Failed(ErrorCode.UNKNOWN_SERVER_ERROR, "the log has failed"))
    assert not swept.asks()
    swept.now_ms += INTERVAL_MS
    assert swept.asks()
