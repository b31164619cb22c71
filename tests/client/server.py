"""A listener of any security protocol; its half of SASL is the broker's own, what it answers is of no use."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.api_versions import Served
from mpbroker.protocol.codec import decode_request
from mpbroker.protocol.headers import decode_request_header, encode_response_frame
from mpbroker.security.jaas import PlainUsers
from mpbroker.security.mechanism import Mechanism
from mpbroker.security.plain import PlainServer
from mpbroker.security.sasl import Failure, Offer, SaslServer, State
from mpbroker.security.scram import ScramCredential, ScramServer, ScramType, credential_of, salted_password
from tests.support.threaded_server import HOST, ThreadedServer

USER, PASSWORD = "alice, the =1st", 'se"cret'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SALT = b"salt" * 6

APIS = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.LIST_GROUPS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
)


def offer(mechanisms: dict[str, Callable[[], Mechanism]], lifetime_ms: int = 0) -> Offer:
    """What a listener offers; sessions end after their lifetime if they have one."""
    served = tuple(Served(key, valid_versions(key)[0], valid_versions(key)[-1]) for key in APIS)
    limits = dict.fromkeys(mechanisms, lifetime_ms)
    return Offer(tuple(mechanisms), lambda name: mechanisms[name](), served, limits, lambda: 0)


@dataclass
class Listener(ThreadedServer):
    """`requests` are the API keys that came, in order, of all connections."""

    offer: Offer | None = None
    context: ssl.SSLContext | None = None
    requests: list[ApiKey] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def talk(self, connection: socket.socket) -> None:
        try:
            plain = connection
            if self.context is not None:
                plain = self.context.wrap_socket(connection.dup(), server_side=True)
            with plain, plain.makefile("rb") as stream:
                self.answer_all(plain, stream)
        except OSError as error:
            self.problems.append(str(error))

    def answer_all(self, connection: socket.socket, stream: Any) -> None:
        sasl = SaslServer(self.offer) if self.offer else None
        while len(size := stream.read(4)) == 4:
            frame = stream.read(struct.unpack(">i", size)[0])
            header, position = decode_request_header(frame)
            self.requests.append(ApiKey(header.api_key))
            if sasl and sasl.state is State.COMPLETE and header.api_key == ApiKey.SASL_HANDSHAKE:
                sasl = SaslServer(self.offer, again=sasl.session) if self.offer else None
            if sasl and sasl.state is not State.COMPLETE:
                try:
                    connection.sendall(sasl.receive(frame))
                except Failure as failure:
                    self.problems.append(str(failure))
                    connection.sendall(failure.answer)
                    return
                continue
            request, _ = decode_request(header.api_key, header.api_version, frame, position)
            answer = encode_response_frame(
                header.api_key,
                header.api_version,
                header.correlation_id,
                self._answer(header.api_key, request),
            )
            connection.sendall(b"".join(answer))

    def _answer(self, key: int, _request: Any) -> m.Message:
        if key == ApiKey.API_VERSIONS:
            api = m.ApiVersionsResponse.ApiVersion
            spans = [api(one, valid_versions(one)[0], valid_versions(one)[-1]) for one in APIS]
            return m.ApiVersionsResponse(api_keys=spans)
        if key == ApiKey.METADATA:
            return m.MetadataResponse(brokers=[m.MetadataResponse.MetadataResponseBroker(7, HOST, self.port)])
        if key == ApiKey.SASL_HANDSHAKE:
            return m.SaslHandshakeResponse(error_code=34)
        return m.ListGroupsResponse()


class Closes(Listener):
    """A broker without TLS takes the hello for a request of 369 MB and closes."""

    def answer_all(self, _connection: object, stream: Any) -> None:
        stream.read(4)


def look_up(kind: ScramType, user: str) -> ScramCredential | None:
    if user != USER:
        return None
    return credential_of(kind, salted_password(kind, PASSWORD, SALT, 4096), SALT, 4096)


def offered(lifetime_ms: int = 0) -> Offer:
    """All mechanisms, for one user."""
    return offer(
        {
            "PLAIN": lambda: PlainServer(PlainUsers({USER: PASSWORD.encode()})),
            "SCRAM-SHA-256": lambda: ScramServer(ScramType.SCRAM_SHA_256, look_up),
            "SCRAM-SHA-512": lambda: ScramServer(ScramType.SCRAM_SHA_512, look_up),
        },
        lifetime_ms,
    )


def settings(protocol: str, name: str = "", password: str = PASSWORD, **more: Any) -> ClientConfig:
    return ClientConfig(
        security_protocol=protocol,
        sasl_mechanism=name,
        sasl_username=USER,
        sasl_password=password,
        socket_connection_setup_timeout_ms=30_000,
        **more,
    )


def ask(listener: Listener, config: ClientConfig, times: int = 1) -> None:
    """Ask something, several times over one connection."""
    cluster = Cluster([(HOST, listener.port)], config)
    try:
        for _ in range(times):
            assert isinstance(cluster.ask_any(m.ListGroupsRequest()), m.ListGroupsResponse)
    finally:
        cluster.close()
