"""The supervisor's Unix socket, answered even when the data plane is jammed.

SOCK_SEQPACKET, one JSON message each way, such as {"command": "status"}, {"command": "resize", "handlers": N}
or {"command": "listener-add", "listener": "NAME://host:port"}; the answer is the command's result, or
{"error": text}. Mode 0600: only the broker's user may steer it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from mpbroker.ipc.pointer import CONTROL_NAME
from mpbroker.ipc.process import FatalError

MESSAGE_BYTES_MAX = 1 << 20
# Who asks nothing for longest is forgotten when more come.
CLIENTS_MAX = 64


class Command(msgspec.Struct):
    command: str
    on: bool | None = None  # request-log; scrub: begin
    handlers: int | None = None
    processors: int | None = None
    listener: str | None = None  # listener-add: NAME://host:port; listener-remove: NAME
    protocol: str | None = None
    advertised: str | None = None  # host:port


Answer: TypeAlias = dict[str, Any]


class Later:
    """An answer that is not known yet: whoever asked gets it as soon as it is given."""

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._send: Callable[[Answer], None] | None = None

    def give(self, answer: Answer) -> None:
        self._answer = answer
        if self._send is not None:
            self._send(answer)

    def send_with(self, send: Callable[[Answer], None]) -> None:
        self._send = send
        if self._answer is not None:
            send(self._answer)


class ControlSocket:
    """`serve(command)` returns what is answered; FatalError, OSError and ValueError become error answers.
    `watch` and `unwatch` are the tree's.
    """

    def __init__(
        self,
        directory: Path,
        serve: Callable[[Command], Answer | Later],
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
    ) -> None:
        self.watch, self.unwatch = watch, unwatch
        self.asking: dict[int, socket.socket] = {}  # connected, and silent up to now
        self.path = directory / CONTROL_NAME
        self.serve = serve
        self.path.unlink(missing_ok=True)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        mask = os.umask(0o177)
        try:
            self.sock.bind(str(self.path))
        finally:
            os.umask(mask)
        self.sock.listen(16)
        self.sock.setblocking(False)

    def fileno(self) -> int:
        return self.sock.fileno()

    def accept(self) -> None:
        """Takes one client; what it asks is answered when it has asked, and nobody waits for that."""
        try:
            connection, _ = self.sock.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        self.asking[connection.fileno()] = connection
        if len(self.asking) > CLIENTS_MAX:
            self._forget(next(iter(self.asking)))
        self.watch(connection.fileno(), partial(self._read, connection))

    def _read(self, connection: socket.socket) -> None:
        self._forget(connection.fileno(), keep=True)
        with contextlib.suppress(OSError):
            answer = self._answer(connection.recv(MESSAGE_BYTES_MAX))
            if isinstance(answer, Later):
                answer.send_with(partial(self._send, connection))
                return
            self._send(connection, answer)
        connection.close()

    def _forget(self, fd: int, *, keep: bool = False) -> None:
        connection = self.asking.pop(fd)
        self.unwatch(fd)
        if not keep:
            connection.close()

    def _send(self, connection: socket.socket, answer: Answer) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(msgspec.json.encode(answer))

    def _answer(self, message: bytes) -> Answer | Later:
        try:
            return self.serve(msgspec.json.decode(message, type=Command))
        except (FatalError, OSError, ValueError, msgspec.MsgspecError) as error:
            return {"error": str(error)}

    def close(self) -> None:
        for connection in self.asking.values():
            connection.close()
        self.sock.close()
        self.path.unlink(missing_ok=True)
