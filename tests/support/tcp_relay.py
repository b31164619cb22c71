"""What clients send, by a relay between them and their broker: the API and version of each request."""

from __future__ import annotations

import socket
import struct
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

from ops.bench.brokers import HOST


@dataclass
class Relay:
    """Listens on a port that the broker has to advertise, so that clients go on to use it."""

    listener: socket.socket
    broker_port: int
    versions: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    _sockets: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.listener.getsockname()[1]}"

    def __enter__(self) -> Relay:
        self._thread(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # Whoever accepts, receives or sends wakes up.
        for each in (self.listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self.listener, *self._sockets):
            each.close()

    def _thread(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                broker = socket.create_connection((HOST, self.broker_port))
                self._sockets += (client, broker)
                self._thread(self._requests, client, broker)
                self._thread(self._bytes, broker, client)

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        """Frame by frame: size, API key, version."""
        received = bytearray()
        while part := _received(client):
            received += part
            while len(received) >= 8 and len(received) >= (size := 4 + struct.unpack_from(">i", received)[0]):
                key, version = struct.unpack_from(">hh", received, 4)
                self.versions[key].add(version)
                _sent(broker, bytes(received[:size]))
                del received[:size]
        _ended(broker)

    def _bytes(self, broker: socket.socket, client: socket.socket) -> None:
        while part := _received(broker):
            _sent(client, part)
        _ended(client)


def _received(connection: socket.socket) -> bytes:
    with suppress(OSError):
        return connection.recv(1 << 16)
    return b""


def _sent(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        connection.sendall(data)


def _ended(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
