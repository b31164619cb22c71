"""Members of groups of the consumer protocol (KIP-848) for the load generator: thousands in one process.

`Member` is a client without a socket: it makes the bytes of requests and reads those of responses. Like
Kafka's clients, it sends only what has changed. It reports its partitions as soon as it has a new assignment.
Otherwise it sends heartbeats at the interval that the broker asks for. `Fleet` connects the members.
Like `frames`, this module does not depend on the broker's codec (ConsumerGroupHeartbeat 1, OffsetCommit 9).
"""

from __future__ import annotations

import heapq
import select
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from ops.bench import frames
from ops.bench.frames import Address

CONSUMER_GROUP_HEARTBEAT: Final = 68
REBALANCE_TIMEOUT_MS: Final = 300_000
JOIN_EPOCH, LEAVE_EPOCH = 0, -1
BACKOFF_S = 0.1
ASK_EVERY_S = 0.02
# Not yet: COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
RETRIABLE = (14, 15, 16)
# Join again: UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH.
FENCED = (25, 110)
# Size, correlation id and tagged fields of a response.
RESPONSE_HEADER_BYTES = 9
NULL = b"\0"
NO_TAGS = b"\0"
UUID_BYTES = 16


class MemberError(Exception):
    """A request of a member failed, or the members did not reach the awaited state in time."""


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _compact(text: str) -> bytes:
    encoded = text.encode()
    return _uvarint(len(encoded) + 1) + encoded


def _flexible_frame(api_key: int, version: int, body: bytes) -> bytes:
    # The header's tagged fields stand where the body of an older version begins.
    return frames.frame(api_key, version, NO_TAGS + body)


class _Reader:
    """Reads the flexible types of a response, from position `at` on."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def octets(self) -> bytes:
        """Read a compact string, and return its bytes without decoding them; b"" for null."""
        size = max(0, self.uvarint() - 1)
        self.at += size
        return self.data[self.at - size : self.at]

    def assignment(self) -> dict[bytes, tuple[int, ...]]:
        found: dict[bytes, tuple[int, ...]] = {}
        for _ in range(self.uvarint() - 1):
            topic_id = self.data[self.at : self.at + UUID_BYTES]
            self.at += UUID_BYTES
            count = self.uvarint() - 1
            found[topic_id] = struct.unpack_from(f">{count}i", self.data, self.at)
            self.at += 4 * count + len(NO_TAGS)
        return found


class Heartbeat(NamedTuple):
    """The fields of a heartbeat's response. `assignment`: partitions by topic id, None if unchanged."""

    error_code: int
    error_message: str
    epoch: int
    interval_ms: int
    assignment: dict[bytes, tuple[int, ...]] | None


def heartbeat_response(frame: bytes) -> Heartbeat:
    """Read a ConsumerGroupHeartbeat response, version 0 or 1."""
    reader = _Reader(frame, RESPONSE_HEADER_BYTES)
    reader.number(">i")
    error_code, message = reader.number(">h"), reader.octets()
    reader.octets()
    epoch, interval_ms = reader.number(">i"), reader.number(">i")
    has_assignment = reader.number(">b") >= 0
    assignment = reader.assignment() if has_assignment else None
    return Heartbeat(error_code, message.decode(), epoch, interval_ms, assignment)


