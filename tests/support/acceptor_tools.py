"""What the tests of this room do to a broker and its listeners."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.pointer import PUBLIC_NAME
from ops.bench import frames
from ops.bench.brokers import HOST, Mpbroker
from shm.region import Region
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import control

TIMEOUT_S = PATIENCE_S
Start = Callable[..., Mpbroker]
# Metadata v1 of no topic: the answer names the broker's address.
METADATA = frames.Request(frames.frame(3, 1, b"\0\0\0\0"), 8)


@contextlib.contextmanager
def port_of_both_families() -> Iterator[int]:
    """The kernel gives it to nobody meanwhile; a socket with SO_REUSEADDR may be bound to it by its number,
    and listen, since these here do not.
    """
    while True:
        with socket.socket() as four, socket.socket(socket.AF_INET6) as six:
            for one in (four, six):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            four.bind(("0.0.0.0", 0))
            port = int(four.getsockname()[1])
            try:
                six.bind(("::", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            yield port
            return


def options(**settings: str | int) -> list[str]:
    """max_connections=1 -> -o max.connections=1."""
    return [word for key, value in settings.items() for word in ("-o", f"{key.replace('_', '.')}={value}")]


def listening(**more: str) -> list[str]:
    """Flags of plaintext listeners: PLAINTEXT, and others by their names. `start` knows what PORT is."""
    listeners = {"PLAINTEXT": f"{HOST}:PORT", **more}
    protocols = ",".join(f"{name}:PLAINTEXT" for name in listeners)
    where = ",".join(f"{name}://{address}" for name, address in listeners.items())
    return ["--listeners", where, "-o", f"listener.security.protocol.map={protocols}"]


def listener(broker: Mpbroker, name: str = "PLAINTEXT") -> dict[str, Any]:
    (found,) = [
        one
        for one in control(broker).call("listeners")["listeners"]
        if one["listener"].startswith(f"{name}://")
    ]
    return dict(found)


def port_of(broker: Mpbroker, name: str) -> int:
    return int(listener(broker, name)["listener"].rpartition(":")[2])


def connect(broker: Mpbroker, port: int | None = None) -> socket.socket:
    return socket.create_connection((HOST, port or broker.port), timeout=TIMEOUT_S)


def is_answered(client: socket.socket, within_s: float = TIMEOUT_S) -> bool:
    """Return True if an ApiVersions request is answered, False if no answer comes in time."""
    client.settimeout(within_s)
    try:
        frames.exchange(client, frames.api_versions())
    except TimeoutError:
        return False
    return True


def hears(client: socket.socket, within_s: float) -> bool:
    client.settimeout(within_s)
    try:
        client.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    return True


def is_closed(client: socket.socket) -> bool:
    """Return True if the broker closes the connection without a byte."""
    client.settimeout(TIMEOUT_S)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def processes(broker: Mpbroker, title: str) -> list[psutil.Process]:
    names = {each["name"]: each["pid"] for each in control(broker).call("status")["processes"]}
    found = []
    for name, pid in names.items():
        if name.startswith(title) and pid:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
    return found


def kill_and_await(broker: Mpbroker, victim: str, meanwhile: Callable[[], None]) -> None:
    (process,) = processes(broker, victim)
    process.kill()
    meanwhile()
    eventually(lambda: process.pid not in [p.pid for p in processes(broker, victim)], f"{victim} has gone")
    eventually(lambda: processes(broker, victim) != [], f"{victim} is back")


def counted(broker: Mpbroker, counter: Counter, role: int = topology.FIRST_PROCESSOR) -> int:
    public = Region.attach(broker.runtime_dir / PUBLIC_NAME, topology.PUBLIC_MAGIC, topology.LAYOUT_VERSION)
    return topology.counter_page(public, role).get(counter)
