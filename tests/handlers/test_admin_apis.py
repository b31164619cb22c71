"""ApiVersions, Metadata, topics, configs and producer ids, through a handler whose peers are the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.handlers.apis import all_apis, k19_create_topics
from mpbroker.ipc.calls import (
    AllocateProducerIds,
    CreatedTopic,
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    DeletedTopic,
    DeletedTopics,
    Failed,
    ProducerIds,
)
from mpbroker.ipc.session import Session
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.table import PartitionFlag
from mpbroker.protocol.api_keys import ApiKey, valid_versions
from mpbroker.protocol.headers import decode_response_frame
from mpbroker.protocol.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
)
from tests.support.handler_rig import (
    CLUSTER,
    Rig,
    delta,
    partition_payload,
    request_frame,
    rig,
    topic_id,
    topic_image,
)

METADATA, FIND, API_VERSIONS, CREATE, DELETE, INIT, CONFIGS, CLUSTERS = 3, 10, 18, 19, 20, 22, 32, 60
# What brokers of Kafka 4.3 advertise: what the schema has, but for these. test_not_ours.py asks one.
OTHER_RANGES = {
    ApiKey.PRODUCE: (0, 13),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    # Kafka has 4 and 5 for other brokers.
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
}
KAFKA_RANGES = {
    int(key): OTHER_RANGES.get(key, (key.versions[0], key.versions[-1])) for key in map(ApiKey, all_apis())
}
ORDERS = topic_image("orders", 1, partitions=2, retention_ms="1000")
INTERNAL = topic_image("__consumer_offsets", 2, first_slot=4, internal=True)
HIDDEN = topic_image("__cluster_metadata", 3, first_slot=5, internal=True)
READY = (ORDERS, INTERNAL, HIDDEN)


def test_registration_is_what_kafka_advertises() -> None:
    assert {a.key: (a.advertised_from, a.latest) for a in all_apis().values()} == KAFKA_RANGES
    for entry in all_apis().values():
        assert {entry.oldest, entry.latest} <= set(valid_versions(entry.key))
    assert all(api.summary.endswith(".") for api in all_apis().values())


@pytest.mark.parametrize("version", range(5))
def test_api_versions(ready: Rig, version: int) -> None:
    response = ready.ask(API_VERSIONS, version, ApiVersionsRequest("librdkafka", "2.3.0"))
    assert response.error_code == 0
    assert {k.api_key: (k.min_version, k.max_version) for k in response.api_keys} == KAFKA_RANGES
    features = {f.name: (f.min_version, f.max_version) for f in response.supported_features}
    off = ("kraft.version", "eligible.leader.replicas.version", "share.version", "streams.version")
    supported = dict.fromkeys(off, (0, 0)) | {"group.version": (0, 1), "transaction.version": (0, 2)}
    supported["metadata.version"] = (30, 30)
    assert features == (supported if version >= 4 else {})
    finalized = (
        [(f.name, f.min_version_level, f.max_version_level) for f in response.finalized_features],
        response.finalized_features_epoch,
    )
    levels = [("metadata.version", 30, 30), ("group.version", 1, 1), ("transaction.version", 2, 2)]
    assert finalized == ((levels, 2) if version >= 3 else ([], -1))


def test_api_versions_of_the_future_is_answered_in_version_0(ready: Rig) -> None:
    frame = bytearray(request_frame(API_VERSIONS, 4, ApiVersionsRequest("x", "1")))
    frame[6:8] = (90).to_bytes(2, "big")
    ready.processor.send(bytes(frame))
    ready.turn()
    response = ready.answer(API_VERSIONS, 0)
    assert response.error_code == 35
    assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [(18, 0, 4)]


def test_api_versions_checks_the_name_of_the_client(ready: Rig) -> None:
    assert ready.ask(API_VERSIONS, 3, ApiVersionsRequest("bad name", "1")).error_code == 42
    assert ready.ask(API_VERSIONS, 3, ApiVersionsRequest("", "")).error_code == 42


@pytest.mark.parametrize(("key", "version"), [(0, 2), (9, 3), (999, 0), (3, 14), (18 + 1, 1)])
def test_what_is_not_served_closes_the_connection(ready: Rig, key: int, version: int) -> None:
    frame = bytearray(request_frame(METADATA, 1, MetadataRequest(topics=[])))
    frame[4:6], frame[6:8] = key.to_bytes(2, "big"), version.to_bytes(2, "big")
    ready.processor.send(bytes(frame))
    ready.turn()
    assert [r.kind for r in ready.processor.replies()] == [SlotKind.CLOSE]


def test_a_malformed_body_closes_the_connection(ready: Rig) -> None:
    ready.processor.send(request_frame(METADATA, 1, MetadataRequest(topics=[]))[:-1])
    ready.turn()
    assert [r.kind for r in ready.processor.replies()] == [SlotKind.CLOSE]


def test_an_exception_is_answered_with_the_error_of_the_api(
    ready: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    ready.handler.broker.metadata.by_name = None  # type: ignore[assignment]
    response = ready.ask(
        CONFIGS,
        4,
        DescribeConfigsRequest([DescribeConfigsRequest.DescribeConfigsResource(2, "orders", None)]),
    )
    assert [r.error_code for r in response.results] == [-1]
    assert "DescribeConfigs v4 of client 'test'" in caplog.text


def names(*found: str) -> list[MetadataRequest.MetadataRequestTopic]:
    return [MetadataRequest.MetadataRequestTopic(name=name) for name in found]


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_everything(ready: Rig, version: int) -> None:
    response = ready.ask(METADATA, version, MetadataRequest(topics=None if version else []))
    assert [(b.node_id, b.host, b.port) for b in response.brokers] == [(1, "127.0.0.1", 9092)]
    assert [t.name for t in response.topics] == ["__consumer_offsets", "orders"]
    orders = response.topics[1]
    assert [(p.partition_index, p.leader_id, p.isr_nodes, p.error_code) for p in orders.partitions] == [
        (0, 1, [1], 0),
        (1, 1, [1], 0),
    ]
    if version >= 1:
        assert (response.topics[0].is_internal, orders.is_internal) == (True, False)
        assert response.controller_id == 1
    if version >= 2:
        assert response.cluster_id == CLUSTER
    if version >= 10:
        assert orders.topic_id == topic_id(1)


@pytest.mark.parametrize("version", [4, 9, 13])
def test_metadata_answers_each_topic_once(ready: Rig, version: int) -> None:
    """Check that a topic that is named twice is answered once, since Kafka takes the names as a set."""
    asked = MetadataRequest(names("none", "", "none", "", ""), allow_auto_topic_creation=False)
    assert [t.name for t in ready.ask(METADATA, version, asked).topics] == ["none", ""]


def test_metadata_by_id(ready: Rig) -> None:
    wanted = [
        MetadataRequest.MetadataRequestTopic(topic_id(1), None),
        MetadataRequest.MetadataRequestTopic(topic_id(9), None),
    ]
    found, missing = ready.ask(METADATA, 12, MetadataRequest(topics=wanted)).topics
    assert (found.name, found.error_code) == ("orders", 0)
    assert (missing.name, missing.error_code) == (None, 100)
    assert [t.error_code for t in ready.ask(METADATA, 10, MetadataRequest(topics=wanted)).topics] == [42, 42]


def test_metadata_without_creation(ready: Rig) -> None:
    asked = MetadataRequest(
        names("nowhere", "__cluster_metadata", "bad name"), allow_auto_topic_creation=False
    )
    assert [t.error_code for t in ready.ask(METADATA, 9, asked).topics] == [3, 3, 17]


def test_metadata_creates_what_is_missing(ready: Rig) -> None:
    asked = MetadataRequest(names("orders", "fresh", "fresh", "bad name", "full"))
    ready.send(METADATA, 9, asked)
    assert ready.processor.replies() == []
    ((call, message),) = ready.coordinator.take()
    assert isinstance(message, CreateTopics)
    assert ([t.name for t in message.topics], message.automatic) == (["fresh", "full"], True)
    fresh = topic_image("fresh", 7, first_slot=9)
    ready.table.write(9, partition_payload(fresh))
    ready.bulletin.publish_delta(delta(fresh))
    ready.reply(call, CreatedTopics([CreatedTopic("fresh"), CreatedTopic("full", 44)]))
    topics = ready.answer(METADATA, 9).topics
    found = [(t.name, t.error_code, len(t.partitions)) for t in topics]
    assert found == [("orders", 0, 2), ("fresh", 0, 1), ("bad name", 17, 0), ("full", 44, 0)]
    ready.coordinator.take()
    assert len(ready.coordinator.returned) == 1
    assert ready.handler.arena.in_use_bytes > 0


def test_a_dead_coordinator_does_not_mute_anybody(ready: Rig) -> None:
    ready.send(METADATA, 9, MetadataRequest(names("fresh")))
    ready.coordinator_dies()
    ready.turn()
    assert [t.error_code for t in ready.answer(METADATA, 9).topics] == [5]
    others = MetadataRequest(names("other"))
    assert [t.error_code for t in ready.ask_in_vain(METADATA, 9, others).topics] == [5]


def test_an_offline_partition_has_no_leader(ready: Rig) -> None:
    ready.table.write(1, partition_payload(ORDERS, 1, flags=PartitionFlag.PARTITION_OFFLINE))
    (topic,) = ready.ask(METADATA, 9, MetadataRequest(names("orders"))).topics
    assert [(p.leader_id, p.offline_replicas, p.error_code) for p in topic.partitions] == [
        (1, [], 0),
        (-1, [1], 5),
    ]


def test_a_base_replaces_and_a_delta_changes(ready: Rig) -> None:
    ready.bulletin.publish_delta(delta(topic_image("orders", 8, first_slot=20), removed=(topic_id(2),)))
    ready.turn()
    assert set(ready.metadata.by_name) == {"orders"}
    assert set(ready.metadata.by_id) == {topic_id(8)}
    assert ready.handler.turn.topics.place(topic_id(1), 0) is None
    assert ready.handler.turn.topics.place(topic_id(8), 0) == (20, 5)
    ready.publish(topic_image("only", 3))
    assert set(ready.metadata.by_name) == {"only"}
    assert len(ready.handler.turn.topics) == 1


def test_advertised_addresses() -> None:
    listeners = (Listener("PLAINTEXT", "PLAINTEXT", "", 9092),)
    with rig(BrokerConfig(listeners=listeners)) as made:
        session = SimpleNamespace(local_host="192.0.2.7", local_port=9092)
        made.context.session = lambda _: cast(Session, session)  # type: ignore[method-assign]
        made.publish(ORDERS)
        (broker,) = made.ask(METADATA, 1, MetadataRequest(topics=[])).brokers
        assert (broker.host, broker.port) == ("192.0.2.7", 9092), "where the client has connected to"
    outside = (Listener("PLAINTEXT", "PLAINTEXT", "kafka.example", 19092),)
    with rig(BrokerConfig(listeners=listeners, advertised_listeners=outside)) as made:
        made.publish(ORDERS)
        (broker,) = made.ask(METADATA, 1, MetadataRequest(topics=[])).brokers
        assert (broker.host, broker.port) == ("kafka.example", 19092)


def creatable(
    name: str, partitions: int = 1, replicas: int = 1, **configs: str | None
) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name,
        partitions,
        replicas,
        [],
        [CreateTopicsRequest.CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items()],
    )


def doubled(topic: CreateTopicsRequest.CreatableTopic) -> CreateTopicsRequest.CreatableTopic:
    """Return the topic with each of its settings and assignments twice."""
    topic.configs += topic.configs
    topic.assignments += topic.assignments
    return topic


def test_what_the_coordinator_could_not_see(ready: Rig) -> None:
    row = CreateTopicsRequest.CreatableReplicaAssignment(0, [1])
    asked = [
        doubled(creatable("a", retention_ms="5")),
        doubled(CreateTopicsRequest.CreatableTopic("b", -1, -1, [row], [])),
        creatable("a"),
    ]
    results = ready.ask(CREATE, 5, CreateTopicsRequest(asked)).topics
    assert [(t.name, t.error_code) for t in results] == [("a", 40), ("b", 39)]
    assert all(t.error_message for t in results)
    assert ready.coordinator.take() == []


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics(ready: Rig, version: int) -> None:
    asked = CreateTopicsRequest(
        [creatable("fresh", -1, 2, retention_ms="5"), creatable("orders")], validate_only=True
    )
    call, message = ready.asked(CREATE, version, asked)
    assert message.validate_only
    assert message.topics[0] == CreateTopic("fresh", -1, 2, {}, {"retention.ms": "5"})
    done = CreatedTopic("fresh", 0, None, topic_id(9), 1, 1, {"retention.ms": "5"})
    refused = CreatedTopic("orders", 36, "Topic 'orders' already exists.")
    ready.reply(call, CreatedTopics([done, refused]))
    by_name = {t.name: t for t in ready.answer(CREATE, version).topics}
    assert (by_name["orders"].error_code, by_name["fresh"].error_code) == (36, 0)
    if version >= 5:
        configs = {c.name: (c.value, c.config_source) for c in by_name["fresh"].configs}
        assert configs["retention.ms"] == ("5", 1)
        assert configs["segment.bytes"] == ("1073741824", 5)
    if version >= 7:
        assert by_name["fresh"].topic_id == topic_id(9)


def test_very_many_topics_are_asked_for_in_parts(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k19_create_topics, "ASKED_AT_ONCE", 2)
    monkeypatch.setattr(k19_create_topics, "DESCRIBED_AT_ONCE", 1)
    names = ["a", "twice", "b", "twice", "twice", "c"]
    asked = CreateTopicsRequest([creatable(name) for name in names], timeout_ms=60_000)
    ready.processor.send(request_frame(CREATE, 7, asked))
    ready.work_off()
    parts = []
    while ready.handler.intake.open:
        ((call, message),) = ready.coordinator.take()
        of_part = [topic.name for topic in message.topics]
        # The coordinator counts the partitions of all of them.
        assert message.beside == 5 - len(of_part)
        parts.append(of_part)
        made = [CreatedTopic(name, 42 if name == "twice" else 0) for name in dict.fromkeys(of_part)]
        ready.coordinator.answer(call, CreatedTopics(made, throttle_ms=len(parts)))
        ready.work_off()
    assert parts == [["twice", "twice"], ["a", "b"], ["c"]]
    answer = ready.answer(CREATE, 7)
    assert {topic.name: topic.error_code for topic in answer.topics} == {"twice": 42, "a": 0, "b": 0, "c": 0}
    assert answer.throttle_time_ms == 3


def test_topics_whose_coordinator_dies_between_two_parts(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k19_create_topics, "ASKED_AT_ONCE", 2)
    names = ["a", "b", "c", "d", "e"]
    asked = CreateTopicsRequest([creatable(name) for name in names], timeout_ms=60_000)
    ready.processor.send(request_frame(CREATE, 7, asked))
    ready.work_off()
    ((call, _),) = ready.coordinator.take()
    ready.coordinator.answer(call, CreatedTopics([CreatedTopic("a"), CreatedTopic("b")]))
    ready.work_off()
    ready.coordinator_dies()
    ready.no_successor_comes()
    codes = {topic.name: topic.error_code for topic in ready.answer(CREATE, 7).topics}
    assert codes == {"a": 0, "b": 0, "c": 41, "d": 41, "e": 41}


def test_assignments(ready: Rig) -> None:
    def assigned(*brokers: list[int]) -> CreateTopicsRequest.CreatableTopic:
        rows = [CreateTopicsRequest.CreatableReplicaAssignment(i, b) for i, b in enumerate(brokers)]
        return CreateTopicsRequest.CreatableTopic("a", -1, -1, rows, [])

    _, message = ready.asked(CREATE, 5, CreateTopicsRequest([assigned([1], [1])]))
    assert message.topics[0].assignments == {0: [1], 1: [1]}


def test_create_topics_while_the_coordinator_is_down(ready: Rig) -> None:
    ready.coordinator_dies()
    assert ready.ask_in_vain(CREATE, 5, CreateTopicsRequest([creatable("a")])).topics[0].error_code == 41


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics(ready: Rig, version: int) -> None:
    states = [DeleteTopicsRequest.DeleteTopicState("orders"), DeleteTopicsRequest.DeleteTopicState("nowhere")]
    call, message = ready.asked(
        DELETE, version, DeleteTopicsRequest(["orders", "nowhere"], states, timeout_ms=1000)
    )
    assert (message.names, message.ids) == (["orders", "nowhere"], [])
    results = [DeletedTopic("orders", topic_id(1)), DeletedTopic("nowhere", bytes(16), 3)]
    ready.reply(call, DeletedTopics(results))
    assert {t.name: t.error_code for t in ready.answer(DELETE, version).responses} == {
        "orders": 0,
        "nowhere": 3,
    }


@pytest.mark.parametrize("key", [CREATE, DELETE])
def test_who_waits_for_the_coordinator_is_told_after_its_own_time(ready: Rig, key: int) -> None:
    """Check that a timeout changes no other result, and that the coordinator's late answer is ignored."""
    now_ms = [ready.handler.broker.monotonic_ms()]
    ready.handler.broker.monotonic_ms = lambda: now_ms[0] + 100_000  # beyond any real clock of this test
    asked = {
        CREATE: CreateTopicsRequest(
            [doubled(creatable("orders", retention_ms="5")), creatable("new")], timeout_ms=5
        ),
        DELETE: DeleteTopicsRequest(["orders"], timeout_ms=5),
    }
    call, _ = ready.asked(key, 5, asked[key])
    caller = ready.handler.broker.coordinator
    assert caller.next_deadline_ms() == now_ms[0] + 100_005
    caller.expire(now_ms[0] + 100_004)
    ready.turn()
    assert ready.processor.replies() == []
    caller.expire(now_ms[0] + 100_005)
    ready.turn()
    answer = ready.answer(key, 5)
    results = answer.topics if key == CREATE else answer.responses
    found = {t.name: t.error_code for t in results}
    assert found == ({"orders": 40, "new": 7} if key == CREATE else {"orders": 7})
    ready.reply(call, CreatedTopics([]) if key == CREATE else DeletedTopics([]))
    assert ready.processor.replies() == []
    assert len(caller) == 0
    assert caller.next_deadline_ms() is None
    assert ready.handler.intake.open == {}


