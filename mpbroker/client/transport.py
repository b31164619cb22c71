"""Bytes over a non-blocking socket, in the clear (Kafka: TransportLayer, PlaintextTransportLayer).

`None` stands for "not now": the socket has nothing, or no room.
"""

import socket
from collections.abc import Sequence
from typing import Protocol

from mpbroker.protocol.wire import Buffer

# What sendmsg takes at once (IOV_MAX).
SEGMENTS_MAX = 1024


class Transport(Protocol):
    """What a channel needs of plaintext and TLS alike."""

    ready: bool
    wants_write: bool
    # A read that did not fill the room took all there was: asking again would be a system call for nothing.
    short_is_all: bool

    def connected(self, sock: socket.socket) -> None:
        """The socket is connected now."""

    def handshake(self) -> bool:
        """Goes on with the handshake; whether it is over. Raises AuthenticationFailed, OSError."""

    def receive_into(self, room: memoryview) -> int | None:
        """Number of bytes, 0 at the end of the stream. Raises OSError."""

    def send(self, segments: Sequence[Buffer]) -> int | None:
        """Number of bytes that are on their way. Raises OSError."""

    def has_buffered(self) -> bool:
        """Whether bytes are here that no event will tell of."""

    def close(self) -> None:
        """Lets go of what the transport adds to the socket."""


class PlaintextTransport:
    """The socket as it is."""

    ready = True
    wants_write = False
    short_is_all = True

    def connected(self, sock: socket.socket) -> None:
        self._socket = sock

    def handshake(self) -> bool:
        return True

    def receive_into(self, room: memoryview) -> int | None:
        try:
            return self._socket.recv_into(room)
        except BlockingIOError:
            return None

    def send(self, segments: Sequence[Buffer]) -> int | None:
        try:
            return self._socket.sendmsg(segments[:SEGMENTS_MAX])
        except BlockingIOError:
            return None

    def has_buffered(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing was added."""
