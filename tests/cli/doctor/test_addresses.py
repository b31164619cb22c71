"""Checks of ports and of advertised addresses."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.cli.doctor import addresses
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.load import load
from spark_integration.check import Check


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def config_of(tmp_path: Path, listeners: str, *more: str) -> BrokerConfig:
    return load(None, [f"log.dirs={tmp_path}", f"listeners={listeners}", *more]).config


def found_in(config: BrokerConfig, running: tuple[str, ...] | None = None) -> dict[str, Check]:
    return {one.name: one for one in addresses.checks(config, running)}


def test_a_port_that_is_taken_is_told_with_who_has_it(tmp_path: Path, taken_port: int) -> None:
    listener = f"PLAINTEXT://127.0.0.1:{taken_port}"
    found = found_in(config_of(tmp_path, listener))["listener PLAINTEXT"]
    assert found.state == "problem"
    assert str(os.getpid()) in f"{found.found} {found.advice}"
    # Of a broker that runs there it is its own.
    assert found_in(config_of(tmp_path, listener), (listener,))["listener PLAINTEXT"].state == "ok"


def test_a_free_port_stays_free_and_a_path_goes(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    config = config_of(
        tmp_path,
        f"PLAINTEXT://127.0.0.1:0,LOCAL://unix:{path}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOCAL:PLAINTEXT",
    )
    found = found_in(config)
    assert [one.state for one in found.values()] == ["ok"] * 3
    assert not path.exists()


def test_an_address_of_another_machine_cannot_be_listened_on(tmp_path: Path) -> None:
    found = found_in(config_of(tmp_path, "PLAINTEXT://192.0.2.1:19092"))
    assert found["listener PLAINTEXT"].state == "problem"
    assert "advertised.listeners" in found["listener PLAINTEXT"].advice


@pytest.mark.parametrize(
    ("advertised", "state", "said"),
    [
        ("127.0.0.1:9", "note", "are told the loopback address"),
        ("no-such-host.invalid:9", "problem", "cannot be resolved"),
        ("192.0.2.1:9", "note", "is no address of this host"),
    ],
)
def test_what_clients_are_told(tmp_path: Path, advertised: str, state: str, said: str) -> None:
    config = config_of(tmp_path, "PLAINTEXT://0.0.0.0:0", f"advertised.listeners=PLAINTEXT://{advertised}")
    found = found_in(config)["advertised PLAINTEXT"]
    assert (found.state, said in found.found) == (state, True)
    assert found.advice


def test_a_running_broker_is_tried(tmp_path: Path, taken_port: int) -> None:
    config = config_of(tmp_path, f"PLAINTEXT://127.0.0.1:{taken_port}")
    assert found_in(config, ())["advertised PLAINTEXT"].found.endswith("answers")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        config = config_of(tmp_path, f"PLAINTEXT://127.0.0.1:{silent.getsockname()[1]}")
        found = found_in(config, ())["advertised PLAINTEXT"]
    assert (found.state, found.found.endswith("does not answer")) == ("problem", True)