def test_delete_topics_by_id(ready: Rig) -> None:
    state = DeleteTopicsRequest.DeleteTopicState
    asked = [state(None, topic_id(1)), state("orders", topic_id(1)), state(None), state(None, topic_id(1))]
    call, message = ready.asked(DELETE, 6, DeleteTopicsRequest(topics=asked, timeout_ms=1000))
    assert (message.names, message.ids) == ([], [topic_id(1)] * 2), "it says what is wrong with that"
    ready.reply(call, Failed(-1, "no"))
    answers = ready.answer(DELETE, 6).responses
    assert [t.error_code for t in answers] == [42, 42, 41]
    assert answers[2].error_message == "no"


def test_deletion_can_be_disabled() -> None:
    with rig(BrokerConfig(delete_topic_enable=False)) as made:
        made.publish(ORDERS)
        assert made.ask(DELETE, 4, DeleteTopicsRequest(["orders"])).responses[0].error_code == 73
        assert made.ask(DELETE, 1, DeleteTopicsRequest(["orders"])).responses[0].error_code == 42


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_come_from_blocks(ready: Rig, version: int) -> None:
    asked = InitProducerIdRequest(None, 60_000)
    for _ in range(3):
        ready.processor.send(request_frame(INIT, version, asked))
    ready.turn()
    ((call, message),) = ready.coordinator.take()
    assert isinstance(message, AllocateProducerIds)
    ready.reply(call, ProducerIds(4000, 2))
    ((call, _),) = ready.coordinator.take()
    ready.reply(call, ProducerIds(5000, 2))
    found = [
        decode_response_frame(INIT, version, ready.processor.frame_of(r)[4:])[1]
        for r in ready.processor.replies()
    ]
    seen = [(r.error_code, r.producer_id, r.producer_epoch) for r in found]
    assert seen == [(0, 4000, 0), (0, 4001, 0), (0, 5000, 0)]
    assert ready.ask(INIT, version, asked).producer_id == 5001


