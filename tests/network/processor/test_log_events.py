"""What a processor says of its connections: Kafka's events, with level, listener and connection id.

A real `Processor` around the rig's memory, taken one step at a time.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.listeners import ListenerCount, ListenerState
from mpbroker.ipc.process import LISTENER_REMOVED, pack_order
from mpbroker.ipc.slots import PART_BYTES_EACH, PartKind, Request, SlotKind, pack_part, pack_reply
from mpbroker.network.processor import processor as module
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.processor import describe_close
from mpbroker.network.processor.turn import ProcessorTurn
from tests.support.processor_rig import PROCESSOR, answer_frame, frame, is_closed
from tests.support.served_processor import INTERNAL, Served

METADATA, FETCH = 3, 1


@pytest.fixture
def served(caplog: pytest.LogCaptureFixture) -> Iterator[Served]:
    caplog.set_level(logging.DEBUG, "mpbroker")
    served = Served()
    yield served
    served.close()


def only(caplog: pytest.LogCaptureFixture, level: int) -> str:
    """The one message of this level; nothing louder was said."""
    assert [r.getMessage() for r in caplog.records if r.levelno > level] == []
    (message,) = [r.getMessage() for r in caplog.records if r.levelno == level]
    return message


@pytest.mark.parametrize(
    ("sent", "level", "says"),
    [
        (struct.pack(">i", -7), logging.WARNING, "claims -7 bytes"),
        (struct.pack(">i", 0x16030100), logging.WARNING, "a TLS client on a plaintext listener?"),
        (frame(32639, 1, 1), logging.ERROR, "unknown API key 32639"),
        (struct.pack(">ihhi", 8, METADATA, 1, 5), logging.ERROR, "no valid request header"),
        (frame(METADATA, 12, 5, b"", tags=b"\x02\x07\x7f"), logging.ERROR, "no valid request header"),
    ],
    ids=["negative size", "TLS hello", "unknown API", "short header", "bad tags"],
)
def test_bad_bytes_close_and_are_told(
    served: Served, caplog: pytest.LogCaptureFixture, sent: bytes, level: int, says: str
) -> None:
    client, other = served.connect(), served.connect()
    who = served.id_of(client)
    caplog.clear()
    client.sendall(sent)
    served.step()
    assert is_closed(client)
    message = only(caplog, level)
    assert says in message
    assert f"connection {who}" in message
    assert "on INTERNAL" in message
    assert not is_closed(other)


def test_a_client_that_goes_is_told_quietly(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = served.connect()
    who = served.id_of(client)
    caplog.clear()
    client.close()
    served.step()
    message = only(caplog, logging.DEBUG)
    assert who in message
    assert message.endswith("closed: by the client")


def test_an_expired_connection_is_told(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = served.connect()
    caplog.clear()
    served.turn.close_idle(1 << 62)
    served.step()
    message = only(caplog, logging.DEBUG)
    assert served.id_of(client) in message
    assert "connections.max.idle.ms" in message


def test_an_answer_to_a_channel_that_is_gone_is_told(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    client = served.connect()
    request = served.ask(client, frame(METADATA, 1, 1))
    served.turn.close_idle(1 << 62)
    served.step()
    caplog.clear()
    served.answer(request, answer_frame(1))
    served.step()
    message = only(caplog, logging.DEBUG)
    assert "the answer to METADATA is dropped" in message
    assert served.id_of(client) in message
    assert "on INTERNAL" in message


def test_a_handler_that_closes_has_said_why(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = served.connect()
    client.sendall(frame(METADATA, 1, 1))
    served.step()
    caplog.clear()
    served.answer_kind(served.requests_taken()[0], SlotKind.CLOSE)
    served.step()
    assert "see the handlers" in only(caplog, logging.DEBUG)
    assert is_closed(client)


class WithoutWatch:
    """A turn for whose next connection the kernel has no watch left."""

    def __init__(self, turn: ProcessorTurn) -> None:
        self._turn = turn
        self._has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    def add_connection(self, *arguments: Any) -> Any:
        if self._has_failed:
            return self._turn.add_connection(*arguments)
        self._has_failed = True
        raise OSError(errno.ENOSPC, "epoll_ctl")


def test_a_connection_for_which_there_is_no_watch_is_closed_and_others_are_served(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.processor.turn = WithoutWatch(served.turn)
    before = served.processor.ledger.outstanding()
    refused = served.connect()
    message = only(caplog, logging.ERROR)
    assert message.startswith("a connection on INTERNAL was refused: ")
    assert "fs.epoll.max_user_watches" in message
    assert is_closed(refused)
    assert served.processor.ledger.outstanding() == before, "the acceptor counts it no more"
    client = served.connect()
    client.sendall(frame(METADATA, 1, 1))
    served.step()
    assert len(served.requests_taken()) == 1


def test_a_client_that_went_before_it_was_served(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.hand_over(socket.socket(), INTERNAL)
    served.step()
    assert "could not be registered" in only(caplog, logging.DEBUG)
    client = served.connect()
    client.sendall(frame(METADATA, 1, 1))
    served.step()
    assert len(served.requests_taken()) == 1


def test_what_was_on_its_way_when_its_listener_was_removed_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(served.processor.context, "entitle", titles.append)
    states = {
        "PLAINTEXT": ListenerState.ACCEPTING,
        "INTERNAL": ListenerState.REMOVED,
        "CONTROL": ListenerState.ACCEPTING,
    }
    for number, (name, state) in enumerate(states.items()):
        counts = served.memory.listener_counts(number)
        counts.introduce(name, control_plane=name == "CONTROL")
        counts.set(ListenerCount.STATE, state)
    there = served.connect()
    order = pack_order(1, LISTENER_REMOVED, INTERNAL)
    served.memory.words("fence_orders").store(PROCESSOR, order)
    served.processor._obey_order()
    served.step()
    assert is_closed(there)
    assert is_closed(served.connect())
    assert served.turn.connections == 0
    assert titles == ["PLAINTEXT"], "CONTROL is of the other plane"


class FullTurn:
    """A turn that has no place left."""

    def __init__(self, turn: ProcessorTurn) -> None:
        self._turn = turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    def add_connection(self, *_: object) -> None:
        return None


def test_a_processor_that_is_full_says_so(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.processor, "turn", FullTurn(served.turn))
    client = served.connect()
    assert "Start more processors" in only(caplog, logging.ERROR)
    assert is_closed(client)


def slices(served: Served, request: Request, path: bytes) -> None:
    """An answer of one slice of a file."""
    table = pack_part(PartKind.PART_FILE, 1, 0, 3, 1, 0, 1, PART_BYTES_EACH, len(path))
    block = served.arenas[0].allocate(len(table) + len(path))
    served.arenas[0].view(block, len(table) + len(path))[:] = table + path
    generation = served.arenas[0].lend(block, PROCESSOR)
    where = (topology.handler(0), request.channel, request.connection, block, generation, 0, 1)
    served.push(0, pack_reply(SlotKind.SEND_PARTS, *where, request=request.request))


def test_an_error_with_one_connection_never_reaches_another(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clients = [served.connect() for _ in range(2)]
    for client in clients:
        client.sendall(frame(FETCH, 4, 1))
    served.step()
    first, second = served.requests_taken()
    opened = os.open

    def open_or_fail(path: bytes, flags: int, **how: int) -> int:
        if path == b"poisoned":
            raise RuntimeError("nobody expects this")
        return opened(path, flags, **how)

    monkeypatch.setattr(module.os, "open", open_or_fail)
    caplog.clear()
    slices(served, first, b"poisoned")
    slices(served, second, os.fsencode(tmp_path / "gone"))
    served.step()
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(said) == 2
    assert "nobody expects this" in str(caplog.records[0].exc_info)
    assert is_closed(clients[0])
    # The other's answer went back to a handler, because its segment is not there any more.
    assert [r.connection for r in served.requests_taken()] == [second.connection]
    assert not is_closed(clients[1])


def test_every_reason_has_words() -> None:
    for reason in CloseReason:
        detail = topology.LOG if reason == CloseReason.CLOSED_ROLE_DIED else 5
        assert describe_close(reason, detail)


@pytest.mark.parametrize("reason", [CloseReason.CLOSED_FRAME_SIZE, CloseReason.CLOSED_SASL_FRAME_SIZE])
@pytest.mark.parametrize(
    ("sent", "guess"),
    [
        (b"\x16\x03\x01\x02", ": a TLS client on a plaintext listener?"),
        (b"GET ", ": an HTTP client?"),
        (b"abcd", ""),
    ],
)
def test_who_sends_no_frame_is_guessed(reason: CloseReason, sent: bytes, guess: str) -> None:
    (size,) = struct.unpack(">i", sent)
    _limit, _bytes, said = describe_close(reason, size).rpartition(".max.")
    assert said.partition(":")[1:] == guess.partition(":")[1:]


def test_a_poll_that_fails_is_told_and_ends_the_processor(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that the processor does not loop for ever with a turn counter that moves."""
    os.close(served.turn.poll_fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        served.processor._work(0)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("poll failed: [Errno 9] Bad file descriptor")
