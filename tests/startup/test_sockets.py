"""Where a listener's socket is bound."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Iterator

import pytest
from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.ipc.process import FatalError
from mpbroker.startup import sockets

CONFIG = BrokerConfig()
HOST = "127.0.0.1"


@contextlib.contextmanager
def bound(host: str) -> Iterator[socket.socket]:
    fd, listener = sockets.bind(Listener("A", "PLAINTEXT", host, 0), (), CONFIG)
    with socket.socket(fileno=fd) as sock:
        assert listener.port == sock.getsockname()[1]
        yield sock


def test_no_host_means_both_families() -> None:
    with bound("") as sock:
        assert sock.family == socket.AF_INET6
        assert not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_machine_without_ipv6(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    class WithoutIpv6(socket.socket):
        def bind(self, address: object) -> None:
            if self.family == socket.AF_INET6:
                raise OSError(code, "no IPv6 here")
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", WithoutIpv6)
    with bound("") as sock:
        assert sock.getsockname()[0] == "0.0.0.0"
    with pytest.raises(FatalError, match=r"cannot listen on A://\[::1\]:0: no IPv6 here"), bound("::1"):
        pass


def test_a_name_that_nobody_knows() -> None:
    expected = r"cannot be resolved \(.*\)\. Name an address of this machine; .* advertised\.listeners"
    with pytest.raises(FatalError, match=expected), bound("no.such.host.invalid"):
        pass


def test_of_a_name_the_ipv4_address_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert host == "both.example"
        v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
        v4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        return [v6, v4]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with bound("both.example") as sock:
        assert sock.getsockname()[0] == "127.0.0.1"


def test_a_name_of_this_machine_only_in_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    v6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [v6])
    with bound("six.example") as sock:
        assert sock.getsockname()[0] == "::1"


@pytest.mark.parametrize("has_psutil", [True, False])
def test_of_two_that_start_with_one_port_the_first_has_it(
    monkeypatch: pytest.MonkeyPatch, has_psutil: bool
) -> None:
    """Also if the environment has been replaced under a running broker, which imports psutil only now."""
    if not has_psutil:
        monkeypatch.setitem(sys.modules, "psutil", None)
    config = structs.replace(CONFIG, listeners=(Listener("A", "PLAINTEXT", "127.0.0.1", 0),))
    (first,), config = sockets.bind_all(config)
    (listener,) = config.listeners
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listener.port))
        with pytest.raises(
            FatalError,
            match=f"cannot listen on A://127.0.0.1:{listener.port}: the port is in use by a process that",
        ):
            sockets.bind_all(config)
        sockets.listen(first, listener, config)
        sockets.listen(first, listener, config)
        socket.create_connection(("127.0.0.1", listener.port)).close()
    finally:
        os.close(first)


def test_connections_that_end_do_not_keep_the_port_from_the_next_start() -> None:
    config = structs.replace(CONFIG, listeners=(Listener("A", "PLAINTEXT", "127.0.0.1", 0),))
    (fd,), config = sockets.bind_all(config)
    (listener,) = config.listeners
    sockets.listen(fd, listener, config)
    with socket.socket(fileno=fd) as sock, socket.create_connection(sock.getsockname()) as client:
        # Who closes first is in TIME_WAIT then.
        sock.accept()[0].close()
        assert client.recv(1) == b""
    (fd,), _ = sockets.bind_all(config)
    try:
        sockets.listen(fd, listener, config)
    finally:
        os.close(fd)


@pytest.mark.parametrize("left_over", ["mpbroker 9092: exporter 127.0.0.1:9644", "mpbroker 9092:", None])
def test_http_waits_for_what_is_left_of_a_killed_broker(
    monkeypatch: pytest.MonkeyPatch, left_over: str | None
) -> None:
    with socket.create_server((HOST, 0)) as holder:
        listener = Listener("HTTP", "PLAINTEXT", HOST, holder.getsockname()[1])
        monkeypatch.setattr(sockets, "_holder", lambda _port: left_over and (1, left_over))
        monkeypatch.setattr(time, "sleep", lambda _s: holder.close())
        fd, address = sockets.bind_http(listener, CONFIG)
    os.close(fd)
    assert address == f"{HOST}:{listener.port}"


@pytest.mark.parametrize("name", ["mpbroker 9092: supervisor", "nginx"])
def test_http_waits_for_nobody_who_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sockets, "_holder", lambda _port: (1, name))
    monkeypatch.setattr(time, "sleep", lambda _s: pytest.fail("it waits"))
    with socket.create_server((HOST, 0)) as holder:
        listener = Listener("HTTP", "PLAINTEXT", HOST, holder.getsockname()[1])
        with pytest.raises(FatalError, match=rf"the port is in use by process 1 \({name}\)"):
            sockets.bind_http(listener, CONFIG)
