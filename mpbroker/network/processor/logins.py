"""Connections of TLS and SASL listeners whose clients are not authenticated yet, and their limits.

Any host can open such a connection. (Kafka counts them as any other connection and closes them when they are
idle. OpenSSH has LoginGraceTime and MaxStartups.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpbroker.network.processor.secure_channel import TlsSaslChannel

# Frames before authentication are small. Tokens may be larger (sasl.server.max.receive.size), but not all
# at once.
LARGE_FRAME_BYTES = 16 << 10
LARGE_FRAMES_BYTES_MAX = 16 << 20


class Logins:
    """The unauthenticated connections of one processor, oldest first.

    Methods return connections that the caller must close.
    """

    def __init__(self, limit_ns: int, connections_max: int) -> None:
        self.limit_ns = limit_ns
        self.connections_max = connections_max
        self._open: dict[int, TlsSaslChannel] = {}
        self._large: dict[int, TlsSaslChannel] = {}
        self._large_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, login: TlsSaslChannel) -> TlsSaslChannel | None:
        """Add a connection. Return the oldest one, removed, if there were too many."""
        oldest = next(iter(self._open.values())) if len(self._open) >= self.connections_max else None
        if oldest is not None:
            self.remove(oldest)
        self._open[login.connection] = login
        return oldest

    def remove(self, login: TlsSaslChannel) -> None:
        """Forget a connection that is authenticated or closed. Idempotent."""
        if self._open.pop(login.connection, None) is not None:
            self.frame_taken(login)

    def received(self, login: TlsSaslChannel, count: int) -> TlsSaslChannel | None:
        """Count `count` bytes added to the frame of `login`.

        Return the oldest connection with a large frame, removed, if large frames take too much; else None.
        """
        if login.connection not in self._open or len(login.frame) <= LARGE_FRAME_BYTES:
            return None
        self._large_bytes += count if login.connection in self._large else len(login.frame)
        self._large[login.connection] = login
        if self._large_bytes <= LARGE_FRAMES_BYTES_MAX:
            return None
        oldest = next(iter(self._large.values()))
        self.remove(oldest)
        return oldest

    def frame_taken(self, login: TlsSaslChannel) -> None:
        """Stop counting the frame of `login`. Call it before the frame is cleared."""
        if self._large.pop(login.connection, None) is not None:
            self._large_bytes -= len(login.frame)

    def overdue(self, now_ns: int) -> Iterator[TlsSaslChannel]:
        """Remove and yield the connections that have had their time."""
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.begun_ns + self.limit_ns > now_ns:
                return
            self.remove(oldest)
            yield oldest
