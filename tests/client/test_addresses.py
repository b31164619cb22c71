"""Places that a user or a broker names, and places that are none."""

from __future__ import annotations

import socket

import pytest

from mpbroker.client.addresses import Address, resolve


def test_a_host_and_a_port() -> None:
    assert Address(socket.AF_INET, ("127.0.0.1", 9092)) in resolve("127.0.0.1", 9092)


def test_a_socket_only_for_who_named_one() -> None:
    found = resolve("unix:/run/a.sock", 0, with_sockets=True)
    assert found == [Address(socket.AF_UNIX, "/run/a.sock")]


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("127.0.0.1", 70_000),
        ("127.0.0.1", -1),
        ("a\0b", 1),
        ("x" * 300, 1),
        ("", 0),
        (".", 1),
        ("unix:/run/a.sock", 0),
    ],
)
def test_places_that_are_none(host: str, port: int) -> None:
    with pytest.raises(OSError, match=r"."):
        resolve(host, port)
