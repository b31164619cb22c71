"""A listening socket with a thread for each connection, for servers that say what a test wants to hear."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from typing import Self

HOST = "127.0.0.1"


class ThreadedServer(ABC):
    """Use it as a context manager: at its end every connection is closed and every thread has ended."""

    port: int

    def __enter__(self) -> Self:
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close_listener()
        self._threads[0].join()
        self.hang_up()
        for thread in self._threads:
            thread.join()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def hang_up(self) -> None:
        """Ends every connection that there is."""
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # its thread has closed it, or the client has gone
                continue

    def close_listener(self) -> None:
        """Whoever connects from now on is refused."""
        if self._listener.fileno() >= 0:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            self.talk(connection)

    @abstractmethod
    def talk(self, connection: socket.socket) -> None:
        """Talk until nothing more is to be said, then close the connection."""
