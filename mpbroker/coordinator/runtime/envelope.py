"""Requests that handlers have forwarded as clients sent them, and the way back of their responses (KIP-590).

Here a request is decoded once, and its response encoded once, in the version of its client; a handler frames
what comes back. (Kafka: EnvelopeRequest, EnvelopeResponse.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mpbroker.coordinator.runtime.answers import Waiter
from mpbroker.coordinator.waiting import Caller
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse, MalformedRequest
from mpbroker.ipc.calls import Message as Call
from mpbroker.protocol.codec import decode_request, encode_bytes, encode_response
from mpbroker.protocol.error_counts import error_counts
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import Message
from mpbroker.protocol.version_rules import in_latest_form, in_version
from mpbroker.protocol.wire import MalformedMessage

log = logging.getLogger("mpbroker")


class Envelopes:
    """`answer_waiter` takes a call's answer to whoever waits for it."""

    def __init__(self, answer_waiter: Callable[[Waiter, Call], bool]) -> None:
        self._answer_waiter = answer_waiter

    def handle(self, waiter: Waiter, request: ForwardedRequest, handle: Callable[[Message], None]) -> None:
        """Give `handle` the request. A fault of ours is answered, and must not affect other requests."""
        try:
            handle(self._opened(request))
        except (MalformedMessage, UnicodeDecodeError) as error:
            self._answer_waiter(waiter, MalformedRequest(str(error)))
        except ApiError as error:
            self.fail(waiter, error.code)
        except Exception:
            log.exception("a forwarded request failed: API key %d", request.api_key)
            self.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _opened(self, request: ForwardedRequest) -> Message:
        body, _ = decode_request(request.api_key, request.version, request.body)
        opened: Message = in_latest_form(request.api_key, request.version, body)
        return opened

    def answer(self, waiter: Waiter, response: Message) -> None:
        assert isinstance(waiter, Caller)
        response = in_version(waiter.api_key, waiter.version, response)
        body = encode_bytes(encode_response(waiter.api_key, waiter.version, response))
        self._answer_waiter(waiter, ForwardedResponse(body, error_counts(response)))

    def fail(self, waiter: Waiter, error: ErrorCode) -> None:
        """The whole request failed; its handler knows how its API says so."""
        self._answer_waiter(waiter, Failed(error, error.message))
