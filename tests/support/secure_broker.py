"""A broker with every kind of secure listener, its certificates, and raw clients that speak to it."""

from __future__ import annotations

import json
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import encode_bytes
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import (
    Message,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from mpbroker.security.scram import ScramClient, ScramType
from ops.bench.brokers import HOST, Mpbroker, free_port
from tests.support.certificates import Authority, Signed
from tests.support.polling import PATIENCE_S
from tests.support.tokens import Signer

# Whatever of these is found where it must not be is found by these words.
PLAIN_PASSWORD = "pl41n-Pa55word"
SCRAM_PASSWORD = "5cr4m-Pa55word"
KEY_PASSWORD = "k3y-Pa55word"
TOKEN_SECRET = "t0ken-5ecret"
FAILED_DELAY_MS = 300
REAUTH_MS = 1500
AUDIENCE = "mpbroker-tests"
FRAME_BYTES_MAX = 4096

PROPERTIES = """\
listeners={listeners}
listener.security.protocol.map={protocols}
connection.failed.authentication.delay.ms={delay}
connection.failed.authentication.delay.max.ms={longest_delay}
sasl.server.max.receive.size={frame_max}
delegation.token.secret.key={token_secret}
delegation.token.expiry.check.interval.ms=100
ssl.keystore.type=PEM
ssl.keystore.location={directory}/broker.pem
ssl.key.password={key_password}
ssl.truststore.type=PEM
ssl.truststore.location={directory}/ca.pem
listener.name.tls.ssl.client.auth=requested
listener.name.tls.ssl.principal.mapping.rules=RULE:^CN=([^,]+),.*$/$1/L,DEFAULT
listener.name.mutual.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl.plain.sasl.jaas.config={jaas}
listener.name.both.plain.sasl.jaas.config={jaas}
listener.name.short.plain.sasl.jaas.config={jaas}
listener.name.shorttls.plain.sasl.jaas.config={jaas}
listener.name.sasl.oauthbearer.sasl.server.callback.handler.class={unsecured}
listener.name.both.oauthbearer.sasl.server.callback.handler.class={unsecured}
listener.name.short.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.short.connections.max.reauth.ms={reauth}
listener.name.signed.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.signed.oauthbearer.sasl.oauthbearer.jwks.endpoint.url=file://{directory}/keys.json
listener.name.signed.oauthbearer.sasl.oauthbearer.expected.audience={audience}
listener.name.shorttls.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.shorttls.connections.max.reauth.ms={reauth}
"""
PROTOCOLS = {
    "OPEN": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "SASL": "SASL_PLAINTEXT",
    "BOTH": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
    "SHORTTLS": "SASL_SSL",
    "SIGNED": "SASL_SSL",
}
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_ann="{PLAIN_PASSWORD}" user_bob="{PLAIN_PASSWORD}2";'
)
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
    "OAuthBearerUnsecuredValidatorCallbackHandler"
)


