"""Requests as handlers forward them, and the responses that they get (compare Kafka's Envelope, KIP-590)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from mpbroker.coordinator.runtime.requests import Waiter
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse
from mpbroker.ipc.calls import Message as Call
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import REQUESTS, Message


class Envelopes:
    """Decodes requests, and encodes what answers them. (An Answers.)"""

    def __init__(self, answer_waiter: Callable[[Waiter, Call], bool]) -> None:
        self._answer_waiter = answer_waiter
        self._encode = msgspec.msgpack.Encoder().encode

    def open(self, request: ForwardedRequest) -> Message:
        """Return the request's message. Raises msgspec.DecodeError if its body is none."""
        message: Message = _decoder(request.api_key).decode(request.body)
        return message

    def answer(self, waiter: Waiter, response: Message) -> None:
        self._answer_waiter(waiter, ForwardedResponse(self._encode(response)))

    def fail(self, waiter: Waiter, error: ErrorCode) -> None:
        self._answer_waiter(waiter, Failed(error, error.message))


@cache
def _decoder(api_key: int) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(REQUESTS[api_key])
