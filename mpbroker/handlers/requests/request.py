"""Received requests: what a client has sent, decoded on first use and within the limits of its API.

(Kafka: RequestChannel.Request, RequestContext.)
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from mpbroker.handlers.requests.limits import (
    DECODED_AT_ONCE,
    KEPT_BYTES,
    PARTITIONS_MAX,
    UNCOUNTED_BODY_BYTES,
)
from mpbroker.handlers.requests.responses import Pause
from mpbroker.ipc.calls import Account
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.session import Session
from mpbroker.ipc.slots import Request, SlotFlag
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_request, decode_request_in_pieces
from mpbroker.protocol.element_program import count_elements
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import CLIENT_ID_AT
from mpbroker.protocol.messages import Message
from mpbroker.protocol.wire import REPLACED, MalformedMessage
from mpbroker.security.audit import Event

LENGTH = struct.Struct(">h")

# What an API returns: the response; nothing, if it responds later; or pieces of work whose value is either.
Outcome: TypeAlias = "Message | Generator[None, None, Message | None] | None"


def client_id_of(frame: memoryview) -> str:
    """Return the client id in the header of a request. Raises MalformedMessage if it is too long."""
    (length,) = LENGTH.unpack_from(frame, CLIENT_ID_AT)
    at = CLIENT_ID_AT + LENGTH.size
    return str(frame[at : at + length], "utf-8", REPLACED) if length > 0 else ""


class UnreadableBody(Exception):
    """The bytes of a request do not fit its API and version."""


def not_refused(_request: object) -> None:
    """Return None: refuse no request."""


@dataclass(frozen=True)
class Api:
    """A registered API. Its functions take a `RequestContext`.

    `advertised_from` is below `oldest` if clients need to see versions that are refused when used.
    `is_forwarded`: the coordinator decodes the request; the handler decodes it only if it is long, or to
    report an error. `elements_max`: the most elements that the arrays of one request may have in all.
    `refusal`: returns the response if the request is refused before it is decoded, else None.
    """

    key: ApiKey
    name: str
    oldest: int
    latest: int
    advertised_from: int
    summary: str
    handle: Callable[[Any], Outcome]
    failed: Callable[[Any, ErrorCode], Message | None]
    is_forwarded: bool = False
    elements_max: int = PARTITIONS_MAX
    refusal: Callable[[Any], Message | None] = not_refused

    def serves(self, version: int) -> bool:
        return self.oldest <= version <= self.latest


class ReceivedRequest:
    """A request as its client sent it, who the client is, and what the request has cost so far."""

    def __init__(self, slot: Request, frame: memoryview, api: Api, process: ProcessContext) -> None:
        """`frame` is the request's frame with its size and header."""
        self.slot = slot
        self.client_id = ""
        self.api = api
        self.process = process
        self._frame: memoryview | None = frame
        self._raw: bytes | None = None
        self._body: Any = None
        self._session: Session | None = None
        # Elements of the request's arrays, 0 if it is too short for many.
        self.elements = 0
        self.takes_long = bool(slot.flags & SlotFlag.HEAVY)
        self.taken_ns = time.monotonic_ns()
        # When the API has returned; 0 before that.
        self.local_ns = 0
        self._started_ns = self._worked_ns = 0
        # Cost of decompressing its records and compressing them again.
        self.temporary_bytes = self.conversion_ns = 0
        # The pause of its client, when the request has been charged.
        self.pause: Pause | None = None
        # An act of administration, which is yet to be written to the audit log with its result.
        self.act: Event | None = None

    @property
    def version(self) -> int:
        return self.slot.api_version

    @property
    def body_bytes(self) -> int:
        return self.slot.length - self.slot.body

    @property
    def body(self) -> Any:
        """The request, decoded on first use. Raises UnreadableBody if it is malformed."""
        if self._body is None:
            self._decode()
        return self._body

    def _decode(self) -> None:
        frame = self._raw if self._frame is None else self._frame
        assert frame is not None
        try:
            at = self.slot.body if frame is self._frame else 0
            self._body, _ = decode_request(self.slot.api_key, self.version, frame, at)
        except MalformedMessage as error:
            raise UnreadableBody(str(error)) from error
        self._frame = None

    def decode_in_pieces(self) -> Generator[None]:
        """Decode a long request between other work. Raises UnreadableBody if it is malformed."""
        frame, at = self._frame, self.slot.body
        if self.api.is_forwarded:
            frame, at = memoryview(self.raw_body()), 0
        assert frame is not None
        try:
            pieces = decode_request_in_pieces(self.slot.api_key, self.version, frame, at)
            self._body, _ = yield from pieces
        except MalformedMessage as error:
            raise UnreadableBody(str(error)) from error
        self._frame = None

    def read(self) -> bool:
        """Read client id and number of elements, and decode a body that is neither forwarded nor long.

        Returns False if there are more elements than the API allows. Raises UnreadableBody if the request is
        malformed.
        """
        assert self._frame is not None
        most = self.api.elements_max
        try:
            self.client_id = client_id_of(self._frame)
            if self.body_bytes > UNCOUNTED_BODY_BYTES:
                key, at = self.slot.api_key, self.slot.body
                self.elements = count_elements(key, self.version, self._frame, at, most)
        except MalformedMessage as error:
            raise UnreadableBody(str(error)) from error
        if self.elements > most:
            return False
        if not (self.api.is_forwarded or self.is_long):
            self._decode()
        return True

    @property
    def is_long(self) -> bool:
        """True if decoding the request at once would keep other requests waiting for too long."""
        return self.elements > DECODED_AT_ONCE

    @property
    def is_decoded(self) -> bool:
        return self._body is not None

    def raw_body(self) -> bytes:
        """Return the body of the request as its client sent it, copied out of the processor's memory.

        Call this before `body`, which decodes the request in place.
        """
        if self._raw is None:
            assert self._frame is not None, "it was decoded in place"
            self._raw, self._frame = bytes(self._frame[self.slot.body :]), None
        return self._raw

    def shed(self, long_field: str) -> None:
        """Release the raw body and `long_field` of a waiting request. Error responses do not need them."""
        if self.body_bytes <= KEPT_BYTES:
            return
        try:
            getattr(self.body, long_field).clear()
        except UnreadableBody:
            return  # the coordinator finds it out, too
        self._raw = None

    @property
    def session(self) -> Session:
        """The session of the client that sent the request: user, address and software. It is read once.

        Raises SessionGone on a first use after the response, when the connection may be closed.
        """
        if self._session is None:
            self._session = self.process.session(self.slot)
        return self._session

    @property
    def listener_name(self) -> str:
        return self.process.listener(self.slot.listener).listener.name

    @property
    def client(self) -> str:
        """The connection and the user, as log lines name them."""
        return self.process.whose(self.slot, self._session)

    def __str__(self) -> str:
        return f"{self.api.name} v{self.version} of client '{self.client_id}' ({self.client})"

    def account(self, *, strict: bool) -> Account:
        """Return the client's account, whose quota is charged for topics that are created or deleted.

        `strict`: refuse the request if the quota is exhausted. Otherwise the client is only throttled.
        """
        return Account(self.session.principal_name, self.client_id, strict)

    def was_passed_on(self, taken_ns: int, passed_on_ns: int) -> None:
        """Set the times at which the native turn took the request and sent it to the coordinator."""
        self.taken_ns, self.local_ns = taken_ns, passed_on_ns

    @property
    def worked_ns(self) -> int:
        """Time that this handler has worked on the request, in ns."""
        started_ns = self._started_ns
        return self._worked_ns + (time.monotonic_ns() - started_ns if started_ns else 0)
