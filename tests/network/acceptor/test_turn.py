"""The acceptor's native turn: what it does without Python, and what it leaves to it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import tempfile
from pathlib import Path

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.connections import OUTSTANDING_MAX
from mpbroker.ipc.listeners import ListenerCount
from mpbroker.ipc.topology import SharedMemory, Sizes
from mpbroker.network import handover
from mpbroker.network.acceptor.turn import AcceptorTurn

ROLES = (topology.processor(0), topology.processor(1))
NUMBER = 3


class Bench:
    """A turn with one listener and the processors' ends of its pairs."""

    def __init__(self, stack: contextlib.ExitStack, family: int = socket.AF_INET, host: str = "127.0.0.1"):
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        self.stack = stack
        self.memory = SharedMemory(Path(directory) / "public", Sizes(partition_slots=16))
        stack.callback(self.memory.close)
        self.listening = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        if family == socket.AF_UNIX:
            self.listening.bind(f"{directory}/socket")
        else:
            self.listening.bind((host, 0))
        self.listening.listen(128)
        self.listening.setblocking(False)
        self.epoll = stack.enter_context(select.epoll())
        self.epoll.register(self.listening.fileno(), select.EPOLLIN)
        self.pairs = {role: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for role in ROLES}
        for pair in self.pairs.values():
            for end in pair:
                end.setblocking(False)
                stack.enter_context(end)
        self.word = self.memory.private.block("limits")[:8]
        self.turn = AcceptorTurn(self.memory, topology.ACCEPTOR, self.epoll.fileno(), [self.word], -1)
        self.turn.add_listener(self.listening.fileno(), NUMBER, family == socket.AF_UNIX)
        self.turn.set_processors([(role, pair[0].fileno()) for role, pair in self.pairs.items()])
        for role in ROLES:
            self.memory.words("roles").store(role, 1)
        self.turn.look_at_words()

    def connect(self, count: int = 1) -> list[socket.socket]:
        clients = []
        for _ in range(count):
            client = self.stack.enter_context(socket.socket(self.listening.family, socket.SOCK_STREAM))
            client.connect(self.listening.getsockname())
            clients.append(client)
        return clients

    def allow(self, count: int) -> None:
        self.turn.allow(self.listening.fileno(), count)

    def taken(self, role: int) -> list[tuple[int, int, bytes]]:
        """(ticket, listener, address) of what a processor's queue has; the sockets are closed."""
        found = []
        while (received := handover.receive(self.pairs[role][1])) is not None:
            message, fds = received
            for fd in fds:
                os.close(fd)
            found.append(handover.unpack(message))
        return found

    def accepted(self) -> int:
        return self.memory.listener_counts(NUMBER).get(ListenerCount.ACCEPTED)


@pytest.fixture
def bench(stack: contextlib.ExitStack) -> Bench:
    return Bench(stack)


def test_allowed_connections_need_no_python(bench: Bench) -> None:
    bench.allow(10)
    bench.connect(4)
    assert bench.turn.serve(0) == []
    handed = bench.turn.handed()
    address = socket.inet_aton("127.0.0.1")
    assert [(role, listener, there) for role, _, listener, there in handed] == [
        (ROLES[number % 2], NUMBER, address) for number in range(4)
    ]
    for role in ROLES:
        told = [(ticket, listener, there) for r, ticket, listener, there in handed if r == role]
        assert bench.taken(role) == told
    assert bench.accepted() == 4
    assert bench.turn.handed() == [], "each is told once"


def test_connections_that_come_one_by_one_go_to_processors_in_turn(bench: Bench) -> None:
    bench.allow(10)
    for number in range(4):
        bench.connect()
        assert bench.turn.serve(0) == []
        assert [len(bench.taken(role)) for role in ROLES] == ([1, 0] if number % 2 == 0 else [0, 1])


