"""One connection as the selector sees it (Kafka: KafkaChannel, client side).

A channel is ready when its transport is (TLS) and then its authenticator (SASL). It has at most one send and
one receive under way. Re-authentication (KIP-368) starts in front of the first send after it is due and
happens between frames: responses to earlier requests may still come, told apart by their correlation ids.
"""

import os
import select
import socket
import struct
from collections import deque
from collections.abc import Sequence

from mpbroker.client.framing import Receive
from mpbroker.client.sasl import Authenticator, is_reserved
from mpbroker.client.transport import Transport
from mpbroker.protocol.wire import Buffer

_CORRELATION_ID = struct.Struct(">i")
_READ, _WRITE = select.EPOLLIN | select.EPOLLRDHUP, select.EPOLLOUT


class EndOfStream(OSError):
    """The peer has closed the connection."""


class Outgoing:
    """Segments on their way out; small steps keep what is left exact."""

    __slots__ = ("_left",)

    def __init__(self, segments: Sequence[Buffer]) -> None:
        self._left = deque(memoryview(segment).cast("B") for segment in segments if len(segment))

    def write_to(self, transport: Transport) -> bool:
        """Whether all of it is written. Raises OSError."""
        while self._left:
            sent = transport.send(list(self._left))
            if sent is None:
                return False
            while sent:
                first = self._left[0]
                if sent < len(first):
                    self._left[0] = first[sent:]
                    break
                sent -= len(first)
                self._left.popleft()
        return True


class Channel:
    """Owned by the selector; nobody else reads or writes the socket."""

    def __init__(
        self,
        channel_id: int,
        address: str,
        transport: Transport,
        authenticator: Authenticator,
        receive_bytes_max: int,
    ) -> None:
        self.id = channel_id
        self.address = address
        self.connected = False
        self.frames = 0
        self._transport = transport
        self._authenticator = authenticator
        self._receive_bytes_max = receive_bytes_max
        self._receive = Receive(receive_bytes_max, first=True)
        self._send: Outgoing | None = None
        # Frames of the authenticator; they come before what the user sends.
        self._token: Outgoing | None = None
        # Responses that came while the channel authenticated again.
        self._early: deque[bytearray] = deque()

    def bind(self, sock: socket.socket) -> None:
        self._socket = sock

    @property
    def ready(self) -> bool:
        """Requests may be sent and responses be received."""
        return self.connected and self._transport.ready and self._authenticator.complete

    @property
    def has_buffered(self) -> bool:
        return bool(self._early) or (self.connected and self._transport.has_buffered())

    @property
    def interest(self) -> int:
        """The events that can help this channel on."""
        if not self.connected:
            return _WRITE
        if not self._transport.ready:
            return _READ | (_WRITE if self._transport.wants_write else 0)
        sends = self._token is not None or (self._send is not None and self._authenticator.complete)
        return _READ | (_WRITE if sends else 0)

    def finish_connect(self) -> None:
        """Raises OSError with the reason why the connection could not be made."""
        if error := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        self.connected = True
        self._transport.connected(self._socket)

    def prepare(self) -> None:
        """Handshake, then authentication, as far as they get. Raises AuthenticationFailed, OSError."""
        if not self._transport.ready and not self._transport.handshake():
            return
        while not self._authenticator.complete:
            if self._token is None and (request := self._authenticator.next_request()):
                self._token = Outgoing(request)
            if self._token is not None:
                if not self._token.write_to(self._transport):
                    return
                self._token = None
            if self._authenticator.complete:
                return
            frame = self._read_frame()
            if frame is None:
                return
            if self._authenticator.again and not _is_of_sasl(frame):
                self._early.append(frame)
            else:
                self._authenticator.receive(frame)

    def set_send(self, segments: Sequence[Buffer], now_ms: float) -> None:
        """Raises RuntimeError if the last send is still under way."""
        if self._send is not None:
            raise RuntimeError(f"channel {self.id}: a send is under way already")
        self._send = Outgoing(segments)
        self._authenticator.restart_if_due(now_ms)

    def write(self) -> bool:
        """Goes on with the send; whether it is over. Raises OSError."""
        if self._send is None or not self._send.write_to(self._transport):
            return False
        self._send = None
        return True

    def read(self) -> bytearray | None:
        """One frame for the user, if it is whole. Raises InvalidReceive, OSError."""
        if self._early:
            return self._early.popleft()
        return self._read_frame() if self._authenticator.complete else None

    def close(self) -> None:
        self._transport.close()
        self._socket.close()

    def _read_frame(self) -> bytearray | None:
        while True:
            room = self._receive.room()
            count = self._transport.receive_into(room)
            if count is None:
                return None
            if count == 0:
                raise EndOfStream("closed by the broker")
            frame = self._receive.received(count)
            if frame is not None:
                self.frames += 1
                self._receive = Receive(self._receive_bytes_max)
                return frame
            if count < len(room) and self._transport.short_is_all:
                return None


def _is_of_sasl(frame: bytearray) -> bool:
    return len(frame) >= _CORRELATION_ID.size and is_reserved(_CORRELATION_ID.unpack_from(frame)[0])
