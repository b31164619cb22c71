"""Answers that are slices of segment files: opened, checked, sent from the page cache."""

from __future__ import annotations

import os
import random
import socket
import time
from pathlib import Path

import pytest

from mpbroker.ipc.slots import SlotFlag
from mpbroker.network.processor.channel import CloseReason
from tests.support.polling import until
from tests.support.processor_rig import (
    MakeRig,
    Rig,
    answer_from_replaced,
    frame,
    is_closed,
    open_all,
    parts_answer,
    receive,
)

FETCH = 1


def test_slices_of_segments_are_sent_from_the_files(rig: Rig, tmp_path: Path) -> None:
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(bytes(range(256)) * 20)
    client = rig.connect()
    for round_ in range(3):
        request = rig.ask(client, frame(FETCH, 4, round_))
        parts_answer(rig, request, b"HEAD", segment, [(10, 1000), (256, 512)])
        rig.step()
        if round_ == 0:
            open_all(rig)
        assert (
            receive(client, 1516) == b"HEAD" + segment.read_bytes()[10:1010] + segment.read_bytes()[256:768]
        )
    assert rig.files.opening() == [], "the file was opened more than once"
    assert rig.in_use_bytes() == 0


def test_any_number_of_answers_waits_for_files(make_rig: MakeRig, segment: Path) -> None:
    """Check it for all answers of a turn, as after a start, when no segment is open yet."""
    count, handlers = 1030, 2
    rig = make_rig(handlers=handlers, queued_max=count, places=count)
    clients = [rig.connect() for _ in range(count)]
    for client in clients:
        client.sendall(frame(FETCH, 4, 1))
    rig.step(8)
    for handler in range(handlers):
        for request in rig.requests_taken(handler):
            parts_answer(rig, request, b"HEAD", segment, [(0, 10)], handler=handler)
    rig.step(1)
    assert rig.turn.closed() == []
    open_all(rig)
    assert {receive(client, 14) for client in clients} == {b"HEAD" + b"x" * 10}


def asks_for_all_of(rig: Rig, segment: Path, content: bytes) -> socket.socket:
    """Return a client that asks for all of it and has read nothing of its answer."""
    segment.write_bytes(content)
    client = rig.connect()
    request = rig.ask(client, frame(FETCH, 4, 1))
    parts_answer(rig, request, b"HEAD", segment, [(0, len(content))])
    rig.step()
    open_all(rig)
    return client


def test_an_answer_larger_than_all_buffers_reaches_a_slow_reader(rig: Rig, tmp_path: Path) -> None:
    segment, content = tmp_path / "s.log", random.Random(1).randbytes(8 << 20)
    client = asks_for_all_of(rig, segment, content)
    got = bytearray()
    while len(got) < len(content) + 4:
        got += client.recv(100_000)
        rig.step(1)
    assert bytes(got) == b"HEAD" + content


def test_a_replaced_segment_sends_the_request_to_a_handler_again_and_then_closes(
    rig: Rig, segment: Path
) -> None:
    client = rig.connect()
    client.sendall(frame(FETCH, 4, 1))
    rig.step()
    for attempt in range(3):
        (request,) = rig.requests_taken()
        assert request.flags == (SlotFlag.AGAIN if attempt else 0)
        answer_from_replaced(rig, request, segment)
    assert rig.reasons() == [CloseReason.CLOSED_NO_FILE]
    assert is_closed(client)


def fetch(rig: Rig, client: socket.socket, segment: Path) -> None:
    """Have the client ask for ten bytes of it, and check what it gets."""
    request = rig.ask(client, frame(FETCH, 4, 1))
    parts_answer(rig, request, b"HEAD", segment, [(0, 10)])
    rig.step()
    open_all(rig)
    assert receive(client, 14) == b"HEAD" + b"x" * 10


def is_open(path: Path) -> bool:
    """Tell whether this process has the file open, whatever became of its name."""
    links = Path("/proc/self/fd").iterdir()
    return any(str(path) in str(link.readlink()) for link in links if link.is_symlink())


def test_a_deleted_file_is_not_kept_open(rig: Rig, tmp_path: Path) -> None:
    """Check that it is closed even if nothing else needs the descriptor: open, it would take up space."""
    deleted, kept = tmp_path / "deleted.log", tmp_path / "kept.log"
    client = rig.connect()
    for path in (deleted, kept):
        path.write_bytes(b"x" * 100)
        fetch(rig, client, path)
    deleted.unlink()
    until(lambda: not is_open(deleted), "it is closed", lambda: rig.turn.turn(50))
    assert is_open(kept)
    request = rig.ask(client, frame(FETCH, 4, 2))
    parts_answer(rig, request, b"HEAD", kept, [(0, 10)])
    rig.step()
    assert rig.files.opening() == [], "the table lost what it has open"
    assert receive(client, 14) == b"HEAD" + b"x" * 10


def test_what_is_sent_from_a_deleted_file_is_sent_to_its_end(rig: Rig, tmp_path: Path) -> None:
    segment, content = tmp_path / "s.log", random.Random(1).randbytes(8 << 20)
    client = asks_for_all_of(rig, segment, content)
    segment.unlink()
    looked_s = time.monotonic() + 1.2
    while time.monotonic() < looked_s:
        rig.turn.turn(50)
    assert is_open(segment)
    got = bytearray()
    while len(got) < len(content) + 4:
        got += client.recv(100_000)
        rig.step(1)
    assert bytes(got) == b"HEAD" + content
    until(lambda: not is_open(segment), "it is closed", lambda: rig.turn.turn(50))


def test_a_turn_that_goes_takes_its_descriptors_along(rig: Rig, segment: Path) -> None:
    client = rig.connect()
    fetch(rig, client, segment)
    assert is_open(segment)
    poll_fd = rig.turn.poll_fd
    del rig.turn
    assert not is_open(segment)
    assert is_closed(client)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(poll_fd)
