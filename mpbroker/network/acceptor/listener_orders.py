"""The supervisor's orders to a running acceptor to add or remove a listener.

An order is a JSON message on a SOCK_SEQPACKET pair. The order to add a listener also carries its listening
socket (SCM_RIGHTS). A new acceptor ignores orders that a dead one has not read, since it is forked with all
listeners.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass

import msgspec

from mpbroker.config.listeners import Listener

MESSAGE_BYTES_MAX = 64 << 10


@dataclass(frozen=True)
class AddListener:
    number: int
    listener: Listener
    sock: socket.socket


@dataclass(frozen=True)
class RemoveListener:
    number: int


class _Message(msgspec.Struct):
    sequence: int
    number: int
    added: Listener | None = None


def send_add(channel: socket.socket, sequence: int, number: int, listener: Listener, fd: int) -> None:
    socket.send_fds(channel, [msgspec.json.encode(_Message(sequence, number, listener))], [fd])


def send_remove(channel: socket.socket, sequence: int, number: int) -> None:
    channel.send(msgspec.json.encode(_Message(sequence, number)))


class Orders:
    """Receives orders in an acceptor. Orders up to number `known` are ignored: they precede its fork."""

    def __init__(self, channel: socket.socket, known: int) -> None:
        self.channel = channel
        self.known = known
        channel.setblocking(False)

    def fileno(self) -> int:
        return self.channel.fileno()

    def receive(self) -> AddListener | RemoveListener | None:
        """Return the next order; None if there is none, or if the supervisor has closed its end.

        Raise OSError if this process has no descriptor left for a new listener.
        """
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.channel, MESSAGE_BYTES_MAX, 1)
            except BlockingIOError:
                return None
            if not data:
                return None
            message = msgspec.json.decode(data, type=_Message)
            if message.sequence <= self.known:
                for fd in fds:
                    os.close(fd)
                continue
            if message.added is None:
                return RemoveListener(message.number)
            if not fds:
                raise OSError(errno.EMFILE, f"no descriptor is left for listener {message.added}")
            return AddListener(message.number, message.added, socket.socket(fileno=fds[0]))