@dataclass
class SecureBroker(Mpbroker):
    """Its `port` is that of the listener OPEN, which is plain text."""

    processors: int = 1
    failed_delay_ms: int = FAILED_DELAY_MS
    # Of who fails often.
    longest_delay_ms: int = 5000
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in PROTOCOLS})
    authority: Authority = field(default_factory=Authority)
    signer: Signer = field(default_factory=Signer)

    def __post_init__(self) -> None:
        self.port = self.ports["OPEN"]
        self.directory.mkdir(parents=True, exist_ok=True)
        self.signed("broker").write(self.directory / "broker.pem", KEY_PASSWORD.encode())
        self.authority.write(self.directory / "ca.pem")
        self.keys.write_text(json.dumps(self.signer.set))
        self.client = self.signed("Client")
        self.client_pem = self.client.write(self.directory / "client.pem")
        self.properties.write_text(
            PROPERTIES.format(
                listeners=",".join(f"{name}://{HOST}:{port}" for name, port in self.ports.items()),
                protocols=",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
                delay=self.failed_delay_ms,
                longest_delay=self.longest_delay_ms,
                frame_max=FRAME_BYTES_MAX,
                token_secret=TOKEN_SECRET,
                directory=self.directory,
                key_password=KEY_PASSWORD,
                jaas=JAAS,
                unsecured=UNSECURED,
                reauth=REAUTH_MS,
                audience=AUDIENCE,
            )
        )

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def keys(self) -> Path:
        """The key set that listener SIGNED believes."""
        return self.directory / "keys.json"

    def token(
        self,
        user: str = "carol",
        *,
        by: Signer | None = None,
        algorithm: str = "ES256",
        lives_s: float = 60,
    ) -> str:
        """Return a token for listener SIGNED."""
        claims = {"sub": user, "aud": AUDIENCE, "exp": time.time() + lives_s}
        return (by or self.signer).sign(algorithm, "r" if algorithm == "RS256" else "e", claims)

    def signed(self, name: str) -> Signed:
        return self.authority.sign(name)

    def command(self) -> Sequence[str]:
        settings = ("--config", str(self.properties), "--log-dirs", str(self.log_dir))
        counts = ("--processors", str(self.processors), "--handlers", "2")
        return [sys.executable, "-m", "mpbroker", "serve", *settings, *counts, *self.always, *self.flags]

    def address_of(self, listener: str) -> str:
        return f"{HOST}:{self.ports[listener]}"

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    def tls_context(self, *, own: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if own:
            context.load_cert_chain(self.client_pem)
        return context

    @contextmanager
    def connect(
        self, listener: str, *, own: bool = False, timeout_s: float = PATIENCE_S
    ) -> Iterator[RawClient]:
        """A raw connection, with TLS where the listener has it."""
        with socket.create_connection((HOST, self.ports[listener]), timeout=timeout_s) as plain:
            if PROTOCOLS[listener] in ("PLAINTEXT", "SASL_PLAINTEXT"):
                yield RawClient(plain)
                return
            with self.tls_context(own=own).wrap_socket(plain, server_hostname="localhost") as secure:
                yield RawClient(secure)

    @contextmanager
    def connect_as(self, listener: str, context: ssl.SSLContext) -> Iterator[RawClient]:
        """Connect with this client's certificate."""
        with (
            socket.create_connection((HOST, self.ports[listener]), timeout=PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            yield RawClient(secure)


class Closed(Exception):
    """The broker has closed the connection."""


class RawClient:
    """Requests by hand on one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.correlation = 0
        self.client_id = "raw"

    def frame(self, key: ApiKey, version: int, body: Message) -> bytes:
        self.correlation += 1
        header = RequestHeader(key, version, self.correlation, self.client_id)
        return encode_bytes(encode_request_frame(header, body))

    def ask(self, key: ApiKey, version: int, body: Message) -> Any:
        """The response; Closed if there is none."""
        self.send(self.frame(key, version, body))
        return self.answer(key, version)

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Closed from error

    def answer(self, key: ApiKey, version: int) -> Any:
        correlation, body = decode_response_frame(key, version, self.raw_answer())
        assert correlation <= self.correlation
        return body

    def raw_answer(self) -> bytes:
        return self._read(int.from_bytes(self._read(4)))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = self.sock.recv(size - len(data))
            except TimeoutError:
                raise
            except OSError as error:
                raise Closed from error
            if not part:
                raise Closed
            data += part
        return data

    def ends(self) -> bool:
        """Tell whether the broker closes without another byte."""
        try:
            return self._read(1) == b""
        except Closed:
            return True

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        return self.ask(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism))

    def token(self, data: bytes) -> SaslAuthenticateResponse:
        answer: SaslAuthenticateResponse = self.ask(
            ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(data)
        )
        return answer

    def plain(self, user: str = "ann", password: str = PLAIN_PASSWORD) -> SaslAuthenticateResponse:
        assert self.handshake("PLAIN").error_code == 0
        return self.token(f"\0{user}\0{password}".encode())

    def scram(
        self, kind: ScramType, user: str, password: str, *, by_token: bool = False
    ) -> SaslAuthenticateResponse:
        assert self.handshake(kind.mechanism).error_code == 0
        client = ScramClient(kind, user, password, by_token=by_token)
        first = self.token(client.first())
        if first.error_code:
            return first
        final = self.token(client.final(first.auth_bytes))
        if not final.error_code:
            client.verify(final.auth_bytes)
        return final
