"""Many plain connections that send in bursts: every request is answered, or its connection closed, in time.

Client libraries hide a request that hangs behind time-outs and retries; these connections do not. They
number nothing and retry nothing; what they can tell is that no two acknowledged batches got one offset.
"""

import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

from ops.bench import frames
from tests.support.polling import PATIENCE_S

TOPIC = "crowd"
CONNECTIONS = 150
PIPELINED = 3
BURST_EVERY_S = 0.1
NO_ERROR = 0
SHOWN = 5


@dataclass
class Member:
    """One connection; `since` is when the oldest request that waits was sent."""

    sock: socket.socket
    unanswered: int = 0
    since: float = 0.0
    received: bytearray = field(default_factory=bytearray)


@dataclass
class Crowd:
    address: frames.Address
    acked: int = 0
    refused: int = 0
    closed: int = 0
    complaints: list[str] = field(default_factory=list)
    offsets: set[int] = field(default_factory=set)
    stopping: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread = field(init=False)

    def start(self) -> None:
        with frames.connected(self.address) as connection:
            error, _ = frames.exchange(connection, frames.create_topic(TOPIC, 1))
        assert error == NO_ERROR, f"topic {TOPIC} was not created: error {error}"
        self.request = frames.produce(TOPIC, 1, 100)
        self.selector = selectors.DefaultSelector()
        self.members: dict[int, Member] = {}
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join()

    abandon = stop

    def _run(self) -> None:
        next_burst = time.monotonic()
        while not self.stopping.is_set() or any(member.unanswered for member in self.members.values()):
            for key, _ in self.selector.select(max(0.0, next_burst - time.monotonic())):
                self._receive(key.data)
            now = time.monotonic()
            if now >= next_burst:
                next_burst = now + BURST_EVERY_S
                self._judge(now)
                if not self.stopping.is_set():
                    self._burst(now)
        for member in list(self.members.values()):
            self._leave(member)

    def _burst(self, now: float) -> None:
        self._join()
        for member in list(self.members.values()):
            if not member.unanswered:
                member.unanswered, member.since = PIPELINED, now
                try:
                    member.sock.send(self.request.frame * PIPELINED)
                except OSError:
                    self._lose(member)

    def _join(self) -> None:
        """Connect members until the crowd is whole or nobody listens."""
        while len(self.members) < CONNECTIONS:
            try:
                sock = socket.create_connection(self.address, PATIENCE_S)
            except ConnectionError:
                return
            sock.setblocking(False)
            member = self.members[sock.fileno()] = Member(sock)
            self.selector.register(sock, selectors.EVENT_READ, member)

    def _receive(self, member: Member) -> None:
        try:
            data = member.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._lose(member)
            return
        member.received += data
        while len(member.received) >= 4:
            (size,) = struct.unpack_from(">i", member.received)
            if len(member.received) < 4 + size:
                return
            self._answered(bytes(member.received[: 4 + size]))
            del member.received[: 4 + size]
            member.unanswered -= 1
            member.since = time.monotonic()

    def _answered(self, frame: bytes) -> None:
        error, offset = struct.unpack_from(">hq", frame, self.request.error_at)
        if error != NO_ERROR:
            self.refused += 1
            return
        self.acked += 1
        if offset in self.offsets:
            self.complaints.append(f"two batches were acknowledged at offset {offset} of {TOPIC}")
        self.offsets.add(offset)

    def _judge(self, now: float) -> None:
        for member in list(self.members.values()):
            if member.unanswered and now - member.since > PATIENCE_S:
                if len(self.complaints) < SHOWN:
                    port = member.sock.getsockname()[1]
                    self.complaints.append(
                        f"{member.unanswered} requests of port {port} have no answer and no closed "
                        f"connection within {PATIENCE_S:.0f} s"
                    )
                self._lose(member)

    def _lose(self, member: Member) -> None:
        self.closed += 1
        self._leave(member)

    def _leave(self, member: Member) -> None:
        self.selector.unregister(member.sock)
        del self.members[member.sock.fileno()]
        member.sock.close()
