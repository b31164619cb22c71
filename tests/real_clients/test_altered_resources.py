"""Settings of groups and of subscriptions to client metrics: checked, kept, listed, described.

The tests state what Apache Kafka does, so they run against it, too.
"""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import ConfigOperation, ConfigResourceType
from ops.bench.brokers import Broker
from tests.support.client_tools import eventually
from tests.support.socket_client import SocketClient

GROUP, METRICS = ConfigResourceType.GROUP, ConfigResourceType.CLIENT_METRICS
SET, DELETE, APPEND = ConfigOperation.SET, ConfigOperation.DELETE, ConfigOperation.APPEND
NONE, CONFIG, REQUEST = ErrorCode.NONE, ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST


def alter(
    client: SocketClient, kind: int, name: str, *changes: tuple[str, int, str | None]
) -> tuple[int, Any]:
    wanted = m.IncrementalAlterConfigsRequest
    made = [wanted.AlterableConfig(*change) for change in changes]
    request = wanted([wanted.AlterConfigsResource(kind, name, made)])
    (answer,) = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    return answer.error_code, answer.error_message


def described(client: SocketClient, kind: int, name: str) -> dict[str, Any]:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(kind, name, None)
    request = m.DescribeConfigsRequest([resource], include_synonyms=True)
    (result,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, request).results
    assert result.error_code == NONE
    return {
        one.name: (
            *(one.value, one.config_source, one.config_type, one.read_only, one.is_sensitive),
            [(s.name, s.value, s.source) for s in one.synonyms],
        )
        for one in result.configs
    }


def listed(client: SocketClient, *kinds: int) -> set[tuple[int, str]]:
    answer = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, m.ListConfigResourcesRequest(list(kinds)))
    return {(one.resource_type, one.resource_name) for one in answer.config_resources}


def test_settings_of_a_group(broker: Broker) -> None:
    with SocketClient(broker) as client:
        before = described(client, GROUP, "g")
        assert len(before) == 17
        session = "consumer.session.timeout.ms"
        of_broker = (f"group.{session}", "45000", 5)
        assert before[session] == ("45000", 5, 3, False, False, [of_broker])
        assert before["share.isolation.level"] == (
            *("read_uncommitted", 5, 2, False, False),
            [("share.isolation.level", "read_uncommitted", 5)],
        )
        assert alter(client, GROUP, "g", (session, SET, "50000")) == (NONE, None)
        eventually(lambda: (GROUP, "g") in listed(client, GROUP), "it is listed")
        after = described(client, GROUP, "g")
        assert after.pop(session) == ("50000", 8, 3, False, False, [(session, "50000", 8), of_broker])
        assert after.items() <= before.items()
        assert alter(client, GROUP, "g", (session, DELETE, None)) == (NONE, None)
        eventually(lambda: (GROUP, "g") not in listed(client), "it is not listed any more")


def test_a_members_next_heartbeat_has_the_altered_interval(broker: Broker) -> None:
    interval, assigned = "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms"
    joining = m.ConsumerGroupHeartbeatRequest("live", "m", 0, rebalance_timeout_ms=60_000)
    joining.subscribed_topic_names, joining.topic_partitions = ["no-such-topic"], []
    epoch = 0

    def heartbeat() -> Any:
        nonlocal epoch
        request = m.ConsumerGroupHeartbeatRequest("live", "m", epoch, topic_partitions=None)
        answer = client.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request if epoch else joining)
        epoch = answer.member_epoch
        return answer

    with SocketClient(broker) as client:
        client.ask(ApiKey.FIND_COORDINATOR, 4, m.FindCoordinatorRequest(coordinator_keys=["live"]))
        eventually(lambda: heartbeat().error_code == NONE, "the member has joined")
        assert heartbeat().heartbeat_interval_ms == 5000
        changes = ((interval, SET, "6000"), (assigned, SET, "0"))
        assert alter(client, GROUP, "live", *changes) == (NONE, None)
        eventually(lambda: heartbeat().heartbeat_interval_ms == 6000, "the interval is altered")
        assert alter(client, GROUP, "live", (interval, DELETE, None), (assigned, DELETE, None)) == (
            NONE,
            None,
        )
        eventually(lambda: heartbeat().heartbeat_interval_ms == 5000, "it is the broker's again")


