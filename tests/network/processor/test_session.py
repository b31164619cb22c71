"""What a connection's session says by the time its request is with a handler."""

from __future__ import annotations

import pytest

from mpbroker.ipc.session import SessionGone
from mpbroker.ipc.slots import SlotKind
from mpbroker.network.processor.channel import CloseReason
from tests.support.processor_rig import PROCESSOR, MakeRig, Rig, answer_frame, frame, receive

API_VERSIONS, METADATA = 18, 3


def compact(text: bytes) -> bytes:
    length = len(text) + 1
    return (bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])) + text


def software(version: int, name: bytes, number: bytes) -> bytes:
    return frame(API_VERSIONS, version, 1, compact(name) + compact(number) + b"\0", tags=b"\0")


@pytest.mark.parametrize(
    ("sent", "name", "version"),
    [
        (software(3, b"apache-kafka-java", b"4.1.0"), "apache-kafka-java", "4.1.0"),
        (software(4, b"a", b"1"), "a", "1"),
        (software(3, b"x" * 100, b"1.2.3"), "x" * 63, "1.2.3"),
        (software(3, b"-java", b"4.1.0"), "unknown", "unknown"),
        (software(3, b"java", b"4.1.0."), "unknown", "unknown"),
        (software(3, b"ja va", b"1"), "unknown", "unknown"),
        (software(3, b"", b"1"), "unknown", "unknown"),
        (software(127, b"java", b"1"), "unknown", "unknown"),
        (frame(API_VERSIONS, 2, 1), "unknown", "unknown"),
        (frame(API_VERSIONS, 3, 1, b"\x40ab", tags=b"\0"), "unknown", "unknown"),
        (frame(API_VERSIONS, 3, 1, b"\x02a\xff\xff\xff\xff\x0f", tags=b"\0"), "unknown", "unknown"),
        (frame(API_VERSIONS, 3, 1, b"", tags=b"\0"), "unknown", "unknown"),
    ],
)
def test_api_versions_names_the_client_before_it_is_queued(
    rig: Rig, sent: bytes, name: str, version: str
) -> None:
    client = rig.connect()
    request = rig.ask(client, sent)
    session = rig.memory.sessions(PROCESSOR).of(request.channel, request.connection)
    assert (session.client_software_name, session.client_software_version) == (name, version)


def test_a_session_stays_while_a_request_of_it_is_held(rig: Rig) -> None:
    client = rig.connect()
    port = client.getsockname()[1]
    request = rig.ask(client, frame(METADATA, 1, 1))
    rig.turn.close_idle(1 << 62)
    ((session, reason, _),) = rig.turn.closed()
    assert (session.client_port, reason) == (port, CloseReason.CLOSED_IDLE)
    for _ in range(20):
        rig.connect()
    held = rig.memory.sessions(PROCESSOR).of(request.channel, request.connection)
    assert held.connection_id == session.connection_id
    rig.answer_kind(request, SlotKind.NOOP)
    rig.step()
    rig.connect()
    with pytest.raises(SessionGone):
        rig.memory.sessions(PROCESSOR).of(request.channel, request.connection)


def test_the_place_of_a_closed_connection_waits_until_its_end_was_told(make_rig: MakeRig) -> None:
    rig = make_rig(places=2)
    first = rig.connect()
    port = first.getsockname()[1]
    rig.connect()
    first.close()
    rig.step()
    extra, _ = rig.pair()
    assert rig.turn.add_connection(extra.fileno(), 0) is None
    ((session, _, _),) = rig.turn.closed()
    assert session.client_port == port
    assert rig.turn.add_connection(extra.detach(), 0) is not None


def test_a_principal_is_set_between_requests_only(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1))
    with pytest.raises(RuntimeError, match="under way"):
        rig.turn.set_session(request.channel, request.connection, principal="User:a")
    rig.answer(request, answer_frame(1))
    rig.step()
    receive(client, 8)
    rig.turn.set_session(request.channel, request.connection, principal="User:a")
    assert rig.turn.sessions.of(request.channel, request.connection).principal == "User:a"
