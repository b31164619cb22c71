"""Throttled connections: the answer goes out at once, the client's next request waits for the time to end."""

from __future__ import annotations

import time

import pytest

from mpbroker.ipc.slots import Request, SlotKind
from mpbroker.network.processor import mute
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.mute import MuteEvent, MuteState
from tests.support.polling import PATIENCE_S, until
from tests.support.processor_rig import PROCESSOR, MakeRig, Rig, answer_frame, frame, is_closed, receive

METADATA = 3
LONG_MS = 60_000
# A sleep that does not end by itself outlasts the test.
NO_END_MS = 3_600_000


def next_request(rig: Rig, sleep_ms: int = 300) -> Request:
    rig.turn.turn(sleep_ms)
    return until(rig.requests_taken, "a request", lambda: rig.turn.turn(sleep_ms))[0]


@pytest.mark.parametrize("kind", [SlotKind.SEND, SlotKind.NOOP])
def test_the_answer_goes_at_once_and_the_next_request_after_the_throttle(rig: Rig, kind: SlotKind) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1) + frame(METADATA, 1, 2))
    began_ns = time.monotonic_ns()
    if kind == SlotKind.SEND:
        rig.answer(request, answer_frame(1), throttle_ms=80, done_ns=began_ns)
        rig.step()
        assert receive(client, 8) == answer_frame(1)
    else:
        rig.answer_kind(request, kind, throttle_ms=80)
        rig.step()
    # Nobody rings: the sleep itself ends when the throttle does.
    assert next_request(rig, NO_END_MS).correlation == 2
    assert time.monotonic_ns() - began_ns >= 80_000_000


def test_the_time_counts_from_the_handlers_answer(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1) + frame(METADATA, 1, 2))
    an_hour_ago = time.monotonic_ns() - 3_600_000_000_000
    rig.answer(request, answer_frame(1), throttle_ms=LONG_MS, done_ns=max(1, an_hour_ago))
    rig.step()
    assert [r.correlation for r in rig.requests_taken()] == [2]


def test_what_comes_during_the_throttle_waits_in_the_socket(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1))
    began_ns = time.monotonic_ns()
    rig.answer(request, answer_frame(1), throttle_ms=40, done_ns=began_ns)
    rig.step()
    client.sendall(frame(METADATA, 1, 2))
    rig.step()
    assert next_request(rig).correlation == 2
    assert time.monotonic_ns() - began_ns >= 40_000_000


def test_a_timer_that_ends_before_the_answer_is_written(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1) + frame(METADATA, 1, 2))
    payload = answer_frame(1, bytes(24 << 20))
    rig.answer(request, payload, throttle_ms=1)
    until = time.monotonic_ns() + 5_000_000
    while time.monotonic_ns() < until:
        rig.turn.turn(1)
    assert rig.requests_taken() == []
    got = 0
    client.setblocking(False)
    while got < len(payload):
        rig.turn.turn(0)
        try:
            got += len(client.recv(1 << 20))
        except BlockingIOError:
            continue
    rig.step()
    assert [r.correlation for r in rig.requests_taken()] == [2]


def test_many_throttles_end_in_the_order_of_their_times(make_rig: MakeRig) -> None:
    rig = make_rig(places=64)
    clients = [rig.connect() for _ in range(40)]
    for i, client in enumerate(clients):
        client.sendall(frame(METADATA, 1, i) + frame(METADATA, 1, i))
    rig.step()
    now_ns = time.monotonic_ns()
    times = {}
    for request in rig.requests_taken():
        times[request.correlation] = 20 + (request.correlation * 7) % 40 * 2
        rig.answer(request, answer_frame(0), throttle_ms=times[request.correlation], done_ns=now_ns)
    rig.step()
    gone = {3, 17, 21}
    for i in gone:
        clients[i].close()
    seen: list[int] = []
    ends = time.monotonic() + PATIENCE_S
    while len(seen) < 40 - len(gone) and time.monotonic() < ends:
        rig.turn.turn(300)
        seen += [request.correlation for request in rig.requests_taken() if request.correlation not in gone]
    assert seen == sorted((i for i in range(40) if i not in gone), key=times.__getitem__)


def test_a_connection_that_closes_while_throttled_leaves_nothing(rig: Rig) -> None:
    for _ in range(200):
        client = rig.connect()
        request = rig.ask(client, frame(METADATA, 1, 1) + frame(METADATA, 1, 2))
        rig.answer(request, answer_frame(1), throttle_ms=LONG_MS)
        rig.step()
        assert receive(client, 8) == answer_frame(1)
        rig.turn.close_idle(1 << 62)
        rig.step()
        assert rig.reasons() == [CloseReason.CLOSED_IDLE]
        assert is_closed(client)
        client.close()
        rig.clients.remove(client)
    assert rig.in_use_bytes() == 0
    # No timer of the dead is left: another connection in the place is not touched.
    client = rig.connect()
    client.sendall(frame(METADATA, 1, 9))
    assert next_request(rig, 0).correlation == 9


def test_a_second_answer_to_one_request_is_dropped(rig: Rig) -> None:
    """Check that its throttle is dropped, too."""
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1))
    rig.answer(request, answer_frame(1), throttle_ms=LONG_MS)
    rig.answer(request, answer_frame(1), throttle_ms=LONG_MS)
    rig.step()
    assert receive(client, 8) == answer_frame(1)
    # Its block came back, nothing else happened.
    assert not is_closed(client)
    assert len(rig.arenas[0].lent_to(PROCESSOR)) == 2
    for returned in rig.taken():
        assert rig.arenas[0].take_back(returned.block, returned.generation)
    assert rig.arenas[0].lent_to(PROCESSOR) == []


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (MuteState.NOT_MUTED, MuteEvent.MUTE),
        (MuteState.MUTED, MuteEvent.REQUEST_RECEIVED),
        (MuteState.RESPONSE_PENDING, MuteEvent.THROTTLE_STARTED),
        (MuteState.THROTTLED_AND_PENDING, MuteEvent.RESPONSE_SENT),
        (MuteState.THROTTLED, MuteEvent.THROTTLE_ENDED),
        (MuteState.THROTTLED, MuteEvent.UNMUTE),
        (MuteState.MUTED, MuteEvent.UNMUTE),
    ],
)
def test_an_event_that_cannot_come_closes_the_connection(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, state: MuteState, event: MuteEvent
) -> None:
    """Make each step of a turn impossible by itself, since a turn makes no impossible order of events."""
    row = list(mute.TABLE[state])
    row[event] = None
    monkeypatch.setitem(mute.TABLE, state, tuple(row))
    rig = make_rig()
    client, other = rig.connect(), rig.connect()
    monkeypatch.undo()
    client.sendall(frame(METADATA, 1, 1))
    rig.step()
    for request in rig.requests_taken():
        rig.answer(request, answer_frame(1), throttle_ms=1)
    until = time.monotonic() + PATIENCE_S
    while not (closed := rig.turn.closed()) and time.monotonic() < until:
        rig.turn.turn(5)
    assert [reason for _, reason, _ in closed] == [CloseReason.CLOSED_ILLEGAL_STATE]
    rig.step()
    assert rig.in_use_bytes() == 0
    for returned in rig.taken():
        assert rig.arenas[0].take_back(returned.block, returned.generation)
    assert rig.arenas[0].lent_to(PROCESSOR) == []
    assert not is_closed(other)


def test_a_close_is_not_delayed_by_a_throttle(rig: Rig) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1))
    rig.answer_kind(request, SlotKind.CLOSE, throttle_ms=LONG_MS)
    rig.step()
    assert is_closed(client)
