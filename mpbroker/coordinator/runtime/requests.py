"""Requests to a coordinator: their contexts, the callers that wait, and the answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from mpbroker.coordinator.runtime.repeats import Repeatable, Repeats
from mpbroker.ipc.calls import Failed, ForwardedRequest, ForwardedResponse, MalformedRequest, encode
from mpbroker.ipc.calls import Message as Call
from mpbroker.protocol.codec import (
    decode_request,
    encode_bytes,
    encode_response,
    response_encoder_in_pieces,
)
from mpbroker.protocol.error_counts import error_counts
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import Message
from mpbroker.protocol.version_rules import in_latest_form, in_version
from mpbroker.security.authorizer import Client


@dataclass(slots=True, unsafe_hash=True)
class Caller:
    """A caller that waits for an answer. `life`: how often its handler's process had died before the call.

    Immutable by convention. (A frozen dataclass takes several times as long to construct, and each request
    needs a Caller.) `api_key` and `version` are set for a forwarded request, and used for its response; they
    are -1 for other calls. `encoded` is the call, for `Repeats`.
    """

    handler: int
    life: int
    request: int
    api_key: int = field(default=-1, compare=False)
    version: int = field(default=-1, compare=False)
    encoded: bytes = field(default=b"", compare=False)


Waiter: TypeAlias = Hashable
"""Identifies a request that waits for its answer. Only `Answers` knows that it is a `Caller`."""
Then: TypeAlias = Callable[[ErrorCode], None]
"""A callback that is called once with the outcome of an operation; NONE means success."""


class RequestContext(NamedTuple):
    """A request's identity, version and client (Kafka: RequestContext).

    `client_host` begins with a slash, as in Kafka's records. `principal` is written `Type:name`.
    """

    waiter: Waiter
    version: int
    client_id: str
    client_host: str
    principal: str

    @property
    def client(self) -> Client:
        """Return the client as access control entries name it."""
        return Client(self.principal, self.client_host.removeprefix("/"))


Serve: TypeAlias = Callable[[RequestContext, Any], Message | Repeatable | None]
"""Serves the requests of one API. Returns the response, or None if `Answers` sends it, now or later.

Raises ApiError if the whole request fails.
"""


class Answers:
    """Decodes the forwarded requests, whose bytes come from the client, and encodes the responses (KIP-590).

    Request and response have the client's version; a handler frames the response. (Kafka: EnvelopeRequest,
    EnvelopeResponse.) `send` sends an answer; it returns False if the handler has died or the arena is full.
    """

    def __init__(self, send: Callable[[Any, Call], bool], repeats: Repeats | None = None) -> None:
        self.send = send
        self._repeats = repeats or Repeats()

    def open(self, request: ForwardedRequest) -> Message:
        """Decode the request. Raises MalformedMessage, or ApiError if a value is invalid in this version."""
        body, _ = decode_request(request.api_key, request.version, request.body)
        message: Message = in_latest_form(request.api_key, request.version, body)
        return message

    def answer(self, waiter: Waiter, response: Message | Repeatable) -> None:
        assert isinstance(waiter, Caller)
        message = response.response if isinstance(response, Repeatable) else response
        message = in_version(waiter.api_key, waiter.version, message)
        body = encode_bytes(encode_response(waiter.api_key, waiter.version, message))
        answer = ForwardedResponse(body, error_counts(message))
        if isinstance(response, Repeatable):
            self._repeats.learn(waiter.encoded, response.again, encode(answer))
        self.send(waiter, answer)

    def answer_in_pieces(self, waiter: Waiter, response: Message) -> Generator[None, None, None]:
        """Answer with a response that may be large: it is encoded in pieces."""
        assert isinstance(waiter, Caller)
        response = in_version(waiter.api_key, waiter.version, response)
        encode = response_encoder_in_pieces(waiter.api_key, waiter.version)
        body = encode_bytes((yield from encode(response, bytearray())))
        self.send(waiter, ForwardedResponse(body, error_counts(response)))

    def fail(self, waiter: Waiter, error: ErrorCode) -> None:
        """Answer that the whole request failed. The handler makes the API's response from the error."""
        self.send(waiter, Failed(error, error.message))

    def refuse(self, waiter: Waiter, reason: str) -> None:
        """Answer that the request's bytes are malformed. The handler then closes the connection."""
        self.send(waiter, MalformedRequest(reason))


def response_error(append_error: ErrorCode) -> ErrorCode:
    """Return the error that a client gets for an append's error (Kafka: TransactionStateManager)."""
    if append_error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if append_error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if append_error in (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
    ):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return append_error
