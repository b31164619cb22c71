"""SASL authentication on a connection, before its first request (Kafka: SaslClientAuthenticator).

Sans-I/O: an authenticator returns the frames to send and takes the received frames. Its requests have
correlation ids from a range of their own, by which their responses are recognised.
If the broker limits the session's lifetime, the client authenticates again after 85 to 95 % of it (KIP-368).
"""

import random
import struct
from collections.abc import Callable, Generator, Sequence
from typing import Any

from mpbroker.client.backoff import monotonic_ms
from mpbroker.client.errors import AuthenticationFailed
from mpbroker.client.mechanisms import Exchange
from mpbroker.client.versions import ApiVersionsTalk, NodeApiVersions
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode, error_code
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import (
    Message,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from mpbroker.protocol.wire import Buffer, MalformedMessage, UnsupportedVersion

# Kafka: SaslClientAuthenticator
MIN_RESERVED_CORRELATION_ID = 2147483640
MAX_RESERVED_CORRELATION_ID = 2147483647
_CORRELATION_ID = struct.Struct(">i")

# SaslAuthenticate follows handshakes of version 1 only; earlier ones had bare tokens.
FIRST_HANDSHAKE_WITH_FRAMES = 1


def is_reserved(frame: bytearray) -> bool:
    """Return whether a response belongs to an authenticator, by its correlation id."""
    if len(frame) < _CORRELATION_ID.size:
        return False
    return bool(_CORRELATION_ID.unpack_from(frame)[0] >= MIN_RESERVED_CORRELATION_ID)


Frames = Generator[Sequence[Buffer], bytearray, None]


class SaslAuthenticator:
    """Sends ApiVersions, SaslHandshake, then SaslAuthenticate until the mechanism's exchange ends."""

    def __init__(
        self,
        mechanism: str,
        exchange: Callable[[], Exchange],
        client_id: str,
        clock_ms: Callable[[], float] = monotonic_ms,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._mechanism = mechanism
        self._exchange = exchange
        self._client_id = client_id
        self._clock_ms = clock_ms
        self._uniform = uniform
        self._correlation_id = MIN_RESERVED_CORRELATION_ID - 1
        self._versions: NodeApiVersions | None = None
        self._due_ms: float | None = None
        self._frames: Frames | None = None
        self._request: Sequence[Buffer] | None = None
        self._begin()

    @property
    def complete(self) -> bool:
        """Return whether the broker has accepted the login."""
        return self._frames is None

    def next_request(self) -> Sequence[Buffer] | None:
        """Return the frame to send now, None while a response is due or after the login is complete."""
        request, self._request = self._request, None
        return request

    def receive(self, frame: bytearray) -> None:
        """Take the response to the last request. Raises AuthenticationFailed."""
        if self._frames is None or self._request is not None:
            raise AuthenticationFailed("the broker sent bytes before a request")
        try:
            self._request = self._frames.send(frame)
        except StopIteration:
            self._frames = None

    def restart_if_due(self, now_ms: float) -> None:
        """Restart the authentication when the session is about to expire."""
        if self._due_ms is not None and now_ms >= self._due_ms and self._frames is None:
            self._begin()

    def _begin(self) -> None:
        self._frames = self._authenticate(self._exchange())
        self._request = next(self._frames)

    def _authenticate(self, exchange: Exchange) -> Frames:
        if self._versions is None:
            self._versions = yield from self._ask_versions()
        version = self._version(ApiKey.SASL_HANDSHAKE)
        handshake: SaslHandshakeResponse = yield from self._ask(
            ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(self._mechanism)
        )
        _check_handshake(handshake, self._mechanism)
        if version < FIRST_HANDSHAKE_WITH_FRAMES:
            raise AuthenticationFailed("the broker is too old to answer SASL tokens (no SaslAuthenticate)")
        lifetime_ms = yield from self._exchange_tokens(exchange)
        self._due_ms = self._clock_ms() + lifetime_ms * self._uniform(0.85, 0.95) if lifetime_ms > 0 else None

    def _exchange_tokens(self, exchange: Exchange) -> Generator[Sequence[Buffer], bytearray, int]:
        """Send and receive the exchange's tokens; return the session's lifetime in ms, 0 without a limit."""
        version = self._version(ApiKey.SASL_AUTHENTICATE)
        token = next(exchange)
        while True:
            answer: SaslAuthenticateResponse = yield from self._ask(
                ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(auth_bytes=token)
            )
            if answer.error_code:
                raise AuthenticationFailed(_refusal(answer.error_code, answer.error_message))
            try:
                token = exchange.send(bytes(answer.auth_bytes))
            except StopIteration:
                return answer.session_lifetime_ms

    def _ask_versions(self) -> Generator[Sequence[Buffer], bytearray, NodeApiVersions]:
        talk = ApiVersionsTalk()
        while talk.versions is None:
            version, request = talk.request()
            response = yield from self._ask(ApiKey.API_VERSIONS, version, request)
            if problem := talk.received(response):
                raise AuthenticationFailed(problem)
        return talk.versions

    def _version(self, key: ApiKey) -> int:
        assert self._versions is not None
        try:
            return self._versions.usable(key)
        except UnsupportedVersion as error:
            raise AuthenticationFailed(str(error)) from error

    def _ask(
        self, key: ApiKey, version: int, request: Message
    ) -> Generator[Sequence[Buffer], bytearray, Any]:
        self._correlation_id += 1
        if self._correlation_id > MAX_RESERVED_CORRELATION_ID:
            self._correlation_id = MIN_RESERVED_CORRELATION_ID
        header = RequestHeader(key, version, self._correlation_id, self._client_id)
        frame = yield encode_request_frame(header, request)
        try:
            answered, response = decode_response_frame(key, version, frame)
        except MalformedMessage as error:
            raise AuthenticationFailed(f"a {key.name} v{version} that is malformed came: {error}") from error
        if answered != self._correlation_id:
            raise AuthenticationFailed(f"request {answered} was answered instead of {self._correlation_id}")
        return response


def _check_handshake(response: SaslHandshakeResponse, mechanism: str) -> None:
    code = error_code(response.error_code)
    if code is ErrorCode.NONE:
        return
    if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(response.mechanisms) or "none"
        raise AuthenticationFailed(f"it does not offer {mechanism} but {offered}: set sasl.mechanism")
    if code is ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(
            "this listener does not ask for SASL: set security.protocol to PLAINTEXT or SSL"
        )
    raise AuthenticationFailed(_refusal(response.error_code, None))


def _refusal(number: int, message: str | None) -> str:
    code = error_code(number)
    return f"{message or code.message} ({code.name})"