@dataclass(eq=False)
class Member:
    """A member of a group that subscribes to one topic.

    `due`: when the next heartbeat is due (`time.monotonic`). `lost`: how many partitions it had to give up.
    """

    group: str
    topic: str
    member_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = JOIN_EPOCH
    due: float = 0.0
    lost: int = 0
    owned: set[tuple[bytes, int]] = field(default_factory=set)
    _is_reconciled: bool = True

    @property
    def is_settled(self) -> bool:
        """True if the broker knows that the member has its last assignment."""
        return self.epoch > JOIN_EPOCH and self._is_reconciled

    def heartbeat(self) -> bytes:
        body = _compact(self.group) + _compact(self.member_id) + struct.pack(">i", self.epoch) + 2 * NULL
        if self.epoch == JOIN_EPOCH:
            names = _uvarint(2) + _compact(self.topic)
            body += struct.pack(">i", REBALANCE_TIMEOUT_MS) + names + 2 * NULL + _uvarint(1)
        else:
            owned = NULL if self._is_reconciled else self._owned()
            body += struct.pack(">i", -1) + 3 * NULL + owned
        return _flexible_frame(CONSUMER_GROUP_HEARTBEAT, 1, body + NO_TAGS)

    def _owned(self) -> bytes:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, partition in self.owned:
            by_topic.setdefault(topic_id, []).append(partition)
        found = _uvarint(len(by_topic) + 1)
        for topic_id, partitions in by_topic.items():
            found += topic_id + _uvarint(len(partitions) + 1)
            found += struct.pack(f">{len(partitions)}i", *partitions) + NO_TAGS
        return found

    def leave(self) -> bytes:
        self.epoch = LEAVE_EPOCH
        self.owned = set()
        return self.heartbeat()

    def take_heartbeat(self, frame: bytes, now: float) -> None:
        """Take the response to the last heartbeat. Raises MemberError if it is an error."""
        response = heartbeat_response(frame)
        self.due = now + response.interval_ms / 1000
        if response.error_code in RETRIABLE:
            self.due = now + BACKOFF_S
        elif response.error_code in FENCED and self.epoch != LEAVE_EPOCH:
            self.lost += len(self.owned)
            self.epoch, self.owned, self._is_reconciled, self.due = JOIN_EPOCH, set(), True, now
        elif response.error_code and self.epoch != LEAVE_EPOCH:
            raise MemberError(f"a heartbeat is answered with {response.error_code}: {response.error_message}")
        else:
            self.epoch, self._is_reconciled = response.epoch, True
            if response.assignment is not None:
                self._reconcile(response.assignment, now)

    def _reconcile(self, assignment: dict[bytes, tuple[int, ...]], now: float) -> None:
        target = {(topic, number) for topic, numbers in assignment.items() for number in numbers}
        if target != self.owned:
            self.lost += len(self.owned - target)
            self.owned, self._is_reconciled, self.due = target, False, now

    def commit(self) -> bytes:
        """Return an OffsetCommit of one of the member's partitions."""
        _, partition = next(iter(self.owned))
        body = _compact(self.group) + struct.pack(">i", self.epoch) + _compact(self.member_id) + NULL
        body += _uvarint(2) + _compact(self.topic)
        body += _uvarint(2) + struct.pack(">iqi", partition, 1, -1) + _compact("") + NO_TAGS
        return _flexible_frame(frames.OFFSET_COMMIT, 9, body + 2 * NO_TAGS)

    def take_commit(self, frame: bytes) -> None:
        """Take the response to a commit. Raises MemberError if it is an error."""
        reader = _Reader(frame, RESPONSE_HEADER_BYTES + 4)
        reader.uvarint()
        reader.octets()
        reader.uvarint()
        reader.number(">i")
        if error_code := reader.number(">h"):
            raise MemberError(f"a commit is answered with error code {error_code}")


class _Connection:
    """The connection of a member, with at most one request under way."""

    def __init__(self, member: Member, address: Address) -> None:
        self.member = member
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.received = b""
        self.sent_at = 0.0
        self.is_commit = False
        self.is_open = True

    def send(self, frame: bytes, now: float, *, is_commit: bool = False) -> None:
        self.sent_at, self.is_commit = now, is_commit
        if self.socket.send(frame) != len(frame):
            raise MemberError("a request does not fit into the socket")

    def response(self) -> bytes:
        """Receive; return the response when it is whole, else b""."""
        part = self.socket.recv(1 << 16)
        if not part:
            raise MemberError("the broker closed the connection of a member")
        received = self.received + part
        if len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4]):
            self.received = received
            return b""
        self.received = b""
        return received

    def close(self) -> None:
        self.is_open = False
        self.socket.close()


