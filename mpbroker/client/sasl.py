"""Who the client is, said on the connection before its first request (Kafka: SaslClientAuthenticator).

Sans-I/O: an authenticator gives the frames to send and takes the frames that come. Its requests have
correlation ids from a range of their own, so that a response which was meant for somebody else is seen.
KIP-368: when the broker limits the session, the client authenticates again at 85 to 95 % of its time.
"""

import random
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from mpbroker.client.clock import monotonic_ms
from mpbroker.client.errors import AuthenticationFailed
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

# SaslAuthenticate exists behind a handshake of version 1 only; before that tokens were sent bare.
FIRST_HANDSHAKE_WITH_FRAMES = 1


def is_reserved(correlation_id: int) -> bool:
    return correlation_id >= MIN_RESERVED_CORRELATION_ID


class Mechanism(Protocol):
    """One exchange of tokens. Made anew for every authentication."""

    name: str

    def first(self) -> bytes:
        """What the client begins with."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The next token, None if nothing is left to say. Raises AuthenticationFailed."""

    @property
    def complete(self) -> bool:
        """The broker, too, has shown who it is, where the mechanism has that."""


class Authenticator(Protocol):
    """What a channel needs of it."""

    again: bool

    @property
    def complete(self) -> bool:
        """Requests may be sent."""

    def next_request(self) -> Sequence[Buffer] | None:
        """A frame to be sent now."""

    def receive(self, frame: bytearray) -> None:
        """The response to the last request. Raises AuthenticationFailed."""

    def restart_if_due(self, now_ms: float) -> None:
        """Begins anew when the session is about to end."""


class NoAuthentication:
    """Of PLAINTEXT and SSL: who has the connection may use it."""

    complete = True
    again = False

    def next_request(self) -> None:
        return None

    def receive(self, frame: bytearray) -> None:
        raise AuthenticationFailed(f"a frame of {len(frame)} bytes came that nobody asked for")

    def restart_if_due(self, now_ms: float) -> None:
        """There is no session."""


Talk = Generator[Sequence[Buffer], bytearray, None]


class SaslAuthenticator:
    """ApiVersions, SaslHandshake, SaslAuthenticate until the mechanism is content."""

    def __init__(
        self,
        mechanism: Callable[[], Mechanism],
        client_id: str,
        clock_ms: Callable[[], float] = monotonic_ms,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._mechanism = mechanism
        self._client_id = client_id
        self._clock_ms = clock_ms
        self._uniform = uniform
        self._correlation_id = MIN_RESERVED_CORRELATION_ID - 1
        self._versions: NodeApiVersions | None = None
        self._due_ms: float | None = None
        self.again = False
        self._talk: Talk | None = None
        self._request: Sequence[Buffer] | None = None
        self._begin()

    @property
    def complete(self) -> bool:
        return self._talk is None

    def next_request(self) -> Sequence[Buffer] | None:
        request, self._request = self._request, None
        return request

    def receive(self, frame: bytearray) -> None:
        if self._talk is None or self._request is not None:
            raise AuthenticationFailed("the broker said something before it was asked")
        try:
            self._request = self._talk.send(frame)
        except StopIteration:
            self._talk = None
            self.again = False

    def restart_if_due(self, now_ms: float) -> None:
        if self._due_ms is not None and now_ms >= self._due_ms and self._talk is None:
            self.again = True
            self._begin()

    def _begin(self) -> None:
        self._talk = self._authenticate(self._mechanism())
        self._request = next(self._talk)

    def _authenticate(self, mechanism: Mechanism) -> Talk:
        if self._versions is None:
            self._versions = yield from self._ask_versions()
        version = self._version(ApiKey.SASL_HANDSHAKE)
        handshake: SaslHandshakeResponse = yield from self._ask(
            ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism.name)
        )
        _check_handshake(handshake, mechanism.name)
        if version < FIRST_HANDSHAKE_WITH_FRAMES:
            raise AuthenticationFailed("the broker is too old to answer SASL tokens (no SaslAuthenticate)")
        token: bytes | None = mechanism.first()
        while token is not None:
            answer: SaslAuthenticateResponse = yield from self._ask(
                ApiKey.SASL_AUTHENTICATE,
                self._version(ApiKey.SASL_AUTHENTICATE),
                SaslAuthenticateRequest(auth_bytes=token),
            )
            if answer.error_code:
                raise AuthenticationFailed(_refusal(answer.error_code, answer.error_message))
            token = mechanism.answer(bytes(answer.auth_bytes))
        if not mechanism.complete:
            raise AuthenticationFailed(f"the broker ended {mechanism.name} before it was over")
        lifetime_ms = answer.session_lifetime_ms
        self._due_ms = self._clock_ms() + lifetime_ms * self._uniform(0.85, 0.95) if lifetime_ms > 0 else None

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
            raise AuthenticationFailed(f"a {key.name} v{version} came that is none: {error}") from error
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
