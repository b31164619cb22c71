"""What clients of one connection each can make a broker keep, do, log and answer has bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mpbroker.handlers.requests.limits import RESPONSE_BYTES_MAX
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    Message,
    MetadataRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from ops.bench.brokers import Mpbroker
from tests.chaos.leaks import held
from tests.support import attacks
from tests.support.attacks import MEGABYTE, PARTITIONS, Protocol, commit_of_all, join
from tests.support.client_tools import eventually
from tests.support.metered_client import Meter
from tests.support.real_brokers import create_topic, served, with_settings
from tests.support.socket_client import SocketClient, own_bytes, pids_of

# Of an offset; the most that may be committed.
METADATA_BYTES = 4096

Group = OffsetFetchRequest.OffsetFetchRequestGroup


@pytest.fixture(name="shared", scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    made = Mpbroker(tmp_path_factory.mktemp("broker"))
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with served(with_settings(made, settings)) as broker:
        create_topic(broker.bootstrap, "t", PARTITIONS)
        yield broker


def test_large_joins_leave_nothing_behind(shared: Mpbroker) -> None:
    """Check what took a handler to 2.3 GB: joins of 40 MB, each answered at once."""
    processes = [*pids_of(shared, "handler "), *pids_of(shared, "coordinator")]
    before = sum(map(own_bytes, processes))
    with SocketClient(shared) as client:
        for _ in range(5):
            answer = client.ask(ApiKey.JOIN_GROUP, 9, attacks.LARGE_JOIN)
            assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert sum(map(own_bytes, processes)) - before < 40 * MEGABYTE


def test_a_large_assignment_is_refused(shared: Mpbroker) -> None:
    assignment = SyncGroupRequest.SyncGroupRequestAssignment("m", bytes(2 * MEGABYTE))
    request = SyncGroupRequest("g", 1, "m", assignments=[assignment], protocol_type="c", protocol_name="r")
    with SocketClient(shared) as client:
        assert client.ask(ApiKey.SYNC_GROUP, 5, request).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_join_that_waits_keeps_no_block(shared: Mpbroker) -> None:
    """Check that nobody holds the bytes of joins that wait for a member that does not come back."""
    size = MEGABYTE // 2
    large = Protocol("range", bytes(size))
    with SocketClient(shared) as first, SocketClient(shared) as second, SocketClient(shared) as third:
        member = first.ask(ApiKey.JOIN_GROUP, 3, join(Protocol("range", b""), group="waited"))
        assert member.error_code == 0
        for client in (second, third):
            client.send(ApiKey.JOIN_GROUP, 3, join(large, group="waited"))
        waiting = (
            "kafka.server:type=DelayedOperationPurgatory,name=NumDelayedOperations,delayedOperation=topic"
        )
        meter = Meter(shared)
        eventually(lambda: meter.get(waiting, "Value") == 2, "both wait")

        def bytes_held() -> int:
            return sum(count for what, count in held(shared).items() if what.endswith(": bytes"))

        eventually(lambda: bytes_held() < size, "their bytes are with the group alone")
        assert meter.get(waiting, "Value") == 2
        leave = LeaveGroupRequest("waited", member.member_id)
        assert first.ask(ApiKey.LEAVE_GROUP, 0, leave).error_code == 0
        answers = [decode_response_frame(ApiKey.JOIN_GROUP, 3, c.receive())[1] for c in (second, third)]
        assert {one.error_code for one in answers} == {0}
        for one in answers:
            leave = LeaveGroupRequest("waited", one.member_id)
            assert first.ask(ApiKey.LEAVE_GROUP, 0, leave).error_code == 0


def test_a_group_is_answered_once_however_often_it_is_named(shared: Mpbroker) -> None:
    topics = [OffsetFetchRequest.OffsetFetchRequestTopics("t", partition_indexes=[*range(PARTITIONS)])]
    with SocketClient(shared) as client:
        commit_of_all(client, "named")
        client.send(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=[Group("named", topics=None)]))
        once = client.receive()
        for groups in (
            [Group("named", topics=None)] * 400,
            [Group("named", topics=topics), Group("named", topics=None), Group("named", topics=[])],
        ):
            client.send(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))
            assert client.receive() == once


def test_an_answer_has_a_bound(shared: Mpbroker) -> None:
    """Check that a short request cannot have a handler build an answer of any length."""
    groups = [f"long.{number}" for number in range(RESPONSE_BYTES_MAX // (PARTITIONS * METADATA_BYTES) + 1)]
    asked = OffsetFetchRequest(groups=[Group(name, topics=None) for name in groups])
    with SocketClient(shared) as client:
        for name in groups:
            commit_of_all(client, name, "m" * METADATA_BYTES)
        answer = client.ask(ApiKey.OFFSET_FETCH, 8, asked)
        assert {(len(one.topics), one.error_code) for one in answer.groups} == {
            (0, ErrorCode.INVALID_REQUEST)
        }
        asked.groups.pop()
        answer = client.ask(ApiKey.OFFSET_FETCH, 8, asked)
        assert {(len(one.topics), one.error_code) for one in answer.groups} == {(1, 0)}


def test_a_coordinator_is_found_once_for_each_key(shared: Mpbroker) -> None:
    with SocketClient(shared) as client:
        request = FindCoordinatorRequest(coordinator_keys=["g", "h"] * 20_000)
        client.send(ApiKey.FIND_COORDINATOR, 6, request)
        assert len(client.receive()) < 200


@pytest.mark.parametrize(("key", "version", "make"), attacks.NAMING)
def test_a_request_that_names_too_much_closes_its_connection(
    shared: Mpbroker, key: ApiKey, version: int, make: Callable[[int], Message]
) -> None:
    """Check it with so much of each that it is refused by its bytes: none of it is decoded."""
    before = [own_bytes(pid) for pid in pids_of(shared, "handler ")]
    with SocketClient(shared) as client:
        assert client.is_closed_by(key, version, make(200_000))
    grown = [own_bytes(pid) - size for pid, size in zip(pids_of(shared, "handler "), before, strict=True)]
    assert max(grown) < 4 * MEGABYTE
    with SocketClient(shared) as client:
        assert client.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m")).error_code


def test_a_long_request_is_served_in_pieces(shared: Mpbroker) -> None:
    """Check a request that is decoded in pieces: what it names is answered all the same."""
    names = [MetadataRequest.MetadataRequestTopic(name=f"no.{n}") for n in range(15_000)]
    with SocketClient(shared) as client:
        answer = client.ask(ApiKey.METADATA, 9, MetadataRequest(names, allow_auto_topic_creation=False))
    assert len(answer.topics) == 15_000