def test_settings_of_client_metrics(broker: Broker) -> None:
    with SocketClient(broker) as client:
        before = described(client, METRICS, "s")
        assert before["interval.ms"] == ("300000", 5, 3, False, False, [])
        assert (before["match"], before["metrics"]) == (("", 5, 7, False, False, []),) * 2
        changes: list[tuple[str, int, str | None]] = [
            ("interval.ms", SET, "100"),
            ("metrics", SET, "a"),
            ("match", SET, "client_id=x.*"),
        ]
        assert alter(client, METRICS, "s", *changes) == (NONE, None)
        assert alter(client, METRICS, "s", ("metrics", APPEND, "b"))[0] == CONFIG, (
            "Kafka takes it for no list"
        )
        eventually(lambda: described(client, METRICS, "s")["metrics"][0] == "a", "it is described")
        after = described(client, METRICS, "s")
        assert after["interval.ms"] == ("100", 7, 3, False, False, [("interval.ms", "100", 7)])
        assert (METRICS, "s") in listed(client)
        v0 = client.ask(ApiKey.LIST_CONFIG_RESOURCES, 0, m.ListConfigResourcesRequest()).config_resources
        assert [one.resource_name for one in v0] == ["s"]
        assert alter(client, METRICS, "s", *((name, DELETE, None) for name in after)) == (NONE, None)
        eventually(lambda: not listed(client, METRICS), "it is not listed any more")


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "error"),
    [
        (GROUP, "", "consumer.session.timeout.ms", "45000", REQUEST),
        (GROUP, "g", "no.such", "1", CONFIG),
        (GROUP, "g", "consumer.session.timeout.ms", "many", CONFIG),
        (GROUP, "g", "consumer.session.timeout.ms", "44999", CONFIG),
        (GROUP, "g", "consumer.session.timeout.ms", "60001", CONFIG),
        (GROUP, "g", "consumer.heartbeat.interval.ms", "0", CONFIG),
        (GROUP, "g", "consumer.heartbeat.interval.ms", "4999", CONFIG),
        (GROUP, "g", "consumer.assignment.interval.ms", "15001", CONFIG),
        (GROUP, "g", "share.delivery.count.limit", "11", CONFIG),
        (GROUP, "g", "share.record.lock.duration.ms", "14999", CONFIG),
        (GROUP, "g", "share.partition.max.record.locks", "4001", CONFIG),
        (GROUP, "g", "share.auto.offset.reset", "none", CONFIG),
        (GROUP, "g", "share.auto.offset.reset", "by_duration:", CONFIG),
        (GROUP, "g", "share.auto.offset.reset", "by_duration:PT", CONFIG),
        (GROUP, "g", "share.auto.offset.reset", "by_duration:-PT1H", CONFIG),
        (GROUP, "g", "share.isolation.level", "none", CONFIG),
        (GROUP, "g", "share.renew.acknowledge.enable", "maybe", CONFIG),
        (GROUP, "g", "streams.num.standby.replicas", "3", CONFIG),
        (GROUP, "g", "streams.initial.rebalance.delay.ms", "-1", CONFIG),
        (METRICS, "", "interval.ms", "1000", REQUEST),
        (METRICS, "s", "no.such", "1", REQUEST),
        (METRICS, "s", "interval.ms", "99", REQUEST),
        (METRICS, "s", "interval.ms", "3600001", REQUEST),
        (METRICS, "s", "interval.ms", "many", CONFIG),
        (METRICS, "s", "match", "client_id", CONFIG),
        (METRICS, "s", "match", "client_id=", CONFIG),
        (METRICS, "s", "match", "client_id=a=b", CONFIG),
        (METRICS, "s", "match", "client_id=(", CONFIG),
        (METRICS, "s", "match", "other=a", CONFIG),
    ],
)
def test_settings_that_are_refused(
    broker: Broker, kind: int, name: str, key: str, value: str, error: ErrorCode
) -> None:
    with SocketClient(broker) as client:
        code, message = alter(client, kind, name, (key, SET, value))
        assert ErrorCode(code) is error
        assert message


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (GROUP, "consumer.session.timeout.ms", "60000"),
        (GROUP, "consumer.assignment.interval.ms", "0"),
        (GROUP, "share.auto.offset.reset", "earliest"),
        (GROUP, "share.auto.offset.reset", "by_duration:P3D"),
        (GROUP, "share.auto.offset.reset", "by_duration:PT1H30M0.5S"),
        (GROUP, "share.delivery.count.limit", "10"),
        (GROUP, "share.isolation.level", "read_committed"),
        (GROUP, "share.renew.acknowledge.enable", "FALSE"),
        (GROUP, "streams.num.standby.replicas", "2"),
        (METRICS, "interval.ms", "3600000"),
        (METRICS, "match", "client_software_name=Java,client_software_version=11.1.*"),
        (METRICS, "match", ""),
        (METRICS, "metrics", "*"),
    ],
)
def test_settings_that_are_taken(broker: Broker, kind: int, key: str, value: str) -> None:
    with SocketClient(broker) as client:
        assert alter(client, kind, "taken", (key, SET, value)) == (NONE, None)
        assert alter(client, kind, "taken", (key, DELETE, None)) == (NONE, None)
