"""What the supervisor tells an acceptor while the broker runs: serve this listener too, or no more.

JSON in a message of a SOCK_SEQPACKET pair, with the listening socket of a new listener (SCM_RIGHTS). What an
acceptor did not read before it died its successor need not know: it is forked with all listeners there are.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

import msgspec

from mpbroker.config.listeners import Listener

MESSAGE_BYTES_MAX = 4096


@dataclass(frozen=True)
class AddListener:
    number: int
    listener: Listener
    sock: socket.socket


@dataclass(frozen=True)
class RemoveListener:
    number: int


class _Message(msgspec.Struct):
    number: int
    added: Listener | None = None


def send_add(channel: socket.socket, number: int, listener: Listener, fd: int) -> None:
    socket.send_fds(channel, [msgspec.json.encode(_Message(number, listener))], [fd])


def send_remove(channel: socket.socket, number: int) -> None:
    channel.send(msgspec.json.encode(_Message(number)))


def receive(channel: socket.socket) -> AddListener | RemoveListener | None:
    """The next order; None when there is none now, or nobody to give one. The channel must not block.

    Raises OSError when this process has no descriptor left for a new listener.
    """
    try:
        data, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, 1)
    except BlockingIOError:
        return None
    if not data:
        return None
    message = msgspec.json.decode(data, type=_Message)
    if message.added is None:
        return RemoveListener(message.number)
    if not fds:
        raise OSError(f"no descriptor is left for listener {message.added}")
    return AddListener(message.number, message.added, socket.socket(fileno=fds[0]))