def test_producer_ids_that_are_refused(ready: Rig) -> None:
    for wrong in (("", 1), (None, 1, 5, -1), ("tx", 1, 5, -1)):
        assert ready.ask(INIT, 4, InitProducerIdRequest(*wrong)).error_code == 42
    assert not ready.coordinator.take()
    ready.coordinator_dies()
    assert ready.ask_in_vain(INIT, 4, InitProducerIdRequest(None, 1)).error_code == 14


@pytest.mark.parametrize("version", range(7))
def test_coordinators_of_groups_and_transactions(ready: Rig, version: int) -> None:
    for kind, error in ((0, 0), (1, 0), (2, 35), (7, 42)) if version else ((0, 0),):
        response = ready.ask(FIND, version, FindCoordinatorRequest("g", kind, ["g", "h"]))
        answers = response.coordinators if version >= 4 else [response]
        assert [a.error_code for a in answers] == [error] * (2 if version >= 4 else 1)
        if error:
            assert all(a.error_message for a in answers)
        else:
            assert [(a.node_id, a.port) for a in answers] == [(1, 9092)] * len(answers)


def resource(
    kind: int, name: str, keys: list[str] | None = None
) -> DescribeConfigsRequest.DescribeConfigsResource:
    return DescribeConfigsRequest.DescribeConfigsResource(kind, name, keys)


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs(ready: Rig, version: int) -> None:
    asked = [
        resource(2, "orders"),
        resource(4, "1", ["num.partitions"]),
        resource(4, ""),
        resource(2, "nowhere"),
        resource(4, "9"),
        resource(99, "1"),
        resource(2, "bad name"),
    ]
    results = ready.ask(CONFIGS, version, DescribeConfigsRequest(asked, True, True)).results
    assert [r.error_code for r in results] == [0, 0, 0, 3, 42, 42, 17]
    orders = {c.name: c for c in results[0].configs}
    assert len(orders) > 30
    assert (orders["retention.ms"].value, orders["retention.ms"].config_source) == ("1000", 1)
    assert next(s.name for s in orders["retention.ms"].synonyms) == "retention.ms"
    assert [c.name for c in results[1].configs] == ["num.partitions"]
    assert results[2].configs == []
    if version >= 3:
        assert orders["retention.ms"].documentation
        assert orders["retention.ms"].config_type == 5


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(ready: Rig, version: int) -> None:
    response = ready.ask(CLUSTERS, version, DescribeClusterRequest(True))
    assert (response.cluster_id, response.controller_id, response.brokers[0].port) == (CLUSTER, 1, 9092)
    assert response.cluster_authorized_operations == 0b1111110100000
    if version:
        assert ready.ask(CLUSTERS, version, DescribeClusterRequest(False, 2)).error_code == 114
        assert ready.ask(CLUSTERS, version, DescribeClusterRequest(False, 5)).error_code == 115
