"""The acceptor alone, around sockets of the test: whom it gives what, and what it says."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import select
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.limits import ListenerLimits
from mpbroker.config.listeners import Listener
from mpbroker.ipc import topology
from mpbroker.ipc.connections import OUTSTANDING_MAX
from mpbroker.ipc.listeners import ListenerCount, ListenerState
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.topology import SharedMemory, Sizes
from mpbroker.network import handover
from mpbroker.network.acceptor.acceptor import Acceptor
from mpbroker.network.acceptor.limit_notices import EVERY_MS
from mpbroker.network.acceptor.listener_orders import Orders
from mpbroker.startup import sockets

HOST = "127.0.0.1"
PROCESSORS = [topology.processor(number) for number in range(3)]


class Listening(socket.socket):
    """A listening socket whose accept() fails as often as it is told to."""

    errors: list[int]
    breaks: bool

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            code = self.errors.pop(0)
            raise OSError(code, os.strerror(code))
        connection, peer = super().accept()
        return (Broken(fileno=connection.detach()), peer) if self.breaks else (connection, peer)


class Broken(socket.socket):
    """A connection that ended before it was served."""

    def setsockopt(self, *_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


class World:
    """An acceptor of the listeners A and B, and the processors' ends of what it hands over."""

    def __init__(self, memory: SharedMemory, stack: contextlib.ExitStack, config: BrokerConfig) -> None:
        self.memory = memory
        self.stack = stack
        self.listening = [self._listen(name, config) for name in ("A", "B")]
        self.ends = {role: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for role in PROCESSORS}
        orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for pair in (*self.ends.values(), orders):
            for end in pair:
                stack.enter_context(end)
        listeners = tuple(
            Listener(name, "PLAINTEXT", HOST, sock.getsockname()[1])
            for name, sock in zip("AB", self.listening, strict=True)
        )
        self.acceptor = Acceptor(
            ProcessContext(topology.ACCEPTOR, memory, config),
            [(n, listeners[n], self.listening[n]) for n in range(2)],
            {role: pair[0] for role, pair in self.ends.items()},
            Orders(orders[1], 0),
        )
        stack.callback(self.acceptor.epoll.close)
        self.serve(*PROCESSORS)

    def _listen(self, name: str, config: BrokerConfig) -> Listening:
        fd, _ = sockets.bind(Listener(name, "PLAINTEXT", HOST, 0), (), config)
        made = self.stack.enter_context(Listening(fileno=fd))
        made.errors, made.breaks = [], False
        return made

    def serve(self, *roles: int) -> None:
        """These are the live processors."""
        for role in PROCESSORS:
            self.memory.words("roles").store(role, int(role in roles))

    def connect(self, listener: int, count: int = 1) -> list[socket.socket]:
        address = self.listening[listener].getsockname()
        return [self.stack.enter_context(socket.create_connection(address)) for _ in range(count)]

    def come(self, listener: int, count: int = 1) -> list[socket.socket]:
        """Let clients connect, and the acceptor do what it can with them."""
        clients = self.connect(listener, count)
        self.turns()
        return clients

    def turns(self, count: int = 4) -> None:
        for _ in range(count):
            os.eventfd_write(self.acceptor.context.bell.fd, 1)
            self.acceptor._catch_up()
            self.acceptor._wait()

    def taken(self, role: int, most: int = 1000) -> list[tuple[int, socket.socket]]:
        """(listener, connection) of what a processor takes from its queue."""
        inbox, found = self.ends[role][1], []
        inbox.setblocking(False)
        while len(found) < most:
            try:
                message, fds, _, _ = socket.recv_fds(inbox, handover.HANDOVER.size, 1)
            except BlockingIOError:
                break
            ticket, listener, _ = handover.unpack(message)
            self.memory.connections(role).take(ticket)
            found += [(listener, self.stack.enter_context(socket.socket(fileno=fd))) for fd in fds]
        return found

    def ask(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have Python accept every connection: the native turn sees no socket that fails on order."""
        monkeypatch.setattr(self.acceptor.quotas, "unasked", lambda _: 0)

    def count(self, listener: int, count: ListenerCount) -> int:
        return self.memory.listener_counts(listener).get(count)


Make = Callable[..., World]


@pytest.fixture
def make() -> Iterator[Make]:
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        memory = SharedMemory(Path(directory) / "public", Sizes(partition_slots=16))
        stack.callback(memory.close)
        yield lambda **settings: World(memory, stack, BrokerConfig(**settings))


@pytest.fixture
def world(make: Make) -> World:
    return make()


# ---- who gets what


def test_processors_get_connections_in_turn(world: World) -> None:
    clients = world.come(0, 30)
    names = {client.getsockname(): number for number, client in enumerate(clients)}
    for number, role in enumerate(PROCESSORS):
        got = [names[connection.getpeername()] for _, connection in world.taken(role)]
        assert got == list(range(number, 30, len(PROCESSORS)))


def test_a_processor_without_room_is_passed_over(world: World) -> None:
    world.serve(PROCESSORS[0])
    world.come(0, OUTSTANDING_MAX + 5)
    first = world.memory.connections(PROCESSORS[0])
    assert first.outstanding() == OUTSTANDING_MAX
    world.serve(*PROCESSORS)
    world.come(0, 4)
    assert first.outstanding() == OUTSTANDING_MAX
    first_unstable = OUTSTANDING_MAX + 5 + 4 - len(world.taken(PROCESSORS[0]))
    assert sum(len(world.taken(role)) for role in PROCESSORS[1:]) == first_unstable


def test_when_all_are_full_each_listener_holds_one_and_goes_on_when_there_is_room(world: World) -> None:
    world.serve(PROCESSORS[0])
    world.come(0, OUTSTANDING_MAX + 3)
    world.come(1, 2)
    assert world.count(1, ListenerCount.ACCEPTED) == 0
    assert world.memory.connections(PROCESSORS[0]).waits(0), "it asks to be rung"
    taken = world.taken(PROCESSORS[0])
    world.turns()
    taken += world.taken(PROCESSORS[0])
    assert [listener for listener, _ in taken].count(0) == OUTSTANDING_MAX + 3
    assert [listener for listener, _ in taken].count(1) == 2
    world.turns()
    assert not world.memory.connections(PROCESSORS[0]).waits(0)


def test_what_waits_for_room_is_counted_until_its_listener_is_removed(world: World) -> None:
    world.serve(PROCESSORS[0])
    world.turns()
    assert world.taken(PROCESSORS[0]) == [], "the mark of a new processor has no place among them any more"
    clients = world.come(0, OUTSTANDING_MAX + 1)
    quotas = world.acceptor.quotas
    assert quotas.total == OUTSTANDING_MAX + 1
    world.acceptor._remove(0)
    assert clients[-1].recv(1) == b"", "it is closed"
    address = socket.inet_aton(HOST)
    counts = (quotas.total, quotas.by_listener[0], quotas.by_ip[address])
    assert counts == (OUTSTANDING_MAX,) * 3, "the others are with their processor"


def test_a_listener_that_waits_for_a_slot_does_not_hold_up_the_other(make: Make) -> None:
    world = make(listener_limits={"A": ListenerLimits(max_connections=1)})
    world.connect(0, 3)
    world.come(1, 10)
    got = [listener for role in PROCESSORS for listener, _ in world.taken(role)]
    assert (got.count(0), got.count(1)) == (1, 10)


def test_the_rate_of_one_listener_delays_only_its_own(make: Make) -> None:
    """Check it with ten connections at once, which are within one a second over Kafka's window."""
    world = make(listener_limits={"A": ListenerLimits(max_connection_creation_rate=1)})
    world.connect(0, 13)
    world.come(1, 13)
    got = [listener for role in PROCESSORS for listener, _ in world.taken(role)]
    assert (got.count(0), got.count(1)) == (10, 13)
    assert (world.count(0, ListenerCount.THROTTLED), world.count(1, ListenerCount.THROTTLED)) == (1, 0)


@pytest.mark.parametrize("size", [-1, 65536])
def test_sockets_are_as_configured(make: Make, size: int) -> None:
    world = make(
        socket_send_buffer_bytes=size, socket_receive_buffer_bytes=size, socket_listen_backlog_size=7
    )
    world.serve(PROCESSORS[0])
    world.come(0)
    ((_, sock),) = world.taken(PROCESSORS[0])
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert not os.get_blocking(sock.fileno())
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        # The kernel doubles what is asked for (socket(7)).
        assert (sock.getsockopt(socket.SOL_SOCKET, option) == 2 * size) == (size > 0)
    # Of a listening socket tcpi_sacked is the length that its queue may have (tcp_diag).
    backlog_at = 28
    info = world.listening[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    assert int.from_bytes(info[backlog_at : backlog_at + 4], "little") == 7


# ---- what it says


def test_a_connection_that_was_lost_before_it_was_accepted(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "mpbroker")
    world.ask(monkeypatch)
    world.listening[0].errors = [errno.ECONNABORTED, errno.ECONNABORTED]
    world.come(0)
    said = [(r.levelno, r.getMessage()) for r in caplog.records]
    line = "a connection on A was lost before it was accepted: Software caused connection abort"
    assert said.count((logging.DEBUG, line)) == 2, "clients do it every day"
    assert [level for level, _ in said if level >= logging.WARNING] == []
    assert world.count(0, ListenerCount.ACCEPT_ERRORS) == 2
    assert world.count(0, ListenerCount.ACCEPTED) == 1, "the next one is served"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_descriptors_or_memory_it_rests(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    world.ask(monkeypatch)
    world.listening[0].errors = [code]
    world.connect(0)
    world.come(1)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    port = world.listening[0].getsockname()[1]
    assert record.getMessage().startswith(f"cannot accept on A://{HOST}:{port}: {os.strerror(code)}; trying")
    assert "LimitNOFILE" in record.getMessage()
    assert world.count(0, ListenerCount.ACCEPTED) == 0, "it rests"
    assert world.count(1, ListenerCount.ACCEPTED) == 1, "the other listener goes on"
    (there,) = [one for one in world.acceptor.open.values() if one.number == 0]
    there.rest_until_ms = 0.0
    world.turns()
    assert world.count(0, ListenerCount.ACCEPTED) == 1


class Watches:
    """An epoll whose kernel has no watch left for this many that are new."""

    def __init__(self, epoll: select.epoll, lacks: int) -> None:
        self._epoll = epoll
        self.lacks = lacks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)

    def register(self, fd: int, events: int) -> None:
        if self.lacks:
            self.lacks -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._epoll.register(fd, events)


@pytest.mark.parametrize("pause", ["held", "rest"])
def test_a_listener_that_pauses_keeps_its_watch(
    world: World, monkeypatch: pytest.MonkeyPatch, pause: str
) -> None:
    world.ask(monkeypatch)
    world.acceptor.epoll = Watches(world.acceptor.epoll, lacks=1000)
    if pause == "held":
        world.serve()
    else:
        world.listening[0].errors = [errno.EMFILE]
    world.come(0)
    (there,) = [one for one in world.acceptor.open.values() if one.number == 0]
    assert not there.may_accept
    world.connect(0)
    assert there.sock.fileno() not in dict(world.acceptor.epoll.poll(0)), "the backlog does not keep it awake"
    if pause == "rest":
        there.rest_until_ms = 0.0
    world.serve(*PROCESSORS)
    world.turns()
    assert world.count(0, ListenerCount.ACCEPTED) == 2
    world.come(0)
    assert world.count(0, ListenerCount.ACCEPTED) == 3, "it is watched again"


def test_without_a_watch_a_new_listener_rests(world: World, caplog: pytest.LogCaptureFixture) -> None:
    sock = world._listen("C", BrokerConfig())
    world.acceptor.epoll = Watches(world.acceptor.epoll, lacks=2)
    world.acceptor._add(2, Listener("C", "PLAINTEXT", HOST, sock.getsockname()[1]), sock)
    world.listening.append(sock)
    there = world.acceptor.open[sock.fileno()]
    world.connect(0)
    world.come(2)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith(f"cannot accept on C://{HOST}:")
    assert "fs.epoll.max_user_watches" in record.getMessage()
    assert world.count(0, ListenerCount.ACCEPTED) == 1, "the others go on"
    for accepted in (0, 1):
        there.rest_until_ms = 0.0
        world.turns()
        assert world.count(2, ListenerCount.ACCEPTED) == accepted
    assert world.count(2, ListenerCount.ACCEPT_ERRORS) == 2
    world.acceptor._remove(2)


def test_a_listener_without_a_watch_can_be_removed(world: World) -> None:
    sock = world._listen("C", BrokerConfig())
    world.acceptor.epoll = Watches(world.acceptor.epoll, lacks=1)
    world.acceptor._add(2, Listener("C", "PLAINTEXT", HOST, sock.getsockname()[1]), sock)
    world.acceptor._remove(2)
    assert world.count(2, ListenerCount.STATE) == ListenerState.REMOVED
    world.come(0)
    assert world.count(0, ListenerCount.ACCEPTED) == 1


def test_who_is_refused_is_named_with_its_port(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = make(max_connections_per_ip=1)
    _, refused = world.come(0, 2)
    peer = "{}:{}".format(*refused.getsockname())
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert len(said) == 1
    assert said[0].startswith(
        f"a connection of {peer} on A was refused: {HOST} has 1 already (max.connections.per.ip; "
    )
    world.acceptor.quotas.change_ip_rates({None: 1})
    throttled = world.come(0, 15)[-1]
    peer = "{}:{}".format(*throttled.getsockname())
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    assert said[-1].startswith(f"a connection of {peer} on A is closed in ")
    (first,) = [text for text in lines(caplog, logging.INFO) if "closed in" in text]
    assert "more than 1 a second come from that address (mpbroker quota list: " in first


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_connections": 2}, "the broker has 2, all that max.connections allows; raise it, or have "),
        (
            {"listener_limits": {"A": ListenerLimits(max_connections=2)}},
            "A has 2, all that listener.name.a.max.connections allows; raise it, or have ",
        ),
    ],
)
def test_who_waits_for_a_slot_is_said_once(
    make: Make, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], said: str
) -> None:
    world = make(**settings)
    world.come(1)
    world.connect(0, 5)
    world.turns(20)
    (line,) = lines(caplog, logging.WARNING)
    assert line.startswith(f"connections on A wait: {said}")


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"max_connection_creation_rate": 1}, "max.connection.creation.rate"),
        (
            {"listener_limits": {"A": ListenerLimits(max_connection_creation_rate=1)}},
            "listener.name.a.max.connection.creation.rate",
        ),
    ],
)
def test_who_comes_too_fast_is_said(
    make: Make, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], limit: str
) -> None:
    caplog.set_level(logging.INFO)
    world = make(**settings)
    world.come(0, 13)
    (line,) = lines(caplog, logging.INFO)
    assert line.startswith("a connection on A waits ")
    assert f"more than 1 a second come ({limit}); raise it" in line


