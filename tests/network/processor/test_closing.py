"""Connections that close when the broker leads no longer: no answer that was decided before leaves late."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.leading import ALWAYS, NEVER
from mpbroker.ipc.slots import Request, SlotKind
from mpbroker.ipc.topology import SharedMemory
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.processor import connection_prefix, first_flexible_versions
from mpbroker.network.processor.turn import ProcessorTurn
from shm.clock import boot_ns
from tests.support.processor_rig import Rig, answer_frame, frame, is_closed, parts_answer, receive
from tests.support.tls_processor_rig import secure_rig

PRODUCE, FETCH, METADATA = 0, 1, 3
HOUR_NS = 3600 * 1_000_000_000


def end_lease(rig: Rig) -> None:
    rig.memory.leading().until_ns = boot_ns()


@pytest.mark.parametrize("until_ns", [ALWAYS, boot_ns() + HOUR_NS], ids=["always", "for an hour"])
def test_connections_stay_while_the_broker_leads(rig: Rig, until_ns: int) -> None:
    rig.memory.leading().until_ns = until_ns
    client = rig.connect()
    rig.finish(client, rig.ask(client, frame(METADATA, 4, 1)))
    assert rig.reasons() == []


@pytest.mark.parametrize(
    "answer",
    [
        lambda rig, request: rig.answer(request, answer_frame(1, b"decided in time")),
        lambda rig, request: rig.answer_in_place(request, answer_frame(1, b"decided in time")),
    ],
    ids=["a handler's", "a log worker's"],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_an_answer_that_was_not_sent_is_dropped(
    rig: Rig, answer: Callable[[Rig, Request], object], is_late: bool
) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(PRODUCE, 3, 1))
    if not is_late:
        answer(rig, request)
    end_lease(rig)
    rig.step()
    if is_late:
        answer(rig, request)
        rig.step()
    assert is_closed(client)
    assert rig.reasons() == [CloseReason.CLOSED_LEASE]
    assert rig.in_use_bytes() == 0


def test_a_half_sent_answer_ends_and_its_block_goes_back(rig: Rig, segment: Path) -> None:
    half, opening = rig.connect(), rig.connect()
    block = rig.answer(rig.ask(half, frame(METADATA, 4, 1)), answer_frame(1, bytes(64 << 20)))
    parts_answer(rig, rig.ask(opening, frame(FETCH, 4, 2)), b"HEAD", segment, [(0, 100)])
    rig.step()
    end_lease(rig)
    rig.step()
    assert rig.turn.open_connections() == 0
    assert is_closed(opening)
    returned = [one.block for one in rig.taken() if one.kind == SlotKind.RETURN]
    assert len(returned) == 2
    assert block in returned
    with pytest.raises((EOFError, ConnectionResetError)):
        receive(half, 64 << 20)


def test_of_an_encrypted_answer_nothing_more_is_sent(tmp_path: Path) -> None:
    def drained() -> int:
        read = 0
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLEOFError):
            while more := len(client.recv(1 << 16)):
                read += more
        return read

    with secure_rig(tmp_path) as rig:
        client = rig.handshake()
        client.sendall(frame(METADATA, 4, 1))
        rig.step()
        rig.answer(*rig.requests_taken(), answer_frame(1, bytes(64 << 20)))
        (peer,) = rig.secure.channels.peers.values()
        rig.until(lambda: peer.pipe is not None and peer.pipe.carries_answer)
        assert drained() < 64 << 20
        end_lease(rig)
        rig.step()
        assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_LEASE]
        assert drained() == 0


def test_parked_requests_are_cancelled(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(FETCH, 4, 1))
    rig.answer_kind(request, SlotKind.PARKED)
    rig.step()
    end_lease(rig)
    rig.step()
    assert [(one.kind, one.connection) for one in rig.taken()] == [(SlotKind.CANCEL, request.connection)]
    assert is_closed(client)
    rig.answer_kind(request, SlotKind.NOOP)
    assert rig.in_use_bytes() == 0


@pytest.mark.parametrize("ended_ns", [NEVER, boot_ns()], ids=["never", "no longer"])
def test_connections_opened_later_are_served_until_the_next_lease_has_ended(rig: Rig, ended_ns: int) -> None:
    leading = rig.memory.leading()
    for _ in range(3):
        leading.until_ns = ended_ns
        rig.step()
        client = rig.connect()
        rig.finish(client, rig.ask(client, frame(METADATA, 4, 1)))
        leading.until_ns = boot_ns() + HOUR_NS
        rig.step()
        rig.finish(client, rig.ask(client, frame(METADATA, 4, 1)))
        leading.until_ns = ended_ns
        rig.step()
        assert is_closed(client)
        assert rig.reasons() == [CloseReason.CLOSED_LEASE]


def test_a_lease_that_came_and_went_between_two_turns_has_ended_too(rig: Rig) -> None:
    end_lease(rig)
    rig.step()
    client = rig.connect()
    request = rig.ask(client, frame(PRODUCE, 3, 1))
    # A handler sees the lease and answers, and this process sleeps until it has ended.
    rig.answer(request, answer_frame(1))
    end_lease(rig)
    rig.step()
    assert is_closed(client)


def test_the_control_plane_stays(memory: SharedMemory) -> None:
    index = topology.CONTROL_PROCESSOR
    inbox, acceptor = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    served, client = socket.socketpair()
    turn = ProcessorTurn(
        memory, index, inbox.fileno(), first_flexible_versions(), 8, 1 << 20, 20, connection_prefix(index, 1)
    )
    with inbox, acceptor, client:
        assert turn.add_connection(served.detach(), 0)
        memory.leading().until_ns = NEVER
        turn.turn(0)
        assert turn.open_connections() == 1
        assert not is_closed(client)
        turn.close_idle(1 << 62)
