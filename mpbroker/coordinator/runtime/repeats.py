"""Answers to requests that clients repeat byte by byte, such as the heartbeats of members that are settled.

An idle member of a group sends the same bytes every few seconds. The encoded call, which also names the
client, is looked up. So the request is neither decoded nor decided on again, and its answer is encoded
already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from mpbroker.protocol.messages import Message

# Longer calls are not looked up: hashing one costs more than it saves.
CALL_BYTES_MAX: Final = 1024
REPEATS_MAX: Final = 100_000


class Repeatable(NamedTuple):
    """The response to a request that changes nothing.

    `again()` returns whether the same request, come again, gets this response. If so, it has done what
    serving the request does besides, such as restarting a session.
    """

    response: Message
    again: Callable[[], bool]


class _Repeat(NamedTuple):
    again: Callable[[], bool]
    answer: bytes


class Repeats:
    """Encoded answers by the encoded call that they answer (`ForwardedRequest`)."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Repeat] = {}

    def find(self, call: bytes) -> bytes | None:
        """Return the answer to a call, encoded; None if the call has to be served."""
        known = self._known.get(call) if len(call) <= CALL_BYTES_MAX else None
        if known is None:
            return None
        if known.again():
            return known.answer
        del self._known[call]
        return None

    def learn(self, call: bytes, again: Callable[[], bool], answer: bytes) -> None:
        """Keep the encoded answer to a call, for as long as `again()` returns True."""
        if not 0 < len(call) <= CALL_BYTES_MAX:
            return
        if len(self._known) >= REPEATS_MAX:
            # Most are of clients that have gone. The others are learned again by their next request.
            self._known.clear()
        self._known[call] = _Repeat(again, answer)

    def forget(self) -> None:
        """Forget all answers, because settings of the broker have changed."""
        self._known.clear()
