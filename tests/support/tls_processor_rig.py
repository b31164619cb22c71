"""A processor with TLS and SASL in the test's own process."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mpbroker.config.load import load
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.session import Session
from mpbroker.network.processor.tls_sasl import TlsSaslChannels
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.api_versions import Served
from mpbroker.protocol.codec import encode_bytes
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import (
    ApiVersionsRequest,
    Message,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from mpbroker.security.listener import secure_listeners
from tests.support.certificates import Authority
from tests.support.polling import until
from tests.support.processor_rig import PROCESSOR, Rig
from tests.support.tls_key_changes import TLS_1_3, KeyChanger

METADATA = 3
SASL, TLS = 0, 1
DELAY_MS = 50
AUTHORITY = Authority()
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SecureRig(Rig):
    """Listener 0 has SASL, listener 1 asks for certificates. Time is the test's."""

    def __init__(self, directory: Path, properties: str = "", **limits: int) -> None:
        super().__init__(**limits)
        AUTHORITY.sign("broker").write(directory / "broker.pem")
        AUTHORITY.write(directory / "ca.pem")
        file = directory / "server.properties"
        file.write_text(
            "listeners=SASL://127.0.0.1:1,TLS://127.0.0.1:2\n"
            "listener.security.protocol.map=SASL:SASL_PLAINTEXT,TLS:SSL\n"
            f"connection.failed.authentication.delay.ms={DELAY_MS}\n"
            "listener.name.sasl.sasl.enabled.mechanisms=PLAIN\n"
            f'listener.name.sasl.plain.sasl.jaas.config={MODULE} required user_ann="secret";\n'
            f"ssl.keystore.location={directory}/broker.pem\n"
            f"ssl.truststore.location={directory}/ca.pem\n"
            "listener.name.tls.ssl.client.auth=required\n"
            "listener.name.tls.ssl.principal.mapping.rules=RULE:^CN=(.*?),.*$/$1/L\n" + properties
        )
        config = load(file).config
        self.now_ns = 0
        self.ends: list[tuple[int, int]] = []
        self.secure = TlsSaslChannels(
            self.turn,
            config,
            secure_listeners(config),
            (Served(18, 0, 4),),
            lambda *_: None,
            self.memory.counters(PROCESSOR),
            logging.getLogger("mpbroker"),
            now_ns=lambda: self.now_ns,
        )
        self.by_client: dict[socket.socket, tuple[int, int]] = {}

    def meet(self, listener: int) -> socket.socket:
        served, client = self.pair()
        fd = served.detach()
        added = self.turn.add_connection(fd, listener, 2 if listener == SASL else 1)
        assert added is not None
        self.secure.add(fd, listener, *added)
        self.by_client[client] = added
        return client

    def session(self, client: socket.socket) -> Session:
        return self.turn.sessions.of(*self.by_client[client])

    def step(self, turns: int = 3) -> None:
        for _ in range(turns):
            self.turn.turn(0)
            self.secure.serve()
            self.secure.work()
            for session, reason, _ in self.turn.closed():
                self.secure.closed(session, reason)
                self.ends.append((session.connection, reason))

    def until(self, done: Callable[[], bool]) -> None:
        self.step(1)
        until(done, lambda: f"it is done; connections that ended: {self.ends}", lambda: self.step(1))

    def handshake(
        self, context: ssl.SSLContext | None = None, session: ssl.SSLSession | None = None
    ) -> ssl.SSLSocket:
        """A client of listener TLS, with Jane's certificate."""
        plain = self.meet(TLS)
        served = self.by_client.pop(plain)
        client = (context or self.jane()).wrap_socket(
            plain, server_hostname="localhost", do_handshake_on_connect=False, session=session
        )
        self.by_client[client] = served
        client.setblocking(False)
        self.clients.append(client)

        def shaken() -> bool:
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                return False
            return True

        self.until(shaken)
        self.step()
        return client

    def jane(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
        context.load_cert_chain(self.janes_store())
        return context

    def janes_store(self) -> Path:
        return AUTHORITY.sign("Jane").write(Path(self.directory.name) / "client.pem")


@contextlib.contextmanager
def key_changer(rig: SecureRig, version: int = TLS_1_3) -> Iterator[tuple[KeyChanger, socket.socket]]:
    """A client of listener TLS that has shaken hands, and its socket beneath."""
    plain = rig.meet(TLS)
    plain.setblocking(False)
    with contextlib.closing(KeyChanger(plain, rig.janes_store(), version)) as client:
        while not client.shake() or rig.counter(Counter.COUNT_AUTHENTICATIONS) == 0:
            rig.step()
        with contextlib.suppress(BlockingIOError):
            client.hears(plain.recv(1 << 20))
        yield client, plain


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextlib.contextmanager
def secure_rig(directory: Path, properties: str = "", **limits: int) -> Iterator[SecureRig]:
    """One that leaves nothing behind."""
    # What earlier tests have left closes its descriptors now, not those that are made here.
    gc.collect()
    made = SecureRig(directory, properties, **limits)
    gc.collect()
    before = descriptors()
    yield made
    for client in made.clients:
        client.close()
    made.step(5)
    assert made.in_use_bytes() == 0
    assert descriptors() == before
    made.close()


def request(key: ApiKey, version: int, body: Message) -> bytes:
    return encode_bytes(encode_request_frame(RequestHeader(key, version, 5, "c"), body))


def ask(rig: SecureRig, client: socket.socket, key: ApiKey, version: int, body: Message) -> Any:
    client.sendall(request(key, version, body))
    rig.step()
    return decode_response_frame(key, version, client.recv(65536)[4:])[1]


def log_in(rig: SecureRig, client: socket.socket, password: str = "secret") -> None:
    ask(rig, client, ApiKey.API_VERSIONS, 3, ApiVersionsRequest("tester", "1.2"))
    ask(rig, client, ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN"))
    client.sendall(
        request(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(f"\0ann\0{password}".encode()))
    )
    rig.step()


def receive(rig: SecureRig, client: ssl.SSLSocket, size: int) -> bytes:
    """Receive while the broker goes on. Session tickets come first and are no data."""
    received = bytearray()

    def came() -> bool:
        try:
            while len(received) < size:
                received.extend(client.recv(65536))
        except ssl.SSLWantReadError:
            return False
        return True

    rig.until(came)
    return bytes(received)
