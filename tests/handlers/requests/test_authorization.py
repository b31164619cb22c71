"""What clients are refused and shown, and how the native turn learns what a connection may do."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.config.broker import STANDARD_AUTHORIZER, BrokerConfig
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.calls import CreatedTopics
from mpbroker.ipc.counters import Counter
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.storage.names import segment_name
from tests.support.forwarded_requests import answered, body_of
from tests.support.handler_logs import TOPIC, Logged, answer, ask, fetch, learn, park, partition_of
from tests.support.handler_rig import Rig, delta, request_frame, topic_image
from tests.support.handler_rig import rig as make_rig

TOPIC_KIND, GROUP, CLUSTER = 2, 3, 4
READ, WRITE, CREATE, DESCRIBE, ALL = 3, 4, 5, 8, 2
CLUSTER_ACTION = 9
DENIED, UNKNOWN, UNKNOWN_ID, NOT_LEADER = 29, 3, 100, 6
ORDERS, SECRETS = topic_image("orders", 1), topic_image("secrets", 2, first_slot=1)


def allow(name: str, operation: int = ALL, kind: int = TOPIC_KIND, *, permission: int = 3) -> AclImage:
    return AclImage(kind, name, 3, "User:ANONYMOUS", "*", operation, permission)


@pytest.fixture(name="guarded")
def _guarded(tmp_path: Path) -> Iterator[Rig]:
    config = BrokerConfig(authorizer_class_name=STANDARD_AUTHORIZER, log_dirs=(str(tmp_path),))
    with make_rig(config) as made:
        yield made


def change(guarded: Rig, version: int, **acls: list[AclImage]) -> None:
    guarded.bulletin.publish_delta(delta(version=version, **acls))
    guarded.turn()


def produce(version: int = 13) -> bytes:
    batch = bytes(build_batch([NewRecord(value=b"x", timestamp=time.time_ns() // 1_000_000)]))
    named = m.ProduceRequest.TopicProduceData(
        "orders", ORDERS.topic_id, [m.ProduceRequest.PartitionProduceData(0, batch)]
    )
    return request_frame(ApiKey.PRODUCE, version, m.ProduceRequest(None, -1, 30_000, [named]))


def is_appended(guarded: Rig, connection: int, version: int = 13) -> bool:
    """Send a produce; return False if it is refused for want of permission."""
    guarded.processor.send(produce(version), connection=connection)
    guarded.turn()
    jobs = guarded.log.take()
    for job in jobs:
        guarded.log.append(job)
    guarded.turn()
    if jobs:
        guarded.processor.replies()
        return True
    (topic,) = guarded.answer(ApiKey.PRODUCE, version).responses
    assert [one.error_code for one in topic.partition_responses] == [DENIED]
    return False


def fast(guarded: Rig, counter: Counter) -> int:
    return guarded.context.counters.get(counter)


@pytest.mark.parametrize("version", [12, 13])
def test_the_turn_serves_a_connection_once_python_has_allowed_it(guarded: Rig, version: int) -> None:
    guarded.publish(ORDERS, acls=[allow("orders", WRITE)])
    assert is_appended(guarded, 7, version)
    assert fast(guarded, Counter.COUNT_PRODUCE_FAST) == 0
    assert is_appended(guarded, 7, version)
    assert fast(guarded, Counter.COUNT_PRODUCE_FAST) == 1
    # Another connection may be somebody else's.
    assert is_appended(guarded, 8, version)
    assert fast(guarded, Counter.COUNT_PRODUCE_FAST) == 1
    change(guarded, 2, removed_acls=[allow("orders", WRITE)])
    assert not is_appended(guarded, 7, version)
    change(guarded, 3, acls=[allow("orders", WRITE)])
    assert is_appended(guarded, 7, version)


def test_what_was_sent_after_a_change_goes_by_it(guarded: Rig) -> None:
    guarded.publish(ORDERS, acls=[allow("orders", WRITE)])
    assert is_appended(guarded, 7)
    assert is_appended(guarded, 7)
    # The handler sleeps until the request comes.
    guarded.bulletin.publish_delta(delta(removed_acls=[allow("orders", WRITE)]))
    assert not is_appended(guarded, 7)


def test_an_entry_may_be_gone_before_a_handler_hears_of_it(guarded: Rig) -> None:
    guarded.publish(ORDERS, acls=[allow("orders", WRITE)])
    change(guarded, 2, removed_acls=[allow("orders", READ)])
    assert is_appended(guarded, 7)


def test_a_denied_partition_does_not_keep_a_fetch_from_waiting(
    guarded: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mpbroker.kafka.authorizer.logger")
    guarded.publish(TOPIC, SECRETS, acls=[allow("logged", READ)])
    log = Logged(tmp_path, guarded)
    body = fetch(0, wait_ms=60_000)
    body.topics.append(m.FetchRequest.FetchTopic("secrets", SECRETS.topic_id, body.topics[0].partitions))
    park(log, body)
    assert len(caplog.messages) == 1
    log.append()
    guarded.turn()
    codes = {t.topic: [p.error_code for p in t.partitions] for t in answer(log, 12).responses}
    assert codes == {"logged": [0], "secrets": [DENIED]}


FOLLOWERS = {
    4: {"replica_id": 1},
    14: {"replica_id": 1},
    15: {"replica_state": m.FetchRequest.ReplicaState(1, 1)},
    18: {"replica_state": m.FetchRequest.ReplicaState(1, 1)},
}


@pytest.mark.parametrize(("version", "follower"), FOLLOWERS.items())
def test_a_follower_needs_the_right_to_act_for_the_cluster(
    guarded: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture, version: int, follower: dict[str, Any]
) -> None:
    """Check that without it each partition is refused, whether it exists or not, and READ does not count."""
    caplog.set_level(logging.INFO, "mpbroker.kafka.authorizer.logger")
    guarded.publish(TOPIC, acls=[allow("logged", READ)])
    log = Logged(tmp_path, guarded)
    log.append()
    body = fetch(0, **follower)
    partitions = [*body.topics[0].partitions, m.FetchRequest.FetchPartition(7)]
    body.topics[0].partitions = partitions
    body.topics.append(m.FetchRequest.FetchTopic("nope", bytes(15) + b"n", partitions))

    def codes() -> list[int]:
        response = ask(log, body, version)
        return [one.error_code for topic in response.responses for one in topic.partitions]

    assert codes() == [DENIED] * 4
    assert len(caplog.messages) == 1
    cluster = allow("kafka-cluster", CLUSTER_ACTION, CLUSTER)
    change(guarded, 2, acls=[cluster], removed_acls=[allow("logged", READ)])
    unknown = UNKNOWN_ID if version >= 13 else UNKNOWN
    assert codes() == [NOT_LEADER, UNKNOWN, unknown, unknown]
    # The turn has not learned from that to serve consumers on this connection.
    learn(guarded.handler.turn.fetch_positions, 0, log.directory / segment_name(0))
    assert partition_of(ask(log, fetch(0), version)).error_code == DENIED
    # A consumer needs no more than READ.
    change(guarded, 3, acls=[allow("logged", READ)], removed_acls=[cluster])
    assert partition_of(ask(log, fetch(0), version)).error_code == 0


def test_a_denial_that_comes_later_counts_at_once(guarded: Rig) -> None:
    guarded.publish(ORDERS, acls=[allow("orders", WRITE)])
    assert is_appended(guarded, 7)
    assert is_appended(guarded, 7)
    change(guarded, 2, acls=[allow("orders", WRITE, permission=2)])
    assert not is_appended(guarded, 7)


def test_fetches_are_as_produces(guarded: Rig, tmp_path: Path) -> None:
    guarded.publish(TOPIC, acls=[allow("logged", WRITE)])
    log = Logged(tmp_path, guarded)
    log.append()

    def error_of() -> int:
        return int(partition_of(ask(log, fetch(0), 13)).error_code)

    assert error_of() == DENIED
    change(guarded, 2, acls=[allow("logged", READ)])
    assert error_of() == 0
    before = fast(guarded, Counter.COUNT_FETCHES_FAST)
    assert error_of() == 0
    assert fast(guarded, Counter.COUNT_FETCHES_FAST) == before + 1
    change(guarded, 3, removed_acls=[allow("logged", READ)])
    assert error_of() == DENIED


def test_a_fetch_that_waits_is_asked_again(guarded: Rig, tmp_path: Path) -> None:
    guarded.publish(TOPIC, acls=[allow("logged", READ)])
    log = Logged(tmp_path, guarded)
    park(log, fetch(0, wait_ms=60_000))
    change(guarded, 2, removed_acls=[allow("logged", READ)])
    log.append()
    guarded.turn()
    assert partition_of(answer(log, 12)).error_code == DENIED


def commit(*topics: str) -> Any:
    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(0, 5)
    named = [m.OffsetCommitRequest.OffsetCommitRequestTopic(name, partitions=[partition]) for name in topics]
    return m.OffsetCommitRequest("group", topics=named)


def test_the_part_of_a_commit_that_is_allowed_is_forwarded(guarded: Rig) -> None:
    guarded.publish(ORDERS, SECRETS, acls=[allow("orders", READ), allow("group", READ, GROUP)])
    call, message = guarded.asked(ApiKey.OFFSET_COMMIT, 9, commit("orders", "secrets"))
    assert [topic.name for topic in body_of(message).topics] == ["orders"]
    of = m.OffsetCommitResponse
    topic = of.OffsetCommitResponseTopic("orders", partitions=[of.OffsetCommitResponsePartition(0, 0)])
    answered(guarded, call, of(topics=[topic]))
    told = guarded.answer(ApiKey.OFFSET_COMMIT, 9)
    assert {t.name: [p.error_code for p in t.partitions] for t in told.topics} == {
        "orders": [0],
        "secrets": [DENIED],
    }


def test_what_is_allowed_whole_is_forwarded_as_it_came(guarded: Rig) -> None:
    guarded.publish(ORDERS, acls=[allow("orders", READ), allow("group", READ, GROUP)])
    guarded.processor.send(frame := request_frame(ApiKey.OFFSET_COMMIT, 9, commit("orders")))
    guarded.turn()
    ((_, message),) = guarded.coordinator.take()
    assert frame.endswith(message.body)


def metadata(guarded: Rig, *names: str | bytes, **flags: bool) -> Any:
    topic = m.MetadataRequest.MetadataRequestTopic
    topics = [topic(name=one) if isinstance(one, str) else topic(one, None) for one in names]
    body = m.MetadataRequest(topics or None, **flags)
    return guarded.ask(ApiKey.METADATA, 12, body)


def test_metadata_hides_what_a_client_may_not_describe(guarded: Rig) -> None:
    guarded.publish(ORDERS, SECRETS, acls=[allow("orders", READ), allow("secret2", DESCRIBE)])
    assert [t.name for t in metadata(guarded).topics] == ["orders"]
    by_name = metadata(guarded, "orders", "secrets", "missing", "secret2", allow_auto_topic_creation=False)
    # Nobody learns from the errors which of these topics exist.
    found = {t.name: t.error_code for t in by_name.topics}
    assert found == {"orders": 0, "secrets": DENIED, "missing": DENIED, "secret2": 3}
    (by_id,) = metadata(guarded, SECRETS.topic_id).topics
    assert (by_id.error_code, by_id.name) == (DENIED, None)


def test_metadata_tells_what_a_client_may_do(guarded: Rig) -> None:
    guarded.publish(ORDERS, acls=[allow("orders", READ)])
    (topic,) = metadata(guarded, "orders", include_topic_authorized_operations=True).topics
    assert topic.topic_authorized_operations == 1 << READ | 1 << DESCRIBE
    cluster = guarded.ask(
        ApiKey.DESCRIBE_CLUSTER, 0, m.DescribeClusterRequest(include_cluster_authorized_operations=True)
    )
    assert cluster.cluster_authorized_operations == 0


def test_topics_are_made_for_those_who_may_create_them(guarded: Rig) -> None:
    guarded.publish(acls=[allow("new1", CREATE), allow("new1", DESCRIBE), allow("new2", DESCRIBE)])
    body = m.MetadataRequest([m.MetadataRequest.MetadataRequestTopic(name=n) for n in ("new1", "new2")], True)
    call, message = guarded.asked(ApiKey.METADATA, 12, body)
    assert [topic.name for topic in message.topics] == ["new1"]
    guarded.reply(call, CreatedTopics([]))
    errors = {t.name: t.error_code for t in guarded.answer(ApiKey.METADATA, 12).topics}
    assert errors["new2"] == DENIED


def test_one_denied_partition_keeps_all_out_of_a_transaction(guarded: Rig) -> None:
    guarded.publish(ORDERS, SECRETS, acls=[allow("orders", WRITE), allow("t", WRITE, 5)])
    topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    body = m.AddPartitionsToTxnRequest("t", 1, 0, [topic("orders", [0]), topic("secrets", [0])])
    told = guarded.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, body)
    assert {
        t.name: [p.partition_error_code for p in t.results_by_partition]
        for t in told.results_by_topic_v3_and_below
    } == {"orders": [55], "secrets": [DENIED]}


def test_groups_that_a_client_may_not_see_are_not_listed(guarded: Rig) -> None:
    guarded.publish(acls=[allow("mine", DESCRIBE, GROUP)])
    call, _ = guarded.asked(ApiKey.LIST_GROUPS, 5, m.ListGroupsRequest())
    listed = m.ListGroupsResponse(groups=[m.ListGroupsResponse.ListedGroup(n) for n in ("mine", "other")])
    answered(guarded, call, listed)
    assert [group.group_id for group in guarded.answer(ApiKey.LIST_GROUPS, 5).groups] == ["mine"]


def test_committed_offsets_of_hidden_groups_and_topics(guarded: Rig) -> None:
    guarded.publish(ORDERS, SECRETS, acls=[allow("orders", READ), allow("mine", DESCRIBE, GROUP)])
    group, topic = m.OffsetFetchRequest.OffsetFetchRequestGroup, m.OffsetFetchRequest.OffsetFetchRequestTopics
    named = [topic(name, partition_indexes=[0]) for name in ("orders", "secrets")]
    asked = m.OffsetFetchRequest(groups=[group("mine", topics=named), group("other", topics=None)])
    call, message = guarded.asked(ApiKey.OFFSET_FETCH, 8, asked)
    passed = body_of(message).groups
    assert [(g.group_id, [t.name for t in g.topics]) for g in passed] == [("mine", ["orders"])]
    of = m.OffsetFetchResponse
    topics = [of.OffsetFetchResponseTopics("orders", partitions=[of.OffsetFetchResponsePartitions(0, 5)])]
    found = of(groups=[of.OffsetFetchResponseGroup("mine", topics)])
    answered(guarded, call, found)
    mine, other = guarded.answer(ApiKey.OFFSET_FETCH, 8).groups
    assert {t.name: [p.error_code for p in t.partitions] for t in mine.topics} == {
        "orders": [0],
        "secrets": [DENIED],
    }
    assert (other.group_id, other.error_code) == ("other", 30)


def test_an_idempotent_producer_needs_some_topic_to_write_to(guarded: Rig) -> None:
    guarded.publish(ORDERS)
    body = m.InitProducerIdRequest(None, 1)
    assert guarded.ask(ApiKey.INIT_PRODUCER_ID, 4, body).error_code == 31
    change(guarded, 2, acls=[allow("orders", WRITE)])
    guarded.send(ApiKey.INIT_PRODUCER_ID, 4, body)
    assert guarded.coordinator.take()


def test_refusals_are_logged_for_an_audit(guarded: Rig, caplog: pytest.LogCaptureFixture) -> None:
    guarded.publish(ORDERS, acls=[allow("orders", WRITE, permission=2)])
    with caplog.at_level(logging.INFO, "mpbroker.kafka.authorizer.logger"):
        assert not is_appended(guarded, 7)
    (line,) = [record.getMessage() for record in caplog.records if "is denied" in record.getMessage()]
    assert line == (
        "audit: User:ANONYMOUS from unix on PLAINTEXT is denied Write Topic 'orders' for PRODUCE: "
        "DENY User:ANONYMOUS from host * operation WRITE on LITERAL TOPIC orders"
    )


def test_without_an_authorizer_there_are_no_entries() -> None:
    with make_rig() as made:
        made.publish(ORDERS)
        assert is_appended(made, 7)
        assert fast(made, Counter.COUNT_PRODUCE_FAST) == 1
        described = made.ask(ApiKey.DESCRIBE_ACLS, 3, m.DescribeAclsRequest(1, None, 1, None, None, 1, 1))
        assert described.error_code == 54
        creation = m.CreateAclsRequest.AclCreation(2, "orders", 3, "User:ann", "*", 3, 3)
        created = made.ask(ApiKey.CREATE_ACLS, 3, m.CreateAclsRequest([creation]))
        assert [one.error_code for one in created.results] == [54]
        one = m.DeleteAclsRequest.DeleteAclsFilter(1, None, 1, None, None, 1, 1)
        assert made.ask(ApiKey.DELETE_ACLS, 3, m.DeleteAclsRequest([one])).filter_results[0].error_code == 54
