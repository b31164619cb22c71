"""Listener lists as Kafka reads them, and what it refuses."""

import pytest

from mpbroker.config.listeners import (
    DEFAULT_PROTOCOL_MAP,
    Listener,
    is_loopback,
    parse_host_port,
    parse_listeners,
    parse_protocol_map,
    port_of,
    reachable,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("PLAINTEXT://:9092", "", 9092),
        ("plaintext://127.0.0.1:0", "127.0.0.1", 0),
        ("PLAINTEXT://[::1]:9092", "::1", 9092),
        ("PLAINTEXT://[fe80::1%eth0]:9092", "fe80::1%eth0", 9092),
        (" PLAINTEXT://my-host_1.example:65535 ", "my-host_1.example", 65535),
    ],
)
def test_one_listener(text: str, host: str, port: int) -> None:
    (listener,) = parse_listeners(text, DEFAULT_PROTOCOL_MAP)
    assert listener == Listener("PLAINTEXT", "PLAINTEXT", host, port)
    assert parse_listeners(str(listener), DEFAULT_PROTOCOL_MAP) == (listener,)


def test_several_with_names_of_their_own() -> None:
    protocols = parse_protocol_map("in:PLAINTEXT, OUT:plaintext")
    listeners = parse_listeners("IN://10.0.0.1:9092,out://[::1]:9092", protocols)
    assert [listener.name for listener in listeners] == ["IN", "OUT"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one listener"),
        ("localhost:9092", "not a listener"),
        ("PLAINTEXT://localhost", "not a listener"),
        ("PLAINTEXT://::1:9092", "not a listener"),
        ("PLAINTEXT://h:70000", "ports end at 65535"),
        ("PLAINTEXT://[1.2.3.4]:1", "not an IPv6 address"),
        ("OTHER://h:1", "OTHER has no security protocol"),
        ("A://h:1,a://h:2", "A comes 2 times"),
        ("A://h:1,B://g:1", "1 is used by A://h:1, B://g:1"),
        ("A://1.1.1.1:1,B://[::1]:1,C://2.2.2.2:1", "1 is used by"),
        ("A://1.1.1.1:1,B://localhost:1", "1 is used by"),
    ],
)
def test_refused(text: str, message: str) -> None:
    protocols = {**DEFAULT_PROTOCOL_MAP, "A": "PLAINTEXT", "B": "PLAINTEXT", "C": "PLAINTEXT"}
    with pytest.raises(ValueError, match=message):
        parse_listeners(text, protocols)


def test_ports_that_may_repeat() -> None:
    protocols = {"A": "PLAINTEXT", "B": "PLAINTEXT"}
    assert len(parse_listeners("A://h:0,B://h:0", protocols)) == 2
    assert len(parse_listeners("A://127.0.0.1:1,B://[::1]:1", protocols)) == 2
    assert len(parse_listeners("A://h:1,B://g:1", protocols, unique_ports=False)) == 2


@pytest.mark.parametrize(
    ("text", "message"), [("A", "not NAME:PROTOCOL"), ("A:TLS", "TLS"), ("A:SSL,a:SSL", "twice")]
)
def test_protocol_map_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_protocol_map(text)


def test_a_unix_domain_socket() -> None:
    (listener,) = parse_listeners("LOCAL://unix:/run/mpbroker/kafka.sock", {"LOCAL": "PLAINTEXT"})
    assert (listener.path, listener.host, listener.port) == ("/run/mpbroker/kafka.sock", "", 0)
    assert not listener.is_wildcard
    assert str(listener) == "LOCAL://unix:/run/mpbroker/kafka.sock"
    with pytest.raises(ValueError, match="comes twice"):
        parse_listeners("A://unix:/x,B://unix:/x", {"A": "PLAINTEXT", "B": "PLAINTEXT"})
    with pytest.raises(ValueError, match="at most 107 bytes"):
        parse_listeners(f"A://unix:/{'x' * 107}", {"A": "PLAINTEXT"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("[::1]:7", ("::1", 7)),
        (":9092", ("", 9092)),
        ("h:65535", ("h", 65535)),
    ],
)
def test_a_host_and_its_port(text: str, expected: tuple[str, int]) -> None:
    assert parse_host_port(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "[::1]",
        "::1:7",
        "h:",
        "h:x",
        "h:65536",
        "h:-1",
        "h:\N{SUPERSCRIPT TWO}",
        "unix:/run/a:7",
    ],
)
def test_no_host_with_a_port(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parse_host_port(text)


@pytest.mark.parametrize(
    ("listener", "port"),
    [
        ("A://127.0.0.1:9092", 9092),
        ("A://[::1]:7", 7),
        ("A://:9092", 9092),
        ("A://unix:/run/k.sock", None),
        ("A://unix:/run/k:7", None),
    ],
)
def test_ports_of_listeners(listener: str, port: int | None) -> None:
    assert port_of(listener) == port


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("0.0.0.0:9092", "127.0.0.1:9092"),
        ("[::]:9092", "[::1]:9092"),
        (":9092", "127.0.0.1:9092"),
        ("[::1]:9092", "[::1]:9092"),
        ("kafka:9092", "kafka:9092"),
        ("unix:/run/b:1/s", "unix:/run/b:1/s"),
        ("unix:/run/b:1", "unix:/run/b:1"),
    ],
)
def test_listeners_on_all_addresses_are_reached_on_this_host(address: str, expected: str) -> None:
    assert reachable(address) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "broker.example", "127.example"])
def test_others_reach_every_other_address(host: str) -> None:
    assert not is_loopback(host)
