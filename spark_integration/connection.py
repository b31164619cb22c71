"""One TCP connection to a broker; a request may be sent before the response to the last one was taken."""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import Any

from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import REQUESTS, ApiVersionsRequest, ApiVersionsResponse, Message
from mpbroker.protocol.wire import MalformedMessage
from spark_integration.errors import SourceUnavailable

CLIENT_ID = "mpbroker-spark"
CONNECT_TIMEOUT_S = 10.0
RECEIVE_BUFFER_BYTES = 4 << 20
# What a stranger may make this process allocate.
RESPONSE_BYTES_MAX = 1 << 30

# Later versions name topics by id only.
_VERSION_CAPS = {ApiKey.FETCH: 12}
_KEYS = {message: ApiKey(key) for key, message in REQUESTS.items()}
_SIZE = struct.Struct(">i")
_API_VERSIONS_START = struct.Struct(">ih")


class ConnectionLost(SourceUnavailable):
    """The broker cannot be reached or has closed the connection; trying again may help."""


class Connection:
    """A connection that knows which versions the broker speaks. Raises ConnectionLost, SourceUnavailable."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self.address = f"{host}:{port}"
        self._timeout_s = timeout_s
        try:
            self._socket = _connected(host, port)
        except OSError as error:
            raise ConnectionLost(
                f"cannot connect to {self.address}: {error.strerror or error}. "
                "Check kafka.bootstrap.servers and the broker's advertised.listeners"
            ) from error
        self._socket.settimeout(timeout_s)
        self._pending: deque[tuple[ApiKey, int, int]] = deque()
        self._sent = 0
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._versions = self._ask_versions()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def call(self, request: Message) -> Any:
        """The response to a request, when nothing else is under way."""
        self.send(request)
        return self.receive()

    def send(self, request: Message) -> None:
        key = _KEYS[type(request)]
        self._send(key, self._version_for(key), request)

    def receive(self) -> Any:
        """The response to the oldest request that has none yet."""
        key, version, sent = self._pending.popleft()
        return self._decode(key, version, sent, self._receive_frame())

    def _version_for(self, key: ApiKey) -> int:
        ours = valid_versions(key)
        theirs = self._versions.get(key, (0, -1))
        version = min(ours[-1], theirs[1], _VERSION_CAPS.get(key, ours[-1]))
        if version < max(ours[0], theirs[0]):
            raise SourceUnavailable(
                f"the broker at {self.address} speaks {key.name} v{theirs[0]} to v{theirs[1]}, "
                f"not v{ours[0]} to v{ours[-1]}"
            )
        return version

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        """A broker that does not know our version answers in version 0 (KIP-511)."""
        request = ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version="1")
        for version in (3, 0):
            self._send(ApiKey.API_VERSIONS, version, request)
            frame = self._receive_frame()
            key, _, sent = self._pending.popleft()
            refused = (
                len(frame) >= _API_VERSIONS_START.size
                and _API_VERSIONS_START.unpack_from(frame)[1] == ErrorCode.UNSUPPORTED_VERSION
            )
            if not (refused and version):
                break
        response: ApiVersionsResponse = self._decode(key, version, sent, frame)
        if response.error_code:
            raise SourceUnavailable(
                f"{self.address} does not say what it speaks (error {response.error_code})"
            )
        return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    def _send(self, key: ApiKey, version: int, request: Message) -> None:
        self._sent += 1
        try:
            for segment in encode_request_frame(RequestHeader(key, version, self._sent, CLIENT_ID), request):
                self._socket.sendall(segment)
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error
        self._pending.append((key, version, self._sent))

    def _receive_frame(self) -> bytearray:
        (size,) = _SIZE.unpack(self._receive_exactly(_SIZE.size))
        if not 0 <= size <= RESPONSE_BYTES_MAX:
            raise SourceUnavailable(
                f"{self.address} does not speak Kafka's protocol (a response of {size} bytes)"
            )
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        position = 0
        while position < size:
            try:
                received = self._socket.recv_into(view[position:])
            except TimeoutError as error:
                raise self._lost(
                    f"no answer within {self._timeout_s:g} s (kafkaConsumer.pollTimeoutMs)"
                ) from error
            except OSError as error:
                raise self._lost(error.strerror or str(error)) from error
            if received == 0:
                raise self._lost("closed by the broker")
            position += received
        return data

    def _decode(self, key: ApiKey, version: int, sent: int, frame: bytearray) -> Any:
        try:
            answered, response = decode_response_frame(key, version, frame)
        except MalformedMessage as error:
            raise SourceUnavailable(
                f"{self.address} sent a {key.name} v{version} that is none: {error}"
            ) from error
        if answered != sent:
            raise SourceUnavailable(f"{self.address} answered request {answered} instead of {sent}")
        return response

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self.address} was lost: {reason}")


def _connected(host: str, port: int) -> socket.socket:
    """The buffer has to be set before connecting to count for the window."""
    problem: OSError = OSError(f"no address of {host}")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.settimeout(CONNECT_TIMEOUT_S)
            found.connect(address)
        except OSError as error:
            found.close()
            problem = error
        else:
            return found
    raise problem
