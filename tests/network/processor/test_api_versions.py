"""ApiVersions answered by the processor's turn, and what it leaves to a handler."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.apis import served
from mpbroker.ipc.counters import Counter
from mpbroker.network.processor.processor import api_versions_bodies
from mpbroker.protocol import api_versions
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_response
from mpbroker.protocol.errors import ErrorCode
from tests.support.processor_rig import Rig, answer_frame, frame, is_closed, receive

VERSIONS = range(api_versions.OLDEST, api_versions.LATEST + 1)
METADATA = 3


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    rig.turn.answer_api_versions(api_versions_bodies(served(BrokerConfig())))
    yield rig
    rig.close()


def request(version: int, correlation: int, *, name: bytes = b"java", client: bytes = b"test") -> bytes:
    if version < api_versions.FIRST_VERSION_WITH_SOFTWARE:
        return frame(ApiKey.API_VERSIONS, version, correlation, client=client)
    body = bytes([len(name) + 1]) + name + b"\x041.0" + b"\0"
    return frame(ApiKey.API_VERSIONS, version, correlation, body, client=client, tags=b"\0")


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_is_answered_without_a_handler(rig: Rig, version: int) -> None:
    client = rig.connect()
    client.sendall(request(version, 77))
    rig.step()
    (size,) = struct.unpack(">i", receive(client, 4))
    answer = receive(client, size)
    assert struct.unpack(">i", answer[:4]) == (77,)
    told, end = decode_response(ApiKey.API_VERSIONS, version, answer[4:])
    assert end == len(answer) - 4
    assert told.error_code == ErrorCode.NONE  # type: ignore[attr-defined]
    assert {one.api_key for one in told.api_keys} == {one.api_key for one in served(BrokerConfig())}  # type: ignore[attr-defined]
    assert rig.requests_taken() == []
    assert rig.in_use_bytes() == 0


def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    """Send more of them than a turn's share, with one for a handler in between."""
    client = rig.connect()
    body = api_versions_bodies(served(BrokerConfig()))[0]
    client.sendall(b"".join(request(0, n) for n in range(50)) + frame(METADATA, 1, 50) + request(0, 51))
    rig.step(60)
    for correlation in range(50):
        expected = answer_frame(correlation, body)
        assert receive(client, len(expected)) == expected
    (asked,) = rig.requests_taken()
    rig.step()
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    client.settimeout(10)
    rig.answer(asked, answer_frame(50))
    rig.step(3)
    expected = answer_frame(50) + answer_frame(51, body)
    assert receive(client, len(expected)) == expected
    assert not is_closed(client)


@pytest.mark.parametrize(
    "sent",
    [
        request(5, 1),
        request(100, 1),
        request(3, 1, name=b"-java"),
        request(3, 1, name=b""),
        frame(ApiKey.API_VERSIONS, 0, 1, b"\0"),
        frame(ApiKey.API_VERSIONS, 3, 1, b"\x02a\x021\0\0", tags=b"\0"),
        frame(ApiKey.API_VERSIONS, 3, 1, b"\x02a\x021\x01\x00\x00", tags=b"\0"),
        frame(ApiKey.API_VERSIONS, 3, 1, b"\x02a\x021", tags=b"\0"),
        frame(ApiKey.API_VERSIONS, 4, 1, b"\x40ab", tags=b"\0"),
    ],
    ids=["next version", "far version", "bad name", "no name", "bytes behind", "behind tags", "tags",
         "no tags", "short"],
)  # fmt: skip
def test_what_is_uncommon_is_for_a_handler(rig: Rig, sent: bytes) -> None:
    client = rig.connect()
    asked = rig.ask(client, sent)
    assert asked.api_key == ApiKey.API_VERSIONS
    assert rig.bytes_of(asked) == sent


def test_a_block_without_room_for_the_answer_is_for_a_handler(rig: Rig) -> None:
    client = rig.connect()
    rig.turn.answer_api_versions([bytes(2000)])
    client.sendall(request(0, 1))
    rig.step()
    assert len(rig.requests_taken()) == 1


@pytest.mark.parametrize(("word", "value"), [("request_log", 10), ("request_log", 5), ("request_quotas", 1)])
def test_the_request_log_and_quotas_on_time_need_a_handler(rig: Rig, word: str, value: int) -> None:
    client = rig.connect()
    rig.memory.words(word).store(0, value)
    asked = rig.ask(client, request(0, 1))
    rig.finish(client, asked)
    rig.memory.words(word).store(0, 0)
    client.sendall(request(0, 2))
    rig.step()
    assert rig.requests_taken() == []
    assert receive(client, 8)[4:] == struct.pack(">i", 2)


def test_it_counts_like_any_other_request(rig: Rig) -> None:
    client = rig.connect()
    for n in range(3):
        client.sendall(request(3, n))
        rig.step()
    assert (rig.counter(Counter.COUNT_REQUESTS), rig.counter(Counter.COUNT_RESPONSES)) == (3, 3)
    assert rig.counter(Counter.COUNT_QUEUED_REQUESTS) == 0
    assert rig.counter(Counter.COUNT_RESPONSE_BYTES_MAX) == 8 + len(
        api_versions_bodies(served(BrokerConfig()))[3]
    )
