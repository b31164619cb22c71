"""Limits of connections, and the listeners with a role of their own."""

from __future__ import annotations

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.keys import ConfigError
from mpbroker.config.limits import ListenerLimits, limits_by_address, resolved_overrides
from mpbroker.config.load import load
from mpbroker.network.acceptor.connection_limits import limits_of
from mpbroker.network.acceptor.connection_quotas import Limits

TWO = (
    "listeners=A://127.0.0.1:1,B://127.0.0.1:2",
    "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
)


def config(*settings: str) -> BrokerConfig:
    return load(None, [*TWO, *settings]).config


def test_a_listener_has_its_own_limit_or_the_brokers() -> None:
    made = config(
        "max.connections=7",
        "listener.name.b.max.connections=2",
        "listener.name.b.max.connection.creation.rate=3",
        "inter.broker.listener.name=b",
    )
    assert made.listener_limits == {"B": ListenerLimits(2, 3)}
    assert limits_of(made, "A") == (Limits(7), False)
    assert limits_of(made, "B") == (Limits(2, 3), True)


def test_who_is_privileged() -> None:
    assert not config().is_privileged("A")
    assert config("inter.broker.listener.name=A").is_privileged("A")
    both = config("inter.broker.listener.name=A", "control.plane.listener.name=b")
    assert (both.is_privileged("A"), both.is_privileged("B")) == (False, True)
    assert both.control_plane is not None
    assert both.control_plane.port == 2


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["control.plane.listener.name=C"], "listener C does not exist; there are A, B"),
        (["inter.broker.listener.name=C"], "listener C does not exist"),
        (["control.plane.listener.name=A", "inter.broker.listener.name=A"], "must be different"),
        (["max.connections.per.ip=0"], "refuses all clients"),
        (["max.connections.per.ip.overrides=here"], "here is not HOST:COUNT"),
        (["max.connections.per.ip.overrides=h:99999999999"], "is not HOST:COUNT"),
        (["listener.name.c.max.connections=1"], "listener C does not exist"),
        (["listener.name.a.max.connections=-1"], "at least 0"),
    ],
)
def test_what_cannot_be_meant(settings: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(*settings)


def test_a_control_plane_alone_serves_no_clients() -> None:
    with pytest.raises(ConfigError, match="is the only listener"):
        load(None, ["listeners=PLAINTEXT://127.0.0.1:1", "control.plane.listener.name=PLAINTEXT"])


def test_addresses_of_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = resolved_overrides(("127.0.0.1:3", "::1:4", "[fe80::1]:5", "localhost:6"))
    assert entries[:3] == ("[127.0.0.1]:3", "[::1]:4", "[fe80::1]:5")
    assert entries[3] in {"[127.0.0.1]:6", "[::1]:6"}
    for host in ("no.such.host.invalid", "a..b"):
        with pytest.raises(ValueError, match=rf"host '{host}' cannot be resolved"):
            resolved_overrides((f"{host}:1",))
    # From here on no process that is replaced depends on a name server.
    monkeypatch.delattr("socket.getaddrinfo")
    assert resolved_overrides(entries) == entries
    assert limits_by_address(entries[:3]) == {
        b"\x7f\0\0\1": 3,
        bytes(15) + b"\1": 4,
        b"\xfe\x80" + bytes(13) + b"\1": 5,
    }