def test_it_asks_when_no_more_are_allowed(bench: Bench) -> None:
    bench.allow(2)
    bench.connect(3)
    assert bench.turn.serve(0) == [bench.listening.fileno()]
    assert len(bench.turn.handed()) == 2
    bench.allow(2)
    assert bench.turn.serve(0) == []
    assert len(bench.turn.handed()) == 1


def test_a_change_of_a_word_is_for_python_before_anything_is_accepted(bench: Bench) -> None:
    bench.allow(10)
    bench.connect()
    bench.word[:8] = (1).to_bytes(8, "little")
    assert bench.turn.serve(60_000) == [bench.listening.fileno()]
    assert bench.turn.handed() == []
    bench.turn.look_at_words()
    assert bench.turn.serve(0) == []
    assert len(bench.turn.handed()) == 1


def test_the_bell_ends_the_turn(bench: Bench) -> None:
    bell = bench.memory.doorbell(topology.ACCEPTOR)
    bench.epoll.register(bell.fd, select.EPOLLIN)
    os.eventfd_write(bell.fd, 1)
    assert bench.turn.serve(60_000) == []
    assert bench.epoll.poll(0) == [], "it is drained"


def test_it_asks_when_no_processor_has_room_or_lives(bench: Bench) -> None:
    bench.allow(1000)
    bench.connect(2 * OUTSTANDING_MAX + 1)
    assert bench.turn.serve(0) == [bench.listening.fileno()]
    assert [len(bench.taken(role)) for role in ROLES] == [OUTSTANDING_MAX] * 2
    for role in ROLES:
        bench.memory.words("roles").store(role, 0)
        ledger = bench.memory.connections(role)
        ledger.take(ledger.handed)
    assert bench.turn.serve(0) == [bench.listening.fileno()]
    bench.memory.words("roles").store(ROLES[1], 2)
    assert bench.turn.serve(0) == []
    assert len(bench.taken(ROLES[1])) == 1


def test_what_cannot_be_sent_is_pythons_and_its_ticket_is_taken_back(bench: Bench) -> None:
    bench.allow(10)
    bench.pairs[ROLES[0]][1].close()
    (client,) = bench.connect()
    assert bench.turn.serve(0) == []
    assert bench.turn.handed() == []
    unsent = bench.turn.unsent()
    assert unsent is not None
    number, fd = unsent
    with socket.socket(fileno=fd) as connection:
        assert (number, connection.getpeername()) == (NUMBER, client.getsockname())
        assert bench.turn.unsent() is None
        assert bench.memory.connections(ROLES[0]).outstanding() == 0
        assert bench.turn.hand_over(connection.fileno(), NUMBER, b"") == (ROLES[1], 1)
    assert bench.accepted() == 0, "Python counts what it hands over itself"


def test_a_lack_of_descriptors_is_pythons(bench: Bench) -> None:
    resource = pytest.importorskip("resource")
    bench.allow(10)
    bench.connect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
    try:
        ready = bench.turn.serve(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(taken[0])
    assert ready == [bench.listening.fileno()]
    assert bench.turn.lost() is None, "it waits in the backlog"
    assert bench.turn.serve(0) == []
    assert len(bench.turn.handed()) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1", "::1", "unix"])
def test_addresses_are_those_that_limits_count_by(stack: contextlib.ExitStack, host: str) -> None:
    family = {"127.0.0.1": socket.AF_INET, "unix": socket.AF_UNIX}.get(host, socket.AF_INET6)
    if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    bench = Bench(stack, family, host)
    bench.allow(2)
    (client,) = bench.connect()
    assert bench.turn.serve(0) == []
    ((_, _, _, address),) = bench.turn.handed()
    assert address == handover.packed_address(family, client.getsockname())


def test_a_removed_listener_is_not_served(bench: Bench) -> None:
    bench.allow(1)
    bench.turn.remove_listener(bench.listening.fileno())
    bench.connect()
    assert bench.turn.serve(0) == [bench.listening.fileno()]
