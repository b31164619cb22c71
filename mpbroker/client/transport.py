"""Bytes over a connected, non-blocking socket (Kafka: TransportLayer, PlaintextTransportLayer).

`None` means "not now": the socket has nothing to read, or no room to write.
"""

import socket
from collections.abc import Sequence
from typing import Protocol

from mpbroker.protocol.wire import Buffer

# The most segments that sendmsg takes at once (IOV_MAX).
SEGMENTS_MAX = 1024


class Transport(Protocol):
    """The methods of plaintext and TLS transports that a connection uses."""

    ready: bool
    wants_write: bool
    # Received bytes may lie in the transport, where epoll does not see them: read until there are no more.
    buffers: bool

    def handshake(self) -> bool:
        """Continue the handshake; return whether it is over. Raises AuthenticationFailed, OSError."""

    def receive_into(self, room: memoryview) -> int | None:
        """Read into `room`; return the byte count, 0 at the end. Raises AuthenticationFailed, OSError."""

    def send(self, segments: Sequence[Buffer]) -> int | None:
        """Write from the start of the segments; return the number of bytes written. Raises OSError."""

    def close(self) -> None:
        """Close what the transport itself has opened. The connection closes the socket."""


class PlaintextTransport:
    """A transport that reads and writes the socket without encryption."""

    ready = True
    wants_write = False
    buffers = False

    def __init__(self, sock: socket.socket) -> None:
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

    def close(self) -> None:
        """Do nothing: the connection closes the socket, and this transport has opened nothing else."""
