"""The memory of a request is gone with its answer, whatever it waited for."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from mpbroker.handlers.calls.forwarding import NAMES_AT_ONCE
from mpbroker.handlers.context import RequestContext
from mpbroker.ipc.calls import CreatedTopic, CreatedTopics, Failed
from mpbroker.ipc.topology import log_worker
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchRequest,
    JoinGroupRequest,
    JoinGroupResponse,
)
from ops.bench.brokers import Mpbroker
from shm.clock import monotonic_ms
from tests.support.forwarded_requests import answered, body_of, hand_on
from tests.support.handler_rig import PROCESSOR, Rig, fence, topic_image
from tests.support.socket_client import SocketClient, own_bytes, pids_of

HALF_AN_HOUR_MS = 30 * 60_000
REQUESTS = 40
NAMES, NAME_BYTES = 100, 30_000


@pytest.fixture(name="ready")
def _ready(rig: Rig) -> Iterator[Rig]:
    """Give a handler with a topic. No collection finds what only a cycle keeps."""
    rig.publish(topic_image("t", 1))
    gc.collect()
    gc.disable()
    yield rig
    gc.enable()


def create_topics(ready: Rig) -> None:
    request = CreateTopicsRequest([CreateTopicsRequest.CreatableTopic("new", 1, 1)], HALF_AN_HOUR_MS)
    ready.send(ApiKey.CREATE_TOPICS, 7, request)


def answered_in_time(ready: Rig) -> None:
    create_topics(ready)
    ((call, _),) = ready.coordinator.take()
    ready.reply(call, CreatedTopics([CreatedTopic("new", ErrorCode.TOPIC_ALREADY_EXISTS)]))


def answered_too_late(ready: Rig) -> None:
    """Leave the call at the coordinator: it keeps nothing of the request whose client was told so."""
    create_topics(ready)
    ready.handler.broker.coordinator.expire(monotonic_ms() + 2 * HALF_AN_HOUR_MS)


def joined(ready: Rig) -> None:
    call, _ = hand_on(ready, ApiKey.JOIN_GROUP, 9, JoinGroupRequest("g"))
    answered(ready, call, JoinGroupResponse(error_code=26))


def failed_join(ready: Rig) -> None:
    call, _ = hand_on(ready, ApiKey.JOIN_GROUP, 9, JoinGroupRequest("g"))
    ready.reply(call, Failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ""))


def fetched(ready: Rig) -> None:
    """End a fetch long before its time, by the removal of its topic."""
    topic = FetchRequest.FetchTopic("t", partitions=[FetchRequest.FetchPartition(0)])
    request = FetchRequest(max_wait_ms=HALF_AN_HOUR_MS, min_bytes=1, max_bytes=1 << 20, topics=[topic])
    ready.send(ApiKey.FETCH, 4, request)
    assert len(ready.handler.broker.fetches) == 1
    ready.handler.broker.fetches.expire(monotonic_ms() + 2 * HALF_AN_HOUR_MS)


def described(ready: Rig) -> None:
    """Describe groups, which are asked for a part at a time."""
    names = [str(number) for number in range(NAMES_AT_ONCE + 1)]
    ready.send(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(names))
    while found := ready.coordinator.take():
        ((call, message),) = found
        groups = [DescribeGroupsResponse.DescribedGroup(group_id=name) for name in body_of(message).groups]
        answered(ready, call, DescribeGroupsResponse(groups=groups))


def described_in_vain(ready: Rig) -> None:
    """Close the connection of a request that is asked for a part at a time."""
    call, _ = ready.asked(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(["g"]))
    ready.processor.cancel(7)
    ready.turn()
    answered(ready, call, DescribeGroupsResponse(groups=[DescribeGroupsResponse.DescribedGroup()]))


def deleted_records(ready: Rig) -> None:
    """Ask a log worker, which dies."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic("t", [DeleteRecordsRequest.DeleteRecordsPartition(0, 1)])
    ready.send(ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest([topic], 1000))
    assert len(ready.handler.intake.open) == 1
    fence(ready, log_worker(0), alive=False)


@pytest.mark.parametrize(
    "ended",
    [
        answered_in_time,
        answered_too_late,
        joined,
        failed_join,
        fetched,
        described,
        described_in_vain,
        deleted_records,
    ],
)
def test_nothing_keeps_a_request_that_has_ended(ready: Rig, ended: Callable[[Rig], None]) -> None:
    # Of earlier tests: pytest keeps what a failure was about.
    before = contexts()
    ended(ready)
    ready.turn()
    assert ready.processor.replies()
    assert not [one for one in contexts() if one not in before]


def test_nothing_keeps_a_request_whose_processor_dies_while_it_waits(ready: Rig) -> None:
    before = contexts()
    create_topics(ready)
    ((call, _),) = ready.coordinator.take()
    fence(ready, PROCESSOR, alive=False)
    ready.reply(call, CreatedTopics([CreatedTopic("new", ErrorCode.TOPIC_ALREADY_EXISTS)]))
    assert ready.processor.replies() == []
    assert not [one for one in contexts() if one not in before]


def contexts() -> list[RequestContext]:
    return [one for one in gc.get_objects() if isinstance(one, RequestContext)]


def test_a_handler_does_not_grow_with_what_it_has_answered(broker: Mpbroker) -> None:
    handlers = pids_of(broker, "handler ")
    names = [f"{number:>{NAME_BYTES}}" for number in range(NAMES)]
    with SocketClient(broker) as client:
        client.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(names))
        before = sum(map(own_bytes, handlers))
        for _ in range(REQUESTS):
            client.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(names))
        grown = sum(map(own_bytes, handlers)) - before
    assert grown < REQUESTS * NAMES * NAME_BYTES / 4
