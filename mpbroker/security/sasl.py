"""The server's side of SASL on a connection, without I/O (Kafka: SaslServerAuthenticator).

The requests that each state accepts:

    HANDSHAKE_OR_VERSIONS   ApiVersions (HANDSHAKE follows if it succeeds) or SaslHandshake
    HANDSHAKE               SaslHandshake
    AUTHENTICATE            SaslAuthenticate with a token, or a bare token after a SaslHandshake of version 0
    COMPLETE, FAILED        none

Received frames are passed without their size field; returned frames have it. The caller sends the answer of a
failure after connection.failed.authentication.delay.ms and closes the connection. A re-authentication
(KIP-368) uses a new server, which begins at HANDSHAKE and knows the earlier session.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from mpbroker.protocol import api_versions
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.api_versions import Served
from mpbroker.protocol.codec import decode_request, encode_bytes
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import RequestHeader, decode_request_header, encode_response_frame
from mpbroker.protocol.messages import (
    RESPONSES,
    ApiVersionsResponse,
    Message,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from mpbroker.protocol.wire import MalformedMessage, UnsupportedVersion
from mpbroker.security.mechanism import Mechanism, SaslFailed
from mpbroker.security.principals import Principal

FIRST_VERSION_WITH_LIFETIME = 1

_SIZE = struct.Struct(">i")
MECHANISM_LETTERS_MAX = 40


class State(Enum):
    HANDSHAKE_OR_VERSIONS = 0
    HANDSHAKE = 1
    AUTHENTICATE = 2
    COMPLETE = 3
    FAILED = 4


class Session(NamedTuple):
    """The result of an authentication. `expires_ms` is a time of the wall clock, or None for no expiry."""

    principal: Principal
    mechanism: str
    expires_ms: int | None
    is_by_token: bool = False


class Failure(Exception):
    """The authentication has failed. `answer` is the delayed response to the client; the text is for logs."""

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason)
        self.answer = answer


@dataclass(frozen=True)
class Offer:
    """The mechanisms that a listener offers. `make` makes a Mechanism from the mechanism's name.

    `max_reauth_ms` is connections.max.reauth.ms by mechanism; 0 means that sessions do not expire.
    """

    mechanisms: tuple[str, ...]
    make: Callable[[str], Mechanism] = field(repr=False)
    served: tuple[Served, ...]
    max_reauth_ms: dict[str, int]
    now_ms: Callable[[], int]


class SaslServer:
    """One authentication of a connection. For a re-authentication `again` is the earlier session."""

    def __init__(self, offer: Offer, again: Session | None = None) -> None:
        self._offer = offer
        self._again = again
        self._mechanism: Mechanism | None = None
        self._mechanism_name = ""
        self._bare = False
        self._wrong_mechanism = ""
        self.state = State.HANDSHAKE_OR_VERSIONS if again is None else State.HANDSHAKE
        self.session: Session | None = None
        self.software: tuple[str, str] | None = None
        self.tells_lifetime = False

    @property
    def has_chosen(self) -> bool:
        """Return whether the client has chosen a mechanism. If not, a failure cannot be a wrong password."""
        return self._mechanism is not None

    @property
    def renews(self) -> bool:
        return self._again is not None

    @property
    def claimed(self) -> str:
        """Return the user name that the client has sent and may not have proved, or ""."""
        return "" if self._mechanism is None else self._mechanism.claimed

    def receive(self, frame: bytes) -> bytes:
        """Handle a frame of the client; return the bytes to send at once. Raises Failure."""
        try:
            if self.state is State.AUTHENTICATE and self._bare:
                return self._bare_token(frame)
            return self._request(frame)
        except Failure:
            self.state = State.FAILED
            raise

    def _request(self, frame: bytes) -> bytes:
        header, body = self._parse(frame)
        match self.state:
            case State.HANDSHAKE_OR_VERSIONS if header.api_key == ApiKey.API_VERSIONS:
                return self._versions(header, body)
            case State.HANDSHAKE_OR_VERSIONS | State.HANDSHAKE if header.api_key == ApiKey.SASL_HANDSHAKE:
                return self._handshake(header, body.mechanism)
            case State.AUTHENTICATE if header.api_key == ApiKey.SASL_AUTHENTICATE:
                return self._token(header, body.auth_bytes)
            case State.AUTHENTICATE:
                answer = _illegal_state(header)
                raise Failure(f"{_name(header)} during authentication", answer)
            case _:
                raise Failure(f"{_name(header)} instead of SaslHandshake")

    def _parse(self, frame: bytes) -> tuple[RequestHeader, Any]:
        """Return (header, body) of a request. Raises Failure.

        The body is None if the API is not used for authentication, or for an unknown version of ApiVersions.
        """
        try:
            header, at = decode_request_header(frame)
            ours = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
            if header.api_key not in ours:
                return header, None
            if header.api_version not in valid_versions(header.api_key):
                if header.api_key == ApiKey.API_VERSIONS:
                    return header, None
                raise Failure(f"{_name(header)} has no version {header.api_version}")
            body, end = decode_request(header.api_key, header.api_version, frame, at)
        except (MalformedMessage, UnsupportedVersion) as error:
            raise Failure(f"no valid request: {error}") from error
        if end != len(frame):
            raise Failure(f"{len(frame) - end} bytes too many after {_name(header)}")
        return header, body

    def _versions(self, header: RequestHeader, body: Any) -> bytes:
        if body is None:
            return _frame(header, api_versions.unsupported(), version=0)
        answer: ApiVersionsResponse = api_versions.answer(body, header.api_version, self._offer.served)
        if answer.error_code == ErrorCode.NONE:
            self.state = State.HANDSHAKE
            self.software = body.client_software_name, body.client_software_version
        return _frame(header, answer)

    def _handshake(self, header: RequestHeader, mechanism: str) -> bytes:
        offered = list(self._offer.mechanisms)
        if mechanism not in offered:
            refusal = SaslHandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, offered)
            wanted = f"the client wants the mechanism {_shown(mechanism)}, which is not enabled"
            raise Failure(f"{wanted}; enabled are {', '.join(offered)}", _frame(header, refusal))
        if self._again is not None and mechanism != self._again.mechanism:
            # Refuse in answer to the next frame, so that the client counts it as a failed authentication.
            self._wrong_mechanism = (
                f"SASL mechanism '{mechanism}' requested by client is not supported for reauthentication of "
                f"mechanism '{self._again.mechanism}'"
            )
        self._bare = header.api_version == 0
        self._mechanism_name = mechanism
        self._mechanism = self._offer.make(mechanism)
        self.state = State.AUTHENTICATE
        return _frame(header, SaslHandshakeResponse(ErrorCode.NONE, offered))

    def _bare_token(self, token: bytes) -> bytes:
        try:
            answer, _ = self._step(token)
        except SaslFailed as failed:
            raise Failure(str(failed)) from failed
        return _SIZE.pack(len(answer)) + answer

    def _token(self, header: RequestHeader, token: bytes) -> bytes:
        try:
            answer, lifetime_ms = self._step(token)
        except SaslFailed as failed:
            shown = failed.shown or self._general_text()
            refusal = SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, shown)
            raise Failure(str(failed), _frame(header, refusal)) from failed
        self.tells_lifetime = header.api_version >= FIRST_VERSION_WITH_LIFETIME
        return _frame(header, SaslAuthenticateResponse(ErrorCode.NONE, None, answer, lifetime_ms))

    def _step(self, token: bytes) -> tuple[bytes, int]:
        """Return (answer, lifetime of the session in ms or 0) for a token. Raises SaslFailed."""
        if self._wrong_mechanism:
            raise SaslFailed("re-authentication with another mechanism", self._wrong_mechanism)
        assert self._mechanism is not None
        answer = self._mechanism.step(token)
        if self._mechanism.principal is None:
            return answer, 0
        return answer, self._complete(self._mechanism, self._mechanism.principal)

    def _complete(self, mechanism: Mechanism, principal: Principal) -> int:
        if self._again is not None and principal != self._again.principal:
            raise SaslFailed(
                "re-authentication as another user",
                "Cannot change principals during re-authentication "
                f"from {self._again.principal.type}.{self._again.principal.name}: "
                f"{principal.type}.{principal.name}",
            )
        now_ms = self._offer.now_ms()
        limits = [max(0, mechanism.expires_ms - now_ms)] if mechanism.expires_ms is not None else []
        if (most_ms := self._offer.max_reauth_ms.get(self._mechanism_name, 0)) > 0:
            limits.append(most_ms)
        lifetime_ms = min(limits) if limits else None
        expires_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        self.session = Session(principal, self._mechanism_name, expires_ms, mechanism.is_by_token)
        self.state = State.COMPLETE
        return lifetime_ms or 0

    def _general_text(self) -> str:
        what = "re-authentication" if self.renews else "authentication"
        return (
            f"Authentication failed during {what} due to invalid credentials with SASL mechanism "
            f"{self._mechanism_name}"
        )


def _frame(header: RequestHeader, body: Message, version: int | None = None) -> bytes:
    answered = header.api_version if version is None else version
    return encode_bytes(encode_response_frame(header.api_key, answered, header.correlation_id, body))


def _illegal_state(header: RequestHeader) -> bytes:
    """Return the API's response with ILLEGAL_SASL_STATE; b"" if its response has no top-level error_code."""
    response: Any = RESPONSES.get(header.api_key)
    if not hasattr(response, "error_code"):
        return b""
    try:
        return _frame(header, response(error_code=ErrorCode.ILLEGAL_SASL_STATE))
    except (UnsupportedVersion, MalformedMessage):
        return b""


def _name(header: RequestHeader) -> str:
    return ApiKey(header.api_key).name


def _shown(name: str) -> str:
    """Return a client's text for the log, escaped and cut to MECHANISM_LETTERS_MAX."""
    shown = name[:MECHANISM_LETTERS_MAX].encode("unicode_escape").decode()
    return shown[:MECHANISM_LETTERS_MAX] + ("…" if max(len(name), len(shown)) > MECHANISM_LETTERS_MAX else "")
