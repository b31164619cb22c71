"""Heartbeats that bring no news wait for company; they hold up no other request, and nothing loses them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import SlotKind
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import encode_bytes
from mpbroker.protocol.headers import RequestHeader, encode_request_frame
from mpbroker.protocol.messages import ConsumerGroupHeartbeatRequest, HeartbeatRequest, Message
from tests.support.forms import rounds
from tests.support.processor_rig import MakeRig, Rig, frame, is_closed
from tests.support.tls_processor_rig import secure_rig

HOUR_MS = 3_600_000
FOREVER_NS = 24 * HOUR_MS * 1_000_000
# queue.pxd
COMPANY_MAX = 64
RIG = {"patience_ns": FOREVER_NS, "window": 4, "queued_max": 1}
TOPIC_PARTITIONS = ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=bytes(16), partitions=[0])


def encoded(key: ApiKey, version: int, body: Message, correlation: int) -> bytes:
    return encode_bytes(encode_request_frame(RequestHeader(key, version, correlation, "client"), body))


def classic(correlation: int = 1, version: int = 4) -> bytes:
    body = HeartbeatRequest(group_id="group", generation_id=3, member_id="member")
    return encoded(ApiKey.HEARTBEAT, version, body, correlation)


def quiet(**changed: object) -> ConsumerGroupHeartbeatRequest:
    fields = {"group_id": "group", "member_id": "member", "member_epoch": 3, "topic_partitions": None}
    return ConsumerGroupHeartbeatRequest(**(fields | changed))  # type: ignore[arg-type]


def consumer(correlation: int = 1, version: int = 1, **changed: object) -> bytes:
    return encoded(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, quiet(**changed), correlation)


def other(correlation: int) -> bytes:
    return frame(ApiKey.METADATA, 1, correlation)


def send(rig: Rig, data: bytes, client: socket.socket | None = None) -> socket.socket:
    client = client or rig.connect()
    client.sendall(data)
    rig.step()
    return client


def taken(rig: Rig) -> list[int]:
    return [request.correlation for request in rig.requests_taken()]


@pytest.mark.parametrize("version", range(5))
def test_a_classic_heartbeat_waits(rig: Rig, version: int) -> None:
    send(rig, classic(1, version))
    assert taken(rig) == []
    send(rig, other(2))
    assert taken(rig) == [1, 2]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("changed", "waits"),
    [
        ({}, True),
        ({"instance_id": "static", "rack_id": "a"}, True),
        ({"member_epoch": 0}, False),
        ({"member_epoch": -1}, False),
        ({"member_epoch": -2, "instance_id": "static"}, False),
        ({"subscribed_topic_names": ["topic"]}, False),
        ({"server_assignor": "range"}, False),
        ({"topic_partitions": []}, False),
        ({"topic_partitions": [TOPIC_PARTITIONS]}, False),
        ({"rack_id": "r" * 1024}, False),
    ],
)
def test_a_heartbeat_of_the_consumer_protocol_waits_unless_it_brings_news(
    rig: Rig, version: int, changed: dict[str, object], waits: bool
) -> None:
    send(rig, consumer(1, version, **changed))
    assert taken(rig) == ([] if waits else [1])


NAMES = st.none() | st.sampled_from(["", "name", "n" * 127, "n" * 128])


@settings(deadline=None, max_examples=rounds(50))
@given(
    st.builds(
        quiet,
        group_id=st.sampled_from(["", "g", "g" * 200]),
        member_epoch=st.sampled_from([-2, -1, 0, 1, 255, 256, (1 << 31) - 1]),
        instance_id=NAMES,
        rack_id=NAMES,
        rebalance_timeout_ms=st.sampled_from([-1, 0, 300_000]),
        subscribed_topic_names=st.sampled_from([None, None, None, [], ["topic"]]),
        server_assignor=st.sampled_from([None, None, None, "", "uniform"]),
        topic_partitions=st.sampled_from([None, None, None, [], [TOPIC_PARTITIONS]]),
    ),
    st.integers(0, 1 << 16),
)
def test_the_fields_are_found_whatever_they_are(body: ConsumerGroupHeartbeatRequest, cut: int) -> None:
    """Check it against the decoded request. One that is cut short may be anything, but is read in bounds."""
    whole = encoded(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body, 1)
    news = (body.subscribed_topic_names, body.server_assignor, body.topic_partitions)
    waits = body.member_epoch > 0 and news == (None, None, None)
    rig = Rig(patience_ns=FOREVER_NS)
    try:
        send(rig, whole)
        assert taken(rig) == ([] if waits else [1])
        short = whole[4 : -(cut % (len(whole) - 24)) or None]
        send(rig, len(short).to_bytes(4) + short)
        send(rig, other(3))
        assert taken(rig)[-1] == 3
    finally:
        rig.close()


def test_patience_ends(make_rig: MakeRig) -> None:
    """Check that turns that may sleep for an hour sleep only until then."""
    rig = make_rig(patience_ns=1_000_000)
    send(rig, consumer(1))
    # It may have gone already, if this machine was slow.
    found = taken(rig)
    if not found:
        rig.turn.turn(HOUR_MS)
        found = taken(rig)
    assert found == [1]


def test_enough_of_them_are_company(make_rig: MakeRig) -> None:
    rig = make_rig(patience_ns=FOREVER_NS, places=COMPANY_MAX)
    for number in range(COMPANY_MAX):
        assert taken(rig) == []
        send(rig, classic(number))
    assert taken(rig) == [*range(COMPANY_MAX)]


def test_they_do_not_count_as_queued(rig: Rig) -> None:
    """Check it with room for one request, which another connection needs."""
    for number in range(3):
        send(rig, consumer(number))
    assert rig.counter(Counter.COUNT_QUEUED_REQUESTS) == 0
    send(rig, other(3))
    assert taken(rig) == [0, 1, 2, 3]


@pytest.mark.parametrize("heartbeat", [classic(1), consumer(1)], ids=["classic", "consumer"])
def test_what_was_sent_with_it_does_not_wait(rig: Rig, heartbeat: bytes) -> None:
    client = send(rig, heartbeat + other(2))
    (request,) = rig.requests_taken()
    assert request.correlation == 1
    rig.finish(client, request)
    assert taken(rig) == [2]


@pytest.mark.parametrize("heartbeat", [classic(1), consumer(1)], ids=["classic", "consumer"])
def test_what_follows_on_the_connection_does_not_wait(rig: Rig, heartbeat: bytes) -> None:
    client = send(rig, heartbeat)
    assert taken(rig) == []
    send(rig, other(2), client)
    (request,) = rig.requests_taken()
    assert request.correlation == 1
    rig.finish(client, request)
    assert taken(rig) == [2]


def test_one_behind_requests_of_its_window_goes_with_them(rig: Rig) -> None:
    client = send(rig, frame(ApiKey.PRODUCE, 3, 1, b"body"))
    assert taken(rig) == [1]
    send(rig, classic(2), client)
    assert taken(rig) == [2]


def test_one_whose_client_leaves_is_served_as_any_request(rig: Rig) -> None:
    clients = [send(rig, classic(1)), send(rig, consumer(2))]
    for client in clients:
        client.close()
    rig.step()
    requests = rig.requests_taken()
    assert [request.correlation for request in requests] == [1, 2]
    for request in requests:
        rig.answer_kind(request, SlotKind.NOOP)
    rig.step()
    assert (rig.turn.connections, rig.in_use_bytes()) == (0, 0)


def test_one_whose_connection_is_closed_goes_nowhere(rig: Rig) -> None:
    for heartbeat in (classic(1), consumer(2)):
        send(rig, heartbeat)
    rig.turn.close_idle(1 << 62)
    client = send(rig, other(3))
    (request,) = rig.requests_taken()
    assert request.correlation == 3
    rig.finish(client, request)
    assert rig.in_use_bytes() == 0


def test_a_handler_that_dies_takes_none_along(rig: Rig) -> None:
    clients = [send(rig, classic(1)), send(rig, consumer(2))]
    rig.turn.fence_handler(0)
    rig.step()
    rig.turn.welcome_handler(0)
    send(rig, other(3))
    requests = rig.requests_taken()
    assert [request.correlation for request in requests] == [1, 2, 3]
    for client, request in zip(clients, requests, strict=False):
        rig.finish(client, request)


def test_a_processor_that_stops_answers_them(make_rig: MakeRig) -> None:
    rig = make_rig(patience_ns=1_000_000)
    client = send(rig, consumer(1))
    rig.turn.stop_reading()
    (request,) = rig.requests_taken() or rig.await_requests()
    rig.finish(client, request)
    rig.turn.stop_reading()
    assert is_closed(client)


def test_one_of_a_tls_client_waits_as_well(tmp_path: Path) -> None:
    with secure_rig(tmp_path, patience_ns=FOREVER_NS, window=4) as rig:
        clients = [rig.handshake() for _ in range(4)]
        for client, data in zip(clients, [classic(1), consumer(2), consumer(3)], strict=False):
            send(rig, data, client)
        assert taken(rig) == []
        # What one of them has sent as well would wait for its answer.
        send(rig, other(4), clients[1])
        for request in rig.requests_taken():
            rig.answer_kind(request, SlotKind.NOOP)
        rig.step()
        (request,) = rig.requests_taken()
        assert request.correlation == 4
        rig.answer_kind(request, SlotKind.NOOP)
        rig.step()


def test_what_a_tls_client_sent_with_it_does_not_wait(tmp_path: Path) -> None:
    with secure_rig(tmp_path, patience_ns=FOREVER_NS, window=4) as rig:
        send(rig, consumer(1) + other(2), rig.handshake())
        for expected in (1, 2):
            (request,) = rig.requests_taken()
            assert request.correlation == expected
            rig.answer_kind(request, SlotKind.NOOP)
            rig.step()