def test_of_many_the_rest_is_counted(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = make(max_connections_per_ip=1)
    for count in (8, 1):
        world.come(0, count)
    now_ms = time.monotonic() * 1000
    notices = world.acceptor.notices
    notices.follow(now_ms)
    assert len(lines(caplog, logging.INFO)) == 1
    notices.follow(now_ms + 1.5 * EVERY_MS)
    assert re.sub(r"last \d+ s", "last 90 s", lines(caplog, logging.INFO)[1]) == (
        "7 more connections on A met max.connections.per.ip in the last 90 s"
    )
    notices.follow(now_ms + 3 * EVERY_MS)
    assert len(lines(caplog, logging.INFO)) == 2, "a quiet minute is not worth a line"
    world.come(0)
    assert "was refused" in lines(caplog, logging.INFO)[2]


def test_a_connection_that_ends_before_it_is_served(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    world.ask(monkeypatch)
    world.listening[0].breaks = True
    (client,) = world.come(0)
    peer = "{}:{}".format(*client.getsockname())
    said = [(r.levelno, r.getMessage()) for r in caplog.records]
    line = f"a connection of {peer} on A ended before it was served: Invalid argument"
    assert said == [(logging.DEBUG, line)]
    assert client.recv(1) == b""
    assert world.acceptor.quotas.total == 0
    world.listening[0].breaks = False
    world.come(0)
    assert world.count(0, ListenerCount.ACCEPTED) == 1
