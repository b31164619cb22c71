"""Many connections of one thread over epoll (Kafka: org.apache.kafka.common.network.Selector, client side).

`poll` does all reading and writing and fills four results, valid until the next poll: what was sent, at most
one frame per channel, who is connected, who is gone and why. A channel that became ready ends it as well:
only then is there something to send over it. Everything but `wakeup` belongs to one thread.

Differences from Kafka: a send is tried before the wait, and epoll asked for room only when it did not fit
(two system calls less per request); one poll closes all connections that are idle too long, not one.
"""

import os
import select
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from mpbroker.client.channel import Channel
from mpbroker.client.clock import monotonic_ms
from mpbroker.client.errors import AuthenticationFailed, InvalidReceive
from mpbroker.protocol.wire import Buffer

OS_DEFAULT = -1
_IN_PROGRESS = (115, 11)  # EINPROGRESS; EAGAIN from Unix-domain sockets


class ChannelState(Enum):
    """Where a connection was when it ended (Kafka: ChannelState.State)."""

    NOT_CONNECTED = auto()
    AUTHENTICATE = auto()
    READY = auto()
    EXPIRED = auto()
    FAILED_SEND = auto()
    AUTHENTICATION_FAILED = auto()
    # Not Kafka's: what came cannot have come from a broker. Trying again is no use.
    INVALID_RECEIVE = auto()


class Disconnect(NamedTuple):
    """Why a connection is gone, and how many frames had come over it."""

    state: ChannelState
    reason: str
    frames: int


class Address(NamedTuple):
    """Where to connect to: a family and what `socket.connect` takes for it."""

    family: int
    sockaddr: tuple[Any, ...] | str


class SocketOptions(NamedTuple):
    """Sizes of the kernel's buffers; OS_DEFAULT leaves them alone."""

    send_buffer_bytes: int = OS_DEFAULT
    receive_buffer_bytes: int = OS_DEFAULT


KERNELS_OPTIONS = SocketOptions()


