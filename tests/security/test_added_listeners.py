"""Listeners with TLS and SASL that are added while a broker runs that had none."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil
import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import AlterUserScramCredentialsRequest, MetadataRequest
from mpbroker.security.scram import ScramType, salted_password
from ops.bench.brokers import HOST, Mpbroker
from tests.support.certificates import Authority
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import control, served
from tests.support.secure_broker import KEY_PASSWORD, SCRAM_PASSWORD, RawClient

SHA512 = ScramType.SCRAM_SHA_512
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
PROPERTIES = """\
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LATER:SASL_SSL,BARE:SSL
listener.name.later.ssl.keystore.location={directory}/broker.pem
listener.name.later.ssl.key.password={password}
listener.name.later.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.later.max.connections=1
"""


@dataclass
class PlainBroker(Mpbroker):
    """It knows what it needs for a listener that comes later."""

    authority: Authority = field(default_factory=Authority)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.authority.sign("broker").write(self.directory / "broker.pem", KEY_PASSWORD.encode())
        self.authority.write(self.directory / "ca.pem")
        properties = self.directory / "server.properties"
        properties.write_text(PROPERTIES.format(directory=self.directory, password=KEY_PASSWORD))
        self.flags = ("--config", str(properties), "--processors", "1")

    def control(self, command: str, **arguments: str) -> dict[str, str]:
        return dict(control(self).call(command, **arguments))

    def add(self, listener: str, **arguments: str) -> int:
        added = self.control("listener-add", listener=listener, **arguments)
        return int(added["listener"].rpartition(":")[2])

    @property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.directory / "ca.pem"))

    @contextmanager
    def secure(self, port: int) -> Iterator[RawClient]:
        with (
            socket.create_connection((HOST, port), timeout=PATIENCE_S) as plain,
            self.tls.wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            yield RawClient(sock)

    def add_user(self, user: str) -> None:
        salt = os.urandom(16)
        salted = salted_password(SHA512, SCRAM_PASSWORD, salt, 4096)
        body = AlterUserScramCredentialsRequest([], [Upsertion(user, SHA512, 4096, salt, salted)])
        with socket.create_connection(self.address, timeout=PATIENCE_S) as plain:
            (result,) = RawClient(plain).ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body).results
        assert result.error_code == 0

    def kill_processor(self) -> None:
        def pid() -> int:
            found = control(self).call("status")["processes"]
            return next(int(each["pid"]) for each in found if each["name"] == "processor 0")

        before = pid()
        psutil.Process(before).kill()
        eventually(lambda: pid() not in (0, before), "it has a successor")


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainBroker]:
    with served(PlainBroker(tmp_path_factory.mktemp("broker"))) as running:
        yield running


def is_served(client: RawClient, user: str) -> bool:
    if client.scram(SHA512, user, SCRAM_PASSWORD).error_code:
        return False
    return len(client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[])).brokers) == 1


def test_a_listener_with_sasl_and_tls_comes_and_goes(broker: PlainBroker) -> None:
    broker.add_user("ann")
    port = broker.add(f"LATER://{HOST}:0")
    with broker.secure(port) as client:
        assert is_served(client, "ann")
    broker.kill_processor()
    with broker.secure(port) as client:
        assert is_served(client, "ann"), "a successor serves it too"
        with socket.create_connection((HOST, port), timeout=PATIENCE_S) as second:
            second.settimeout(0.3)
            with pytest.raises(TimeoutError):  # it has one connection, as its limit says
                broker.tls.wrap_socket(second, server_hostname="localhost")
        broker.control("listener-remove", listener="LATER")
        assert client.ends()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), timeout=PATIENCE_S)
    again = broker.add(f"LATER://{HOST}:0")
    with broker.secure(again) as client:
        assert is_served(client, "ann")


def test_keys_that_are_gone_when_the_first_client_comes(broker: PlainBroker) -> None:
    """The processor refuses that client, says why, and serves the next one when they are there again."""
    broker.add_user("ann")
    port = broker.add(f"LATER://{HOST}:0")
    pem = broker.directory / "broker.pem"
    key = pem.read_bytes()
    pem.unlink()
    with pytest.raises((ssl.SSLError, OSError)), broker.secure(port):
        pass
    eventually(lambda: "a connection on LATER was refused: listener LATER" in broker.output(), "it says why")
    pem.write_bytes(key)
    with broker.secure(port) as client:
        assert is_served(client, "ann")
    assert KEY_PASSWORD not in broker.output()
