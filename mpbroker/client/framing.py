"""Frames as a client receives them: a signed size of four bytes, then the content (Kafka: NetworkReceive).

Sans-I/O: the caller writes the next bytes into `room` and passes their count to `received`. A wrong port is a
common mistake: if a connection begins with bytes of TLS, HTTP or SSH, the error names that protocol.
"""

import struct

from mpbroker.client.errors import InvalidReceive

_SIZE = struct.Struct(">i")
# TLS record types alert and handshake; the version's first byte is 3 in all of TLS.
_TLS_RECORDS = (0x15, 0x16)
_TLS_MAJOR = 3
_OTHERS = {b"HTTP": "HTTP", b"SSH-": "SSH"}


class Receive:
    """A frame that is being received."""

    __slots__ = ("_first", "_frame", "_head", "_position", "_size_max", "_view")

    def __init__(self, size_max: int, *, first: bool = False) -> None:
        self._size_max = size_max
        self._first = first
        self._head = bytearray(_SIZE.size)
        self._frame: bytearray | None = None
        self._view = memoryview(self._head)
        self._position = 0

    def room(self) -> memoryview:
        """Return the buffer for the next bytes, which is empty only when the frame is complete."""
        return self._view[self._position :]

    def received(self, count: int) -> bytearray | None:
        """Count bytes written to `room`; return the content of a complete frame. Raises InvalidReceive."""
        self._position += count
        if self._position < len(self._view):
            return None
        if self._frame is None:
            self._frame = bytearray(self._size())
            self._view = memoryview(self._frame)
            self._position = 0
        return self._frame if self._position == len(self._frame) else None

    def _size(self) -> int:
        (size,) = _SIZE.unpack(self._head)
        if self._first:
            self._refuse_other_protocols()
        if not 0 <= size <= self._size_max:
            raise InvalidReceive(
                f"it does not speak Kafka's protocol (a response of {size} bytes, at most {self._size_max})"
            )
        return int(size)

    def _refuse_other_protocols(self) -> None:
        if self._head[0] in _TLS_RECORDS and self._head[1] == _TLS_MAJOR:
            raise InvalidReceive("it speaks TLS: set security.protocol to SSL or SASL_SSL")
        if other := _OTHERS.get(bytes(self._head)):
            raise InvalidReceive(f"it speaks {other}, not Kafka's protocol: is the port right?")