class Fleet:
    """Members with their connections. `latencies`: seconds of each heartbeat, `commits`: of each commit."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._poller = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._of_member: dict[Member, _Connection] = {}
        # Heartbeats that will be due.
        self._due: list[tuple[float, int, _Connection]] = []
        self._scheduled = 0
        self.latencies: list[float] = []
        self.commits: list[float] = []
        self._commits_without_end = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()
        self._poller.close()

    @property
    def members(self) -> Iterable[Member]:
        return self._of_member.keys()

    @property
    def requests(self) -> int:
        return len(self.latencies) + len(self.commits)

    def add(self, member: Member) -> None:
        """Connect a member. Its first heartbeat is sent when it is due."""
        connection = _Connection(member, self._address)
        self._connections[connection.socket.fileno()] = connection
        self._of_member[member] = connection
        self._poller.register(connection.socket, select.EPOLLIN)
        self._schedule(connection)

    def remove(self, member: Member, patience_s: float = 60) -> None:
        """Let a member leave, and close its connection."""
        self.remove_all([member], patience_s)

    def remove_all(self, members: Iterable[Member], patience_s: float = 120) -> None:
        gone = [*members]
        # Wait for the answers to requests under way.
        self.run(lambda: not any(self._of_member[member].sent_at for member in gone), patience_s, gone)
        for member in gone:
            self._of_member[member].send(member.leave(), time.monotonic())
        self.run(lambda: not any(self._of_member[member].sent_at for member in gone), patience_s, gone)
        for member in gone:
            connection = self._of_member.pop(member)
            del self._connections[connection.socket.fileno()]
            self._poller.unregister(connection.socket)
            connection.close()

    def run(self, is_done: Callable[[], bool], patience_s: float, silent: Iterable[Member] = ()) -> None:
        """Exchange heartbeats until `is_done`, which is asked every ASK_EVERY_S.

        `silent` members begin no request. Raises MemberError after `patience_s`.
        """
        quiet = {id(member) for member in silent}
        until = time.monotonic() + patience_s
        asked_at = 0.0
        while True:
            now = time.monotonic()
            if now - asked_at > ASK_EVERY_S:
                asked_at = now
                if is_done():
                    return
            if now > until:
                raise MemberError(f"the members are not done within {patience_s:.0f} s")
            self._send_due(now, quiet)
            wait_s = min(asked_at + ASK_EVERY_S, self._due[0][0] if self._due else until) - now
            for descriptor, _ in self._poller.poll(max(0.0, wait_s)):
                self._receive(self._connections[descriptor], quiet)

    def _send_due(self, now: float, quiet: set[int]) -> None:
        while self._due and self._due[0][0] <= now:
            due, _, connection = heapq.heappop(self._due)
            is_current = connection.is_open and due == connection.member.due
            if is_current and not connection.sent_at and id(connection.member) not in quiet:
                connection.send(connection.member.heartbeat(), now)

    def _receive(self, connection: _Connection, quiet: set[int]) -> None:
        frame = connection.response()
        if not frame:
            return
        now, member = time.monotonic(), connection.member
        (self.commits if connection.is_commit else self.latencies).append(now - connection.sent_at)
        connection.sent_at = 0.0
        if connection.is_commit:
            member.take_commit(frame)
        else:
            member.take_heartbeat(frame, now)
        if not connection.is_commit or member.due <= now:
            self._schedule(connection)
        elif id(member) not in quiet and self._commits_without_end and member.owned:
            connection.send(member.commit(), now, is_commit=True)

    def _schedule(self, connection: _Connection) -> None:
        self._scheduled += 1
        heapq.heappush(self._due, (connection.member.due, self._scheduled, connection))

    def schedule(self, member: Member) -> None:
        """Send the next heartbeat at the member's `due`, which the caller has changed."""
        self._schedule(self._of_member[member])

    def stop_commits(self) -> None:
        self._commits_without_end = False

    def start_commits(self) -> None:
        """From now on each member with partitions commits whenever its last request is answered."""
        self._commits_without_end = True
        now = time.monotonic()
        for connection in self._connections.values():
            if not connection.sent_at and connection.member.owned:
                connection.send(connection.member.commit(), now, is_commit=True)


def groups_of(members: Iterable[Member]) -> Iterator[list[Member]]:
    by_group: dict[str, list[Member]] = {}
    for member in members:
        by_group.setdefault(member.group, []).append(member)
    yield from by_group.values()


def are_stable(members: Iterable[Member], partitions: int) -> bool:
    """Return True if in each group every partition has one owner, and members have equally many."""
    for group in groups_of(members):
        sizes = [len(member.owned) for member in group]
        if sum(sizes) != partitions or max(sizes) - min(sizes) > 1:
            return False
        if not all(member.is_settled for member in group):
            return False
        if len(set().union(*(member.owned for member in group))) != partitions:
            return False
    return True
