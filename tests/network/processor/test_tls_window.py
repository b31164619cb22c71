"""The window of a TLS connection: requests under way beside each other, whose bytes go through OpenSSL."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import Request, SlotKind
from mpbroker.network.processor.channel import CloseReason
from mpbroker.network.processor.window_apis import IN_WINDOW
from mpbroker.protocol.api_keys import ApiKey
from tests.support.forms import rounds
from tests.support.processor_rig import answer_frame, frame
from tests.support.tls_processor_rig import SecureRig, key_changer, receive, secure_rig

PRODUCE, METADATA = ApiKey.PRODUCE, ApiKey.METADATA
WINDOW = 4
LONG_MS = 3_600_000
# More than the sockets of both ends hold.
LARGE_BYTES = 12 << 20


@pytest.fixture(name="rig")
def _rig(tmp_path: Path) -> Iterator[SecureRig]:
    with secure_rig(tmp_path, window=WINDOW) as made:
        yield made
        forget(made)


def forget(rig: SecureRig) -> None:
    """Take back what the test has not answered, as when a handler dies and has a successor."""
    rig.turn.fence_handler(0)
    rig.turn.welcome_handler(0)
    rig.step()
    rig.turn.close_idle(1 << 62)


def produces(*correlations: int, size: int = 4) -> bytes:
    return b"".join(frame(PRODUCE, 3, one, bytes(size)) for one in correlations)


def send(rig: SecureRig, data: bytes, client: ssl.SSLSocket | None = None) -> ssl.SSLSocket:
    client = client or rig.handshake()
    assert client.send(data) == len(data)
    rig.step()
    return client


def numbers(requests: list[Request]) -> list[int]:
    return [request.correlation for request in requests]


def answer(rig: SecureRig, *requests: Request, throttle_ms: int = 0) -> None:
    for request in requests:
        rig.answer(request, answer_frame(request.correlation), throttle_ms=throttle_ms)
    rig.step()


def reads_nothing(client: ssl.SSLSocket) -> None:
    with pytest.raises(ssl.SSLWantReadError):
        client.recv(1)


def test_answers_are_written_in_the_order_of_the_requests(rig: SecureRig) -> None:
    client = send(rig, produces(1, 2, 3))
    first, second, third = rig.requests_taken()
    writes = rig.counter(Counter.COUNT_WRITES)
    answer(rig, third, second)
    reads_nothing(client)
    answer(rig, first)
    assert receive(rig, client, 24) == answer_frame(1) + answer_frame(2) + answer_frame(3)
    assert rig.counter(Counter.COUNT_WRITES) == writes + 1, "one write for all that are next"
    assert rig.counter(Counter.COUNT_RESPONSES) == 3
    assert rig.in_use_bytes() == 0


def test_requests_that_come_later_enter_the_window(rig: SecureRig) -> None:
    client = send(rig, produces(1))
    send(rig, produces(2), client)
    assert numbers(rig.requests_taken()) == [1, 2]


def test_a_throttled_window_is_answered_and_reads_nothing(rig: SecureRig) -> None:
    client = send(rig, produces(1, 2))
    first, second = rig.requests_taken()
    answer(rig, first, throttle_ms=LONG_MS)
    send(rig, produces(3), client)
    answer(rig, second)
    assert receive(rig, client, 16) == answer_frame(1) + answer_frame(2)
    assert rig.requests_taken() == []


def test_a_throttle_that_ends_lets_go_what_waited(rig: SecureRig) -> None:
    client = send(rig, produces(1, 2))
    requests = rig.requests_taken()
    answer(rig, *requests, throttle_ms=20)
    send(rig, produces(3), client)
    found: list[Request] = []

    def came() -> bool:
        rig.turn.turn(30)
        rig.secure.serve()
        found.extend(rig.requests_taken())
        return bool(found)

    rig.until(came)
    assert numbers(found) == [3]


def test_a_channel_that_waits_for_memory_writes_its_answers_and_reads_on(tmp_path: Path) -> None:
    with secure_rig(tmp_path, window=WINDOW, memory_bytes=64 << 10) as rig:
        client = send(rig, produces(1))
        (first,) = rig.requests_taken()
        greedy = [send(rig, frame(METADATA, 1, 9, bytes(16_000))) for _ in range(5)]
        under_way = rig.requests_taken()
        send(rig, produces(2), client)
        assert rig.requests_taken() == [], "there is no memory"
        assert rig.counter(Counter.COUNT_MEMORY_FULL) > 0
        answer(rig, first)
        assert receive(rig, client, 8) == answer_frame(1)
        seen = []
        while under_way:
            seen += numbers(under_way)
            answer(rig, *under_way)
            under_way = rig.requests_taken()
        assert sorted(seen) == [2, *[9] * len(greedy)]
        for one in greedy:
            assert receive(rig, one, 8) == answer_frame(9)


def test_who_reads_late_gets_all_in_order_over_a_full_socket(rig: SecureRig) -> None:
    client = send(rig, produces(1, 2, 3))
    requests = rig.requests_taken()
    expected = b""
    for request in requests:
        body = bytes([request.correlation]) * LARGE_BYTES
        expected += answer_frame(request.correlation, body)
        rig.answer(request, answer_frame(request.correlation, body))
    rig.step(50)
    assert rig.counter(Counter.COUNT_RESPONSES) < len(requests), "the sockets are full"
    send(rig, produces(4), client)
    assert numbers(rig.await_requests()) == [4], "the window has room beside answers that wait"
    assert receive(rig, client, len(expected)) == expected


def test_a_request_that_closes_comes_behind_the_answers_before_it(rig: SecureRig) -> None:
    client = send(rig, produces(1, 2, 3))
    first, second, third = rig.requests_taken()
    rig.answer_kind(second, SlotKind.CLOSE)
    rig.step()
    assert rig.ends == []
    answer(rig, first)
    assert receive(rig, client, 8) == answer_frame(1)
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_BY_HANDLER]
    answer(rig, third)


def test_what_was_sent_before_the_end_is_answered(rig: SecureRig) -> None:
    with key_changer(rig) as (client, plain):
        plain.sendall(client.says(produces(1, 2)) + client.goodbye())
        plain.shutdown(socket.SHUT_WR)
        rig.step()
        first, second = rig.requests_taken()
        answer(rig, second)
        assert rig.ends == []
        answer(rig, first)
        heard = client.hears(plain.recv(1 << 20))
        assert heard == answer_frame(1) + answer_frame(2)
        rig.step()
        assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_BY_PEER]


def test_new_keys_in_the_middle_of_an_answer_harm_nothing(rig: SecureRig) -> None:
    """TLS's own answer to a change of keys goes out beside the answers of the window."""
    with key_changer(rig) as (client, plain):
        plain.sendall(client.says(produces(1, 2)))
        rig.step()
        first, second = rig.requests_taken()
        rig.answer(first, answer_frame(1, bytes(LARGE_BYTES)))
        rig.step(50)
        plain.sendall(client.changes(3, asks=True) + client.says(produces(3)))
        rig.step()
        assert numbers(rig.await_requests()) == [3]
        rig.answer(second, answer_frame(2))
        expected = answer_frame(1, bytes(LARGE_BYTES)) + answer_frame(2)
        heard = bytearray()

        def came() -> bool:
            with contextlib.suppress(BlockingIOError):
                heard.extend(client.hears(plain.recv(1 << 20)))
            return len(heard) >= len(expected)

        rig.until(came)
        assert heard == expected


