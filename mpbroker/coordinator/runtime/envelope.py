"""Requests that handlers have forwarded as clients sent them, and the way back of their responses (KIP-590).

Here a request is decoded once, and its response encoded once, in the version of its client; a handler frames
what comes back. (Kafka: EnvelopeRequest, EnvelopeResponse.)
"""

from __future__ import annotations

from collections.abc import Callable

from mpbroker.coordinator.runtime.requests import Waiter
from mpbroker.coordinator.waiting import Caller
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse, MalformedRequest
from mpbroker.ipc.calls import Message as Call
from mpbroker.protocol.codec import decode_request, encode_bytes, encode_response
from mpbroker.protocol.error_counts import error_counts
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message
from mpbroker.protocol.version_rules import in_latest_form, in_version


class Envelopes:
    """Decodes requests, and encodes what answers them. (An Answers.)

    `answer_waiter` sends the answer of a call, and returns whether somebody will hear it.
    """

    def __init__(self, answer_waiter: Callable[[Waiter, Call], bool]) -> None:
        self._answer_waiter = answer_waiter

    def open(self, request: ForwardedRequest) -> Message:
        """Return the request's message.

        Raises MalformedMessage, or ApiError if its version forbids a value.
        """
        body, _ = decode_request(request.api_key, request.version, request.body)
        message: Message = in_latest_form(request.api_key, request.version, body)
        return message

    def answer(self, waiter: Waiter, response: Message) -> None:
        assert isinstance(waiter, Caller)
        response = in_version(waiter.api_key, waiter.version, response)
        body = encode_bytes(encode_response(waiter.api_key, waiter.version, response))
        self._answer_waiter(waiter, ForwardedResponse(body, error_counts(response)))

    def fail(self, waiter: Waiter, error: ErrorCode) -> None:
        self._answer_waiter(waiter, Failed(error, error.message))

    def refuse(self, waiter: Waiter, reason: str) -> None:
        """Answer that the request's bytes are malformed: its handler closes the connection."""
        self._answer_waiter(waiter, MalformedRequest(reason))
