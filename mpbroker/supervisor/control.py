"""The supervisor's Unix socket, which works even when the processes that serve clients hang.

The socket is SOCK_SEQPACKET, with one JSON message each way, such as {"command": "status"}, {"command":
"resize", "handlers": N} or {"command": "listener-add", "listener": "NAME://host:port"}. The answer is the
command's result, or {"error": text}. The socket's mode is 0600: only the broker's user may use it. The kernel
reports the sender of a command, and the audit log records sender, command and result.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from mpbroker.ipc.faults import Fault
from mpbroker.ipc.pointer import CONTROL_NAME
from mpbroker.ipc.process import WRONG_CALL, FatalError

MESSAGE_BYTES_MAX = 1 << 20
# When more clients come, the one that has been silent for longest is dropped.
CLIENTS_MAX = 64
# Bytes of an answer that the kernel passes on as one message, with its usual limits (net.core.wmem_default).
ANSWER_BYTES_MAX = 192 << 10
_CREDENTIALS = struct.Struct("=iII")  # struct ucred: process, user, group

log = logging.getLogger("mpbroker.supervisor")


class Peer(NamedTuple):
    """The process at the other end of a connection, as the kernel reports it (SO_PEERCRED)."""

    process_id: int
    user_id: int

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process_id, user_id, _ = _CREDENTIALS.unpack(data)
        return cls(process_id, user_id)

    @property
    def user(self) -> str:
        """Return the user's name, or the user id if this host has no name for it."""
        try:
            return pwd.getpwuid(self.user_id).pw_name
        except KeyError:
            return str(self.user_id)


class Command(msgspec.Struct):
    command: str
    on: bool | None = None  # request-log; scrub: begin
    logger: str | None = None  # log-level: whose level is to be shown or set
    level: str | None = None  # log-level: the level to set; "": the one at start
    handlers: int | None = None
    processors: int | None = None
    listener: str | None = None  # listener-add: NAME://host:port; listener-remove: NAME
    protocol: str | None = None
    advertised: str | None = None  # host:port
    faults: list[Fault] | None = None  # all that are to be from now on


Answer: TypeAlias = dict[str, Any]


class Later:
    """An answer that is not ready yet. `give` sends it to the client."""

    # Of the client that waits; set before `serve`'s caller continues.
    connection: socket.socket

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
    """The listening end of the control socket.

    `serve` returns the answer of a command. If it raises FatalError, OSError or ValueError, the answer is the
    error. `record` is called with each command and its answer. `watch` and `unwatch` are Tree's methods.
    """

    def __init__(
        self,
        directory: Path,
        serve: Callable[[Command], Answer | Later],
        record: Callable[[Peer, Command, Answer], None],
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
    ) -> None:
        self.watch, self.unwatch = watch, unwatch
        self.asking: dict[int, socket.socket] = {}  # connected, and silent so far
        self.path = directory / CONTROL_NAME
        self.serve, self.record = serve, record
        self.path.unlink(missing_ok=True)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        mask = os.umask(0o177)
        try:
            self.sock.bind(str(self.path))
        finally:
            os.umask(mask)
        self.sock.listen(16)
        self.sock.setblocking(False)
        # A spare descriptor, closed for a moment when no other is free, so that a client can be refused.
        self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self.sock.fileno()

    def accept(self) -> None:
        """Accept one client without waiting for its command."""
        try:
            connection, _ = self.sock.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # A client left in the backlog would keep the socket readable for ever.
            self._turn_away(error)
            return
        connection.setblocking(False)
        self.asking[connection.fileno()] = connection
        if len(self.asking) > CLIENTS_MAX:
            self._forget(next(iter(self.asking)))
        self.watch(connection.fileno(), partial(self._read, connection))

    def _turn_away(self, why: OSError) -> None:
        log.error("cannot serve a command: %s. Raise the limit of open files (LimitNOFILE)", why.strerror)
        if self._spare_fd >= 0:
            os.close(self._spare_fd)
        with contextlib.suppress(OSError):
            self._send(self.sock.accept()[0], {"error": f"the supervisor has no descriptor: {why.strerror}"})
        try:
            self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._spare_fd = -1

    def _read(self, connection: socket.socket) -> None:
        self._forget(connection.fileno(), keep=True)
        with contextlib.suppress(OSError):
            peer = Peer.of(connection)
            command, answer = self._answer(connection.recv(MESSAGE_BYTES_MAX))
            done = partial(self._done, connection, peer, command)
            if isinstance(answer, Later):
                answer.connection = connection
                answer.send_with(done)
                return
            done(answer)
        connection.close()

    def _done(self, connection: socket.socket, peer: Peer, command: Command | None, answer: Answer) -> None:
        if command is not None:
            self.record(peer, command, answer)
        self._send(connection, answer)

    def _forget(self, fd: int, *, keep: bool = False) -> None:
        connection = self.asking.pop(fd)
        self.unwatch(fd)
        if not keep:
            connection.close()

    def _send(self, connection: socket.socket, answer: Answer) -> None:
        data = msgspec.json.encode(answer)
        if len(data) > ANSWER_BYTES_MAX:
            log.error("cannot send an answer of %d bytes", len(data))
            text = f"the answer has {len(data)} bytes, more than {ANSWER_BYTES_MAX}"
            data = msgspec.json.encode({"error": text})
        with connection, contextlib.suppress(OSError):
            connection.sendall(data)

    def _answer(self, message: bytes) -> tuple[Command | None, Answer | Later]:
        command = None
        try:
            command = msgspec.json.decode(message, type=Command)
            return command, self.serve(command)
        except (FatalError, OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            is_wrong = isinstance(error, ValueError | msgspec.MsgspecError) or (
                isinstance(error, FatalError) and error.status == WRONG_CALL
            )
            return command, {"error": str(error)} | ({"wrong_call": True} if is_wrong else {})

    def close(self) -> None:
        for connection in self.asking.values():
            connection.close()
        self.sock.close()
        if self._spare_fd >= 0:
            os.close(self._spare_fd)
        self.path.unlink(missing_ok=True)
