"""Other settings of TLS and SASL while a broker runs: new connections get them, open ones stay."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import psutil
import pytest

from mpbroker.ipc.control_client import ControlClient, ControlError
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import MetadataRequest
from ops.bench.brokers import HOST
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import control, served
from tests.support.secure_broker import KEY_PASSWORD, PLAIN_PASSWORD, Closed, RawClient, SecureBroker

NEW_PASSWORD = "n3w-Pa55word"


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with served(SecureBroker(tmp_path_factory.mktemp("broker"))) as running:
        yield running


def reload(broker: SecureBroker, *changes: tuple[str, str]) -> dict[str, list[str]]:
    text = broker.properties.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    broker.properties.write_text(text)
    return ControlClient(broker.runtime_dir, timeout_seconds=30).call("reload")


def is_answered(client: RawClient) -> bool:
    return len(client.ask(ApiKey.METADATA, 12, MetadataRequest(topics=[])).brokers) == 1


def shown_certificate(broker: SecureBroker, listener: str) -> bytes:
    with broker.connect(listener) as client:
        assert isinstance(client.sock, ssl.SSLSocket)
        return client.sock.getpeercert(binary_form=True) or b""


def test_another_certificate_and_other_users(broker: SecureBroker) -> None:
    pids = {each["pid"] for each in control(broker).call("status")["processes"]}
    other = broker.signed("other")
    other.write(broker.directory / "other.pem", KEY_PASSWORD.encode())
    with broker.connect("TLS") as tls, broker.connect("SASL") as sasl:
        assert is_answered(tls)
        assert sasl.plain("ann", PLAIN_PASSWORD).error_code == 0
        answer = reload(
            broker,
            ("/broker.pem\n", "/other.pem\n"),
            (f'user_ann="{PLAIN_PASSWORD}"', f'user_ann="{NEW_PASSWORD}"'),
        )
        assert answer["changed"] == ["listener.name.<listener>.<security setting>", "ssl.keystore.location"]
        assert shown_certificate(broker, "TLS") == other.der
        with broker.connect("SASL") as later:
            assert later.plain("ann", NEW_PASSWORD).error_code == 0
            assert is_answered(later)
        with broker.connect("SASL") as later:
            assert later.plain("ann", PLAIN_PASSWORD).error_code != 0
        assert is_answered(tls)
        assert is_answered(sasl), "who is in stays in"
    assert {each["pid"] for each in control(broker).call("status")["processes"]} == pids
    (victim,) = [
        each["pid"] for each in control(broker).call("status")["processes"] if each["name"] == "processor 0"
    ]
    psutil.Process(victim).kill()

    def successor_serves() -> bool:
        try:
            return shown_certificate(broker, "TLS") == other.der
        except OSError:
            return False

    eventually(successor_serves, "a successor has what is new")
    assert not any(secret in broker.output() for secret in (NEW_PASSWORD, PLAIN_PASSWORD, KEY_PASSWORD))


def test_a_setting_of_one_listener_is_its_own(broker: SecureBroker) -> None:
    answer = reload(
        broker, ("listener.name.tls.ssl.client.auth=requested", "listener.name.tls.ssl.client.auth=required")
    )
    assert answer["changed"] == ["listener.name.<listener>.<security setting>"]
    with pytest.raises((Closed, OSError)), broker.connect("TLS") as client:  # of TLS 1.3 the first read tells
        is_answered(client)
    with broker.connect("TLS", own=True) as client:
        assert is_answered(client)
    with broker.connect("SASL") as sasl:
        assert sasl.plain("ann", PLAIN_PASSWORD).error_code == 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("/broker.pem\n", "/nowhere.pem\n", "nowhere.pem"),
        ("/broker.pem\n", "/ca.pem\n", "listener TLS"),
        ("SCRAM-SHA-512,OAUTHBEARER\n", "SCRAM-SHA-512,GSSAPI\n", "GSSAPI"),
    ],
)
def test_what_cannot_be_used_changes_nothing(broker: SecureBroker, old: str, new: str, said: str) -> None:
    before = shown_certificate(broker, "TLS")
    with pytest.raises(ControlError, match="nothing changes: ") as refused:
        reload(broker, (old, new), (PLAIN_PASSWORD, NEW_PASSWORD))
    assert said in str(refused.value)
    assert shown_certificate(broker, "TLS") == before
    with broker.connect("SASL") as client:
        assert client.plain("ann", PLAIN_PASSWORD).error_code == 0
    with socket.create_connection((HOST, broker.port), timeout=PATIENCE_S) as plain:
        assert is_answered(RawClient(plain))
    assert NEW_PASSWORD not in broker.output()