def test_a_handler_that_dies_with_an_answer_that_is_half_written_closes_the_connection(
    rig: SecureRig,
) -> None:
    send(rig, produces(1, 2))
    first, _ = rig.requests_taken()
    rig.answer(first, answer_frame(1, bytes(LARGE_BYTES)))
    rig.step(50)
    rig.turn.fence_handler(0)
    rig.step()
    assert [reason for _, reason in rig.ends] == [CloseReason.CLOSED_ROLE_DIED]


APIS = st.sampled_from([PRODUCE, PRODUCE, PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.HEARTBEAT, METADATA])


@settings(deadline=None, max_examples=rounds(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(APIS, min_size=1, max_size=25), st.integers(1, 6), st.integers(0, 1 << 32))
def test_whatever_comes_each_answer_is_the_next_ones(
    tmp_path: Path, apis: list[ApiKey], window: int, seed: int
) -> None:
    """Send any requests in any records and answer in any order: the client reads answers in its own order."""
    dice = Random(seed)
    with secure_rig(tmp_path, window=window) as rig:
        client = rig.handshake()
        stream = b"".join(frame(api, 3, n, bytes(n * 997 % 30_000)) for n, api in enumerate(apis))
        under_way: list[Request] = []
        expected = b"".join(answer_frame(n, bytes(n * 31)) for n in range(len(apis)))
        heard = bytearray()
        answered = 0
        while answered < len(apis) or len(heard) < len(expected):
            if size := dice.randint(0, min(len(stream), 40_000)):
                stream = stream[client.send(stream[:size]) :]
            rig.step()
            under_way += rig.requests_taken()
            if any(apis[one.correlation] not in IN_WINDOW for one in under_way):
                assert len(under_way) == 1, "it has the connection for itself"
            assert len(under_way) <= window
            if under_way and dice.random() < 0.7:
                request = under_way.pop(dice.randrange(len(under_way)))
                rig.answer(request, answer_frame(request.correlation, bytes(request.correlation * 31)))
                answered += 1
            with contextlib.suppress(ssl.SSLWantReadError):
                heard += client.recv(65536)
        assert heard == expected