class Selector:
    """Channel ids are the caller's; an id is used again only when its channel is gone."""

    def __init__(self, max_idle_ms: float = -1, clock_ms: Callable[[], float] = monotonic_ms) -> None:
        self.completed_sends: list[int] = []
        self.completed_receives: dict[int, bytearray] = {}
        self.connected: list[int] = []
        self.disconnected: dict[int, Disconnect] = {}
        self._became_ready = False
        self._max_idle_ms = max_idle_ms
        self._clock_ms = clock_ms
        self._epoll = select.epoll()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup, select.EPOLLIN)
        self._channels: dict[int, Channel] = {}
        self._ids: dict[int, int] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._interest: dict[int, int] = {}
        self._immediately_connected: list[int] = []
        self._buffered: set[int] = set()
        self._with_send: set[int] = set()
        # When each channel last did something, the longest ago first (Kafka: IdleExpiryManager).
        self._last_active_ms: OrderedDict[int, float] = OrderedDict()

    def connect(self, channel: Channel, address: Address, options: SocketOptions = KERNELS_OPTIONS) -> None:
        """Begins; `connected` or `disconnected` of a later poll says how it went.

        Raises ValueError for an id in use and OSError when it fails at once; then nothing is left of it.
        """
        if channel.id in self._channels:
            raise ValueError(f"there is a connection with id {channel.id} already")
        sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            _configure(sock, options)
            # A name that cannot be resolved raises here.
            error = sock.connect_ex(address.sockaddr)
            if error and error not in _IN_PROGRESS:
                raise OSError(error, os.strerror(error))
            interest = 0 if error == 0 else channel.interest
            if interest:
                self._epoll.register(sock, interest)
        except BaseException:
            sock.close()
            raise
        if error == 0:
            # No event will tell of it.
            self._immediately_connected.append(channel.id)
        channel.bind(sock)
        self._channels[channel.id] = channel
        self._sockets[channel.id] = sock
        self._ids[sock.fileno()] = channel.id
        self._interest[channel.id] = interest
        self._last_active_ms[channel.id] = self._clock_ms()

    def send(self, channel_id: int, segments: Sequence[Buffer]) -> None:
        """Takes a frame; polls send it. If that fails the channel is among the disconnected of the next poll.

        Raises KeyError for an unknown channel and RuntimeError if its last send is still under way.
        """
        self._channels[channel_id].set_send(segments, self._clock_ms())
        self._with_send.add(channel_id)

    def poll(self, timeout_ms: float) -> None:
        """Sends, receives, connects, and waits so long for any of it. Raises ValueError below 0."""
        if timeout_ms < 0:
            raise ValueError("a timeout cannot be negative")
        self._clear()
        for channel_id in [*self._with_send]:
            self._progress(channel_id)
        immediate, self._immediately_connected = self._immediately_connected, []
        if immediate or self._buffered or self._has_results():
            timeout_ms = 0.0
        until_ms = self._clock_ms() + timeout_ms
        while True:
            events = self._epoll.poll(timeout_ms / 1000)
            ready = [self._ids[fd] for fd, _ in events if fd in self._ids]
            only_buffered = [one for one in self._buffered if one not in ready]
            for channel_id in (*only_buffered, *ready, *immediate):
                if channel_id in self._channels:
                    self._progress(channel_id, event=True)
            if len(ready) < len(events):
                self._drain_wakeup()
                break
            # A piece of a large frame is nothing to tell of: the caller has something to do when it is whole.
            timeout_ms = until_ms - self._clock_ms()
            if not events or timeout_ms <= 0 or immediate or self._buffered or self._has_results():
                break
        self._close_idle()

    def is_ready(self, channel_id: int) -> bool:
        """Connected and authenticated."""
        channel = self._channels.get(channel_id)
        return channel is not None and channel.ready

    def close(self, channel_id: int) -> None:
        """Ends a connection from this side; no poll tells of it. Unknown ids are gone already."""
        channel = self._channels.pop(channel_id, None)
        if channel is None:
            return
        sock = self._sockets.pop(channel_id)
        del self._ids[sock.fileno()]
        if self._interest.pop(channel_id):
            self._epoll.unregister(sock)
        channel.close()
        del self._last_active_ms[channel_id]
        self._with_send.discard(channel_id)
        self._buffered.discard(channel_id)
        if channel_id in self._immediately_connected:
            self._immediately_connected.remove(channel_id)

    def close_all(self) -> None:
        """Ends everything; the selector cannot be used afterwards."""
        for channel_id in [*self._channels]:
            self.close(channel_id)
        self._epoll.close()
        os.close(self._wakeup)

    def wakeup(self) -> None:
        """Ends the wait of a poll, or of the next one. May be called from any thread."""
        os.eventfd_write(self._wakeup, 1)

    def _has_results(self) -> bool:
        return bool(
            self.completed_sends
            or self.completed_receives
            or self.connected
            or self.disconnected
            or self._became_ready
        )

    def _clear(self) -> None:
        self.completed_sends = []
        self.completed_receives = {}
        self.connected = []
        self.disconnected = {}
        self._became_ready = False

    def _drain_wakeup(self) -> None:
        try:
            os.eventfd_read(self._wakeup)
        except BlockingIOError:
            return

    def _progress(self, channel_id: int, *, event: bool = False) -> None:
        """Everything a channel can do now; what goes wrong with it stays with it."""
        channel = self._channels[channel_id]
        writing = False
        try:
            if not channel.connected:
                if not event:
                    return
                channel.finish_connect()
                self.connected.append(channel_id)
            if not channel.ready:
                channel.prepare()
                self._became_ready |= channel.ready
            if event and channel_id not in self.completed_receives:
                frame = channel.read()
                if frame is not None:
                    self.completed_receives[channel_id] = frame
            writing = True
            if channel.ready and channel.write():
                self._with_send.discard(channel_id)
                self.completed_sends.append(channel_id)
        except AuthenticationFailed as error:
            self._lost(channel, ChannelState.AUTHENTICATION_FAILED, str(error))
        except InvalidReceive as error:
            self._lost(channel, ChannelState.INVALID_RECEIVE, str(error))
        except OSError as error:
            state = ChannelState.FAILED_SEND if writing else _state_of(channel)
            self._lost(channel, state, error.strerror or str(error))
        else:
            if event:
                self._last_active_ms[channel_id] = self._clock_ms()
                self._last_active_ms.move_to_end(channel_id)
            self._watch(channel)

    def _watch(self, channel: Channel) -> None:
        """Tells epoll what the channel waits for, if that has changed."""
        if channel.has_buffered:
            self._buffered.add(channel.id)
        else:
            self._buffered.discard(channel.id)
        interest = channel.interest
        known = self._interest[channel.id]
        if interest == known:
            return
        if known:
            self._epoll.modify(self._sockets[channel.id], interest)
        else:
            self._epoll.register(self._sockets[channel.id], interest)
        self._interest[channel.id] = interest

    def _lost(self, channel: Channel, state: ChannelState, reason: str) -> None:
        self.close(channel.id)
        if channel.id in self.connected:
            self.connected.remove(channel.id)
        self.disconnected[channel.id] = Disconnect(state, reason, channel.frames)

    def _close_idle(self) -> None:
        if self._max_idle_ms < 0:
            return
        limit = self._clock_ms() - self._max_idle_ms
        while self._last_active_ms:
            channel_id, last = next(iter(self._last_active_ms.items()))
            if last > limit:
                return
            self._lost(self._channels[channel_id], ChannelState.EXPIRED, "idle for too long")


def _state_of(channel: Channel) -> ChannelState:
    if not channel.connected:
        return ChannelState.NOT_CONNECTED
    return ChannelState.READY if channel.ready else ChannelState.AUTHENTICATE


def _configure(sock: socket.socket, options: SocketOptions) -> None:
    """Before connecting: a receive buffer counts for the window only then."""
    if options.send_buffer_bytes != OS_DEFAULT:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)
    if options.receive_buffer_bytes != OS_DEFAULT:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer_bytes)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
