"""A broker that does not lead: every API has its answer in the table, and both paths go by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.apis import all_apis
from mpbroker.handlers.requests.leadership import WITHOUT_LEADERSHIP, Instead
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.leading import ALWAYS, NEVER
from mpbroker.ipc.slots import ReplyFlag, SlotKind
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import (
    REQUESTS,
    HeartbeatRequest,
    InitProducerIdRequest,
    MetadataRequest,
    ProduceRequest,
)
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from shm.clock import boot_ns
from tests.support.filled_requests import filled
from tests.support.forwarded_requests import each_version, errors_in
from tests.support.handler_logs import Logged, answer, fetch, park, partition_of
from tests.support.handler_logs import ask as ask_for_records
from tests.support.handler_rig import Rig, topic_image
from tests.support.handler_rig import rig as make_rig

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
ORDERS = topic_image("orders", 1)
REFUSED = [key for key, answer in WITHOUT_LEADERSHIP.items() if isinstance(answer, ErrorCode)]
SERVED = [key for key, answer in WITHOUT_LEADERSHIP.items() if answer is Instead.SERVE]
CLOSED = [key for key, answer in WITHOUT_LEADERSHIP.items() if answer is Instead.CLOSE]


@pytest.fixture(scope="module", name="handler")
def _handler() -> Iterator[Rig]:
    with make_rig(BrokerConfig(client_telemetry_enable=True)) as made:
        made.publish(ORDERS)
        yield made


@pytest.fixture(name="made")
def _made(handler: Rig) -> Rig:
    """A handler that does not lead."""
    handler.memory.leading().until_ns = NEVER
    return handler


def request_of(key: int) -> Any:
    body: Any = filled(REQUESTS[key])
    if key == ApiKey.PRODUCE:
        body.acks = -1
    elif key == ApiKey.DELETE_TOPICS:
        body.topics[0].name = "orders"
    elif key == ApiKey.INIT_PRODUCER_ID:
        body.transactional_id = "x"
    return body


def asks_nobody(made: Rig) -> bool:
    return not made.coordinator.take() and not made.log.take()


def produce(acks: int = -1) -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(0, build_batch([NewRecord(b"v")]))
    return ProduceRequest(
        acks=acks, topic_data=[ProduceRequest.TopicProduceData("orders", partition_data=[partition])]
    )


def test_every_api_has_its_answer() -> None:
    assert {*WITHOUT_LEADERSHIP} == {*all_apis()}


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.name)
def test_what_only_the_leader_may_answer_is_refused_in_each_version(made: Rig, key: ApiKey) -> None:
    for _, version in each_version([key]):
        response = made.ask(key, version, request_of(key))
        # Fields that a version does not have are 0.
        assert {*errors_in(response), 0} == {WITHOUT_LEADERSHIP[key], 0}
        assert asks_nobody(made)


@pytest.mark.parametrize("key", SERVED, ids=lambda key: key.name)
def test_what_each_broker_may_answer_is_answered_as_ever(made: Rig, key: ApiKey) -> None:
    version = all_apis()[key].latest
    seen = []
    for connection, until_ns in ((100, NEVER), (101, ALWAYS)):
        made.memory.leading().until_ns = until_ns
        made.send(key, version, request_of(key), connection=connection)
        made.work_off()
        asked = [type(message) for _, message in made.coordinator.take()]
        seen.append((asked, [(reply.kind, reply.length) for reply in made.processor.replies()]))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("key", CLOSED, ids=lambda key: key.name)
def test_what_clients_repeat_only_after_a_close_closes(made: Rig, key: ApiKey) -> None:
    made.send(key, all_apis()[key].latest, request_of(key))
    assert [reply.kind for reply in made.processor.replies()] == [SlotKind.CLOSE]
    assert asks_nobody(made)


def test_an_idempotent_producer_has_to_ask_again_on_another_connection(made: Rig) -> None:
    made.send(ApiKey.INIT_PRODUCER_ID, 5, InitProducerIdRequest(None, producer_id=-1, producer_epoch=-1))
    assert asks_nobody(made)
    (reply,) = made.processor.replies()
    assert reply.flags == ReplyFlag.LAST
    frame = made.processor.frame_of(reply)
    _, response = decode_response_frame(ApiKey.INIT_PRODUCER_ID, 5, frame[4:])
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_producer_that_awaits_no_answer_loses_its_connection(made: Rig) -> None:
    made.send(ApiKey.PRODUCE, 12, produce(acks=0))
    assert [reply.kind for reply in made.processor.replies()] == [SlotKind.CLOSE]
    assert asks_nobody(made)


def test_topics_are_not_created_by_asking_for_them(made: Rig) -> None:
    asked = MetadataRequest([MetadataRequest.MetadataRequestTopic(name="new")], True)
    response = made.ask(ApiKey.METADATA, 12, asked)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert asks_nobody(made)


@pytest.mark.parametrize("before_ns", [NEVER, boot_ns()], ids=["never", "no longer"])
def test_the_turn_goes_by_the_lease_at_each_request(made: Rig, before_ns: int) -> None:
    leading, fast = made.memory.leading(), made.context.counters.get(Counter.COUNT_PRODUCE_FAST)
    for until_ns in (boot_ns() + (3600 << 30), before_ns, ALWAYS, before_ns):
        leading.until_ns = until_ns
        leads = until_ns > boot_ns()
        made.send(ApiKey.PRODUCE, 12, produce(), connection=9)
        if leads:
            assert [batch.slot for batch in made.append()] == [0]
        else:
            response = made.answer(ApiKey.PRODUCE, 12)
            assert {*errors_in(response)} == {NOT_LEADER}
        made.send(ApiKey.HEARTBEAT, 4, HeartbeatRequest("g", 1, "m"), connection=8)
        assert len(made.coordinator.take()) == leads == made.handler.turn.forwarded_count
        if leads:
            made.handler.turn.take_forwarded()
        else:
            assert made.answer(ApiKey.HEARTBEAT, 4).error_code == ErrorCode.NOT_COORDINATOR
    assert made.context.counters.get(Counter.COUNT_PRODUCE_FAST) == fast + 2


def test_a_fetch_keeps_its_session_and_is_refused_by_partition(log: Logged) -> None:
    log.append()
    log.rig.memory.leading().until_ns = NEVER
    first = ask_for_records(log, fetch(0, session_epoch=0, wait_ms=60_000))
    assert (first.error_code, partition_of(first).error_code) == (0, NOT_LEADER)
    assert first.session_id > 0
    again = fetch(0, session_id=first.session_id, session_epoch=1, wait_ms=60_000)
    again.topics = []
    assert partition_of(ask_for_records(log, again)).error_code == NOT_LEADER
    log.rig.memory.leading().until_ns = ALWAYS
    again.session_epoch = 2
    assert bytes(partition_of(ask_for_records(log, again)).records) == log.batches[0]


def test_the_turn_answers_no_fetch_after_the_lease(log: Logged) -> None:
    log.append()
    for _ in range(2):
        assert bytes(partition_of(ask_for_records(log, fetch(0))).records) == log.batches[0]
    assert log.rig.context.counters.get(Counter.COUNT_FETCHES_FAST) == 1
    log.rig.memory.leading().until_ns = boot_ns()
    assert partition_of(ask_for_records(log, fetch(0))).error_code == NOT_LEADER


def test_a_fetch_that_was_parked_gets_no_records_after_the_lease(log: Logged) -> None:
    park(log, fetch(0, wait_ms=60_000))
    log.rig.memory.leading().until_ns = boot_ns()
    log.append()
    log.rig.turn()
    found = partition_of(answer(log, 12))
    assert (found.error_code, bytes(found.records)) == (NOT_LEADER, b"")
