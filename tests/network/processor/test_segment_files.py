"""Who gets segment files when not all can be open: answers wait, and descriptors are kept for them."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import (
    PART_BYTES_EACH,
    PartKind,
    Request,
    SlotKind,
    file_generation,
    pack_part,
    pack_reply,
)
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.segment_files import SPARE_DESCRIPTORS, SegmentFiles, shares
from mpbroker.network.processor.turn_files import FILES_MAX
from tests.support.polling import until
from tests.support.processor_rig import PROCESSOR, Rig, answer_frame, frame, is_closed, receive
from tests.support.served_processor import Served

FETCH = 1
LARGE = 4 << 20


class Files(Rig):
    """The rig with what opens its files; any number of segments, which are all one file."""

    def __init__(self, directory: Path, most: int = FILES_MAX, stall_ns: int = 10_000_000_000) -> None:
        super().__init__(stall_ns=stall_ns, places=1100)
        self.segment = directory / "s.log"
        self.segment.write_bytes(b"x" * 100)
        os.truncate(self.segment, LARGE)
        counters = self.memory.counters(PROCESSOR)
        self.opener = SegmentFiles(self.turn, most, logging.getLogger("files"), counters)
        self.inode = self.segment.stat().st_ino
        self.generation = file_generation(self.segment.stat())

    def answer_from(self, request: Request, segments: list[int], each_bytes: int = 1) -> None:
        name = os.fsencode(self.segment)
        at_path = len(segments) * PART_BYTES_EACH
        parts = b"".join(
            pack_part(PartKind.PART_FILE, each_bytes, 0, 3, 1, base, self.generation, at_path, len(name))
            for base in segments
        )
        block = self.arenas[0].allocate(at_path + len(name))
        self.arenas[0].view(block, at_path + len(name))[:] = parts + name
        generation = self.arenas[0].lend(block, PROCESSOR)
        where = (topology.handler(0), request.channel, request.connection, block, generation, 0)
        self.push(0, pack_reply(SlotKind.SEND_PARTS, *where, len(segments), request=request.request))

    def fetch(self, client: socket.socket, segments: list[int], each_bytes: int = 1) -> None:
        client.sendall(frame(FETCH, 4, 1))
        self.turn.turn(0)
        (request,) = self.requests_taken()
        self.answer_from(request, segments, each_bytes)
        self.work()

    def slow(self, segments: list[int]) -> socket.socket:
        """A client that does not read; what it is sent is more than sockets hold."""
        client = self.connect()
        self.fetch(client, segments, LARGE)
        return client

    def work(self, timeout_ms: int = 0) -> None:
        """Do what the processor does in a turn."""
        self.turn.turn(timeout_ms)
        self.opener.open()

    def await_reasons(self) -> list[int]:
        return until(self.reasons, "a connection that is closed", lambda: self.work(20))

    def open_files(self) -> int:
        inodes = []
        for fd in Path("/proc/self/fd").iterdir():
            try:
                inodes.append(fd.stat().st_ino)
            except FileNotFoundError:
                continue
        return inodes.count(self.inode)


MakeFiles = Callable[..., Files]


@pytest.fixture
def make_files(tmp_path: Path) -> Iterator[MakeFiles]:
    with contextlib.ExitStack() as stack:

        def make(**how: int) -> Files:
            made = Files(tmp_path, **how)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def files(make_files: MakeFiles) -> Files:
    return make_files()


def test_slow_consumers_of_many_partitions_do_not_cut_off_the_others(files: Files) -> None:
    for number in range(4):
        files.slow(list(range(number * 256, number * 256 + 256)))
    for number in range(20):
        client = files.connect()
        files.fetch(client, list(range(2000 + number * 8, 2008 + number * 8)))
        assert receive(client, 8) == b"x" * 8
    assert files.reasons() == []


def test_an_answer_of_more_files_than_can_be_open_is_given_up(files: Files) -> None:
    client = files.connect()
    files.fetch(client, list(range(FILES_MAX)))
    assert receive(client, FILES_MAX) == b"x" * FILES_MAX
    files.fetch(client, list(range(FILES_MAX + 1)))
    assert is_closed(client)
    assert files.turn.closed()[0][1:] == (CloseReason.CLOSED_MANY_FILES, FILES_MAX + 1)
    assert files.files.opening() == []
    assert files.in_use_bytes() == 0


def test_who_finds_no_room_waits_until_others_have_been_sent_theirs(make_files: MakeFiles) -> None:
    rig = make_files(most=10)
    slow = rig.slow(list(range(8)))
    waiting, small = rig.connect(), rig.connect()
    rig.fetch(waiting, list(range(20, 25)))
    rig.fetch(small, [30, 31])
    assert receive(small, 2) == b"xx", "there is room for this one"
    assert rig.open_files() == 10
    # Whoever waits keeps nobody awake, when the slow one's socket is full.
    rig.step(200)
    before_ns = time.monotonic_ns()
    for _ in range(10):
        rig.work(20)
    assert time.monotonic_ns() - before_ns > 100_000_000
    left = 8 * LARGE
    while left:
        left -= len(slow.recv(min(left, 1 << 20)))
        rig.work()
    assert receive(waiting, 5) == b"x" * 5
    assert rig.reasons() == []


def test_who_holds_files_that_others_wait_for_and_does_not_read_goes(make_files: MakeFiles) -> None:
    rig = make_files(most=10, stall_ns=100_000_000)
    rig.slow(list(range(8)))
    # This one holds no file.
    deaf = rig.connect()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.sendall(frame(FETCH, 4, 1))
    rig.work()
    (request,) = rig.requests_taken()
    rig.answer(request, answer_frame(1, bytes(32 << 20)))
    alone_s = time.monotonic() + 0.4
    while time.monotonic() < alone_s:
        rig.work(20)
    assert rig.reasons() == []
    waiting = rig.connect()
    rig.fetch(waiting, list(range(20, 25)))
    assert rig.await_reasons() == [CloseReason.CLOSED_STALLED]
    rig.work()
    assert receive(waiting, 5) == b"x" * 5
    assert rig.turn.open_connections() == 2


def test_a_client_that_goes_while_it_waits_leaves_nothing(make_files: MakeFiles) -> None:
    rig = make_files(most=10)
    rig.slow(list(range(8)))
    waiting = rig.connect()
    rig.fetch(waiting, list(range(20, 25)))
    waiting.close()
    assert rig.await_reasons() == [CloseReason.CLOSED_BY_PEER]
    assert rig.files.opening() == []


def test_what_an_answer_needs_is_not_closed_while_its_other_files_are_opened(make_files: MakeFiles) -> None:
    """Check it with answers that fit one by one: none waits, none is asked again, and the limit holds."""
    most, dice = 12, random.Random(3)
    rig = make_files(most=most)
    client = rig.connect()
    for _ in range(50):
        wanted = [dice.randrange(40) for _ in range(dice.randint(1, most))]
        rig.fetch(client, wanted)
        assert receive(client, len(wanted)) == b"x" * len(wanted)
        assert rig.open_files() <= most
    assert rig.requests_taken() == []


def test_without_a_descriptor_idle_files_go_first(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    client = files.connect()
    files.fetch(client, list(range(8)))
    assert receive(client, 8) == b"x" * 8
    opened, most = os.open, files.open_files()

    def limited(path: bytes, flags: int) -> int:
        if files.open_files() >= most:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path, flags)

    monkeypatch.setattr("mpbroker.network.processor.segment_files.os.open", limited)
    files.fetch(client, list(range(20, 28)))
    assert receive(client, 8) == b"x" * 8
    assert files.reasons() == []


def test_without_any_descriptor_a_fetch_waits_and_the_operator_is_told_once(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_path: bytes, _flags: int) -> int:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    client = files.connect()
    with monkeypatch.context() as patched:
        patched.setattr("mpbroker.network.processor.segment_files.os.open", refuse)
        files.fetch(client, [1])
        ends_s = time.monotonic() + 1.3
        while time.monotonic() < ends_s:
            files.work(100)
    said = [record.message for record in caplog.records]
    assert len(said) == 1
    assert "LimitNOFILE" in said[0]
    assert "fetches wait" in said[0]
    assert files.reasons() == []
    until(lambda: files.counter(Counter.COUNT_RESPONSES) > 0, "the answer is sent", lambda: files.work(100))
    assert receive(client, 1) == b"x"


@given(free=st.integers(-36, 1 << 20))
def test_connections_leave_descriptors_for_files(free: int) -> None:
    files, connections = shares(free)
    assert files >= 1
    assert connections >= 1
    if free > SPARE_DESCRIPTORS + 2:
        assert files + connections + SPARE_DESCRIPTORS <= free
    if free > 4 * FILES_MAX + SPARE_DESCRIPTORS:
        assert files == FILES_MAX


def test_a_connection_too_many_is_refused_and_said(caplog: pytest.LogCaptureFixture) -> None:
    rig = Served()
    rig.processor.connections_max = 2
    clients = [rig.connect() for _ in range(3)]
    assert [is_closed(client) for client in clients] == [False, False, True]
    assert "Raise the limit of open files (LimitNOFILE)" in caplog.text
    clients[0].close()
    rig.step()
    assert not is_closed(rig.connect())
    rig.close()
