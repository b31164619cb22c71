"""The listener that the console takes, and when a visitor needs the token."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.load import load
from mpbroker.console.broker_listener import NoListener, listener_of, needs_token

LOOPBACK = "http.listener=127.0.0.1:9644"


def config(*settings: str) -> BrokerConfig:
    return load(None, (*settings, "sasl.enabled.mechanisms=SCRAM-SHA-256")).config


def login(tmp_path: Path, protocol: str = "SASL_PLAINTEXT") -> str:
    file = tmp_path / "console.properties"
    file.write_text(
        f"security.protocol={protocol}\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config=org.apache.kafka.common.security."
        'scram.ScramLoginModule required username="u" password="p";\n'
    )
    return f"http.console.client.config={file}"


def test_the_first_listener_without_a_login() -> None:
    found = listener_of(config("listeners=SASL_PLAINTEXT://:9093,PLAINTEXT://127.0.0.1:9092"))
    assert str(found.listener) == "PLAINTEXT://127.0.0.1:9092"
    assert found.settings is None


def test_a_port_comes_before_a_socket_in_the_file_system() -> None:
    listeners = "listeners=LOCAL://unix:/tmp/x.sock,PLAINTEXT://127.0.0.1:9092"
    protocols = "listener.security.protocol.map=LOCAL:PLAINTEXT,PLAINTEXT:PLAINTEXT"
    assert listener_of(config(listeners, protocols)).listener.port == 9092


def test_with_a_login_the_listener_that_it_is_for(tmp_path: Path) -> None:
    found = listener_of(
        config("listeners=PLAINTEXT://:9092,SASL_PLAINTEXT://127.0.0.1:9093", login(tmp_path))
    )
    assert found.listener.port == 9093


def test_no_listener_fits(tmp_path: Path) -> None:
    with pytest.raises(NoListener, match=r"http\.console\.client\.config"):
        listener_of(config("listeners=SASL_PLAINTEXT://:9093"))
    with pytest.raises(NoListener, match="SASL_PLAINTEXT"):
        listener_of(config("listeners=PLAINTEXT://:9092", login(tmp_path)))


def test_on_loopback_and_without_a_login_everybody_may_read() -> None:
    assert not needs_token(config(LOOPBACK))
    assert not needs_token(config("http.listener=[::1]:9644"))


@pytest.mark.parametrize(
    "settings",
    [
        ("http.listener=0.0.0.0:9644",),
        ("http.listener=:9644",),
        ("http.listener=10.0.0.1:9644",),
        (LOOPBACK, "listeners=SASL_PLAINTEXT://:9093"),
        (*(LOOPBACK, "listeners=LOCAL://unix:/tmp/x.sock"), "listener.security.protocol.map=LOCAL:PLAINTEXT"),
    ],
)
def test_a_visitor_gets_no_rights_that_he_does_not_have(settings: tuple[str, ...]) -> None:
    assert needs_token(config(*settings))


def test_the_consoles_own_rights_are_for_those_with_the_token(tmp_path: Path) -> None:
    assert needs_token(
        config(LOOPBACK, "listeners=PLAINTEXT://:9092,SASL_PLAINTEXT://:9093", login(tmp_path))
    )
