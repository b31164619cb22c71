"""One TCP connection to a broker: request out, response in, versions agreed on beforehand.

Synchronous and one request at a time: the commands of this package have nothing else to do meanwhile.
"""

import socket
import struct
from typing import Any

from mpbroker.cli.errors import CliError
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import (
    REQUESTS,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Message,
    ProduceRequest,
)
from mpbroker.protocol.wire import MalformedMessage

CLIENT_ID = "mpbroker-cli"
CONNECT_TIMEOUT_SECONDS = 10.0
REQUEST_TIMEOUT_SECONDS = 40.0
# A response cannot be larger than what one fetch asks for and its frame; this bounds what a stranger sends.
RESPONSE_BYTES_MAX = 256 << 20

# Versions beyond these name topics by id only; people type names.
_VERSION_CAPS = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12}
_KEYS = {message: ApiKey(key) for key, message in REQUESTS.items()}
_SIZE = struct.Struct(">i")
# correlation id and error code: an ApiVersions response starts with these in every version
_API_VERSIONS_START = struct.Struct(">ih")


class ConnectionLost(CliError):
    """The broker is gone or has closed the connection; asking again may help if the question is harmless."""


class Connection:
    """A connection that knows which versions the broker speaks."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), CONNECT_TIMEOUT_SECONDS)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConnectionLost(
                f"cannot connect to {self.address}: {reason}; does the broker run there? (--bootstrap-server)"
            ) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(REQUEST_TIMEOUT_SECONDS)
        self._correlation_id = 0
        self._versions = self._ask_versions()

    def close(self) -> None:
        self._socket.close()

    def call(self, request: Message) -> Any:
        """The response to a request; None to a produce with acks=0, which has none."""
        key = _KEYS[type(request)]
        version = self._version_for(key)
        self._send(key, version, request)
        if isinstance(request, ProduceRequest) and request.acks == 0:
            return None
        return self._decode(key, version, self._receive())

    def _version_for(self, key: ApiKey) -> int:
        ours = valid_versions(key)
        theirs = self._versions.get(key)
        if theirs is None:
            raise CliError(f"the broker at {self.address} has no {key.name} requests")
        version = min(ours[-1], theirs[1], _VERSION_CAPS.get(key, ours[-1]))
        if version < max(ours[0], theirs[0]):
            raise CliError(
                f"the broker at {self.address} speaks {key.name} v{theirs[0]}-{theirs[1]}, "
                f"this command v{ours[0]}-{ours[-1]}"
            )
        return version

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        """KIP-511: a broker that does not know our version answers in version 0, with the ones it knows."""
        request = ApiVersionsRequest(client_software_name="mpbroker", client_software_version="1")
        for version in (3, 0):
            self._send(ApiKey.API_VERSIONS, version, request)
            frame = self._receive()
            refused = (
                len(frame) >= _API_VERSIONS_START.size
                and _API_VERSIONS_START.unpack_from(frame)[1] == ErrorCode.UNSUPPORTED_VERSION
            )
            if not (refused and version):
                break
        response: ApiVersionsResponse = self._decode(ApiKey.API_VERSIONS, version, frame)
        if response.error_code:
            raise CliError(f"{self.address} does not say what it speaks (error {response.error_code})")
        return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    def _send(self, key: ApiKey, version: int, request: Message) -> None:
        self._correlation_id += 1
        header = RequestHeader(key, version, self._correlation_id, CLIENT_ID)
        try:
            for segment in encode_request_frame(header, request):
                self._socket.sendall(segment)
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error

    def _receive(self) -> bytearray:
        (size,) = _SIZE.unpack(self._receive_exactly(_SIZE.size))
        if not 0 <= size <= RESPONSE_BYTES_MAX:
            raise CliError(f"{self.address} does not speak Kafka's protocol (a response of {size} bytes)")
        return self._receive_exactly(size)

    def _receive_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        position = 0
        while position < size:
            try:
                received = self._socket.recv_into(view[position:])
            except TimeoutError as error:
                raise self._lost(f"no answer within {REQUEST_TIMEOUT_SECONDS:g} s") from error
            except OSError as error:
                raise self._lost(error.strerror or str(error)) from error
            if received == 0:
                raise self._lost("closed by the broker")
            position += received
        return data

    def _decode(self, key: ApiKey, version: int, frame: bytearray) -> Any:
        try:
            correlation_id, response = decode_response_frame(key, version, frame)
        except MalformedMessage as error:
            raise CliError(f"{self.address} sent a {key.name} v{version} that is none: {error}") from error
        if correlation_id != self._correlation_id:
            raise CliError(
                f"{self.address} answered request {correlation_id} instead of {self._correlation_id}"
            )
        return response

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self.address} was lost: {reason}")
