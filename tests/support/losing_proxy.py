"""Stands between a client and a server, and loses answers, or lets them wait for ever."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from ops.bench.brokers import HOST

PIECE_BYTES = 1 << 16


class LosingProxy:
    """While `loses` is above 0 it counts down with each answer that is lost; while `is_mute` none is sent."""

    def __init__(self, server_port: int) -> None:
        self.loses = 0
        self.is_mute = False
        self._server_port = server_port
        self._listener = socket.create_server((HOST, 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> LosingProxy:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # Whoever accepts or receives wakes up.
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _run(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._server_port))
                self._sockets += (client, server)
                self._run(self._pass_on, client, server)
                self._run(self._answer, server, client)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while piece := client.recv(PIECE_BYTES):
                server.sendall(piece)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while piece := server.recv(PIECE_BYTES):
                if self.loses > 0:
                    self.loses -= 1
                    break
                if not self.is_mute:
                    client.sendall(piece)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
