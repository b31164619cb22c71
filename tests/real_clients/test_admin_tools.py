"""Kafka's tools for administrators, and calls of other clients, where one node has little to tell.

The tests state what Apache Kafka does, so they run against it, too.
"""

from __future__ import annotations

import json
import re
from contextlib import closing

import kafka
import kafka.admin
import pytest

from ops.bench.brokers import Broker
from tests.support.client_adapters import Franz
from tests.support.client_tools import ToolError, eventually, kafka_tool
from tests.support.real_brokers import TopicMaker

ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
TOPICS = "org.apache.kafka.tools.TopicCommand"


def tool(broker: Broker, name: str, *arguments: str) -> str:
    return kafka_tool(name, "--bootstrap-server", broker.bootstrap, *arguments)


def test_no_partition_needs_an_election(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(2)
    of_kind = ("--election-type", "preferred")
    one = ("--topic", topic, "--partition", "1")
    said = tool(broker, ELECTION, *of_kind, *one)
    assert f"Valid replica already elected for partitions {topic}-1" in said
    assert topic not in tool(broker, ELECTION, *of_kind, "--all-topic-partitions")
    with pytest.raises(ToolError, match=f"No such partition as {topic}-2"):
        tool(broker, ELECTION, "--election-type", "unclean", "--topic", topic, "--partition", "2")


def test_log_levels_are_altered_and_described(broker: Broker) -> None:
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "1")
    tool(broker, CONFIGS, *loggers, "--alter", "--add-config", "root=ERROR")
    assert "root=ERROR sensitive=false" in tool(broker, CONFIGS, *loggers, "--describe")
    tool(broker, CONFIGS, *loggers, "--alter", "--add-config", "mpbroker.coordinator.groups=DEBUG")
    said = tool(broker, CONFIGS, *loggers, "--describe")
    assert "mpbroker.coordinator.groups=DEBUG sensitive=false" in said
    assert "mpbroker.coordinator=ERROR sensitive=false" in said
    tool(broker, CONFIGS, *loggers, "--alter", "--delete-config", "mpbroker.coordinator.groups")
    assert "mpbroker.coordinator.groups=ERROR sensitive=false" in tool(
        broker, CONFIGS, *loggers, "--describe"
    )
    with pytest.raises(ToolError, match="Cannot set the log level of root to LOUD"):
        tool(broker, CONFIGS, *loggers, "--alter", "--add-config", "root=LOUD")
    tool(broker, CONFIGS, *loggers, "--alter", "--add-config", "root=INFO")


def test_settings_of_a_group(broker: Broker) -> None:
    group = (CONFIGS, "--entity-type", "groups", "--entity-name", "configured")
    session, interval = "consumer.session.timeout.ms", "consumer.assignment.interval.ms"
    nothing = "The group 'configured' doesn't exist and doesn't have dynamic config."
    assert nothing in tool(broker, *group, "--describe")
    altered = tool(broker, *group, "--alter", "--add-config", f"{session}=50000,{interval}=7")
    assert "Completed updating config for group configured." in altered

    def lines(*arguments: str) -> list[str]:
        return tool(broker, *group, "--describe", *arguments).splitlines()

    def line(key: str, value: str, own: str = "") -> str:
        beneath = {session: "45000", interval: "1000"}[key]
        synonyms = f"{own}DEFAULT_CONFIG:group.{key}={beneath}"
        return f"  {key}={value} sensitive=false synonyms={{{synonyms}}}"

    own = {key: f"DYNAMIC_GROUP_CONFIG:{key}={value}, " for key, value in ((session, 50000), (interval, 7))}
    eventually(lambda: len(lines()) == 3, "both settings are described")
    assert lines()[0] == "Dynamic configs for group configured are:"
    assert set(lines()[1:]) == {line(session, "50000", own[session]), line(interval, "7", own[interval])}
    everything = lines("--all")
    assert everything[0] == "All configs for group configured are:"
    assert len(everything) == 18
    assert line(session, "50000", own[session]) in everything
    renew = "share.renew.acknowledge.enable"
    assert f"  {renew}=true sensitive=false synonyms={{DEFAULT_CONFIG:{renew}=true}}" in everything
    refused = (
        "consumer.session.timeout.ms must be less than or equal to group.consumer.max.session.timeout.ms"
    )
    with pytest.raises(ToolError, match=refused):
        tool(broker, *group, "--alter", "--add-config", f"{session}=60001")
    tool(broker, *group, "--alter", "--delete-config", f"{session},{interval}")
    eventually(lambda: nothing in tool(broker, *group, "--describe"), "it has no settings any more")


def test_subscriptions_to_client_metrics(broker: Broker) -> None:
    name = ("--name", "told")
    nothing = "The client metric resource told doesn't exist and doesn't have dynamic config.\n"
    assert tool(broker, CLIENT_METRICS, "--describe", *name) == nothing
    some = ("--metrics", "org.apache.kafka.producer.,a.", "--match", "client_id=b.*,client_source_port=1")
    said = tool(broker, CLIENT_METRICS, "--alter", *name, "--interval", "5000", *some)
    assert said == "Altered client metrics config for told.\n"

    def described(*of: str) -> set[str]:
        head, *lines = tool(broker, CLIENT_METRICS, "--describe", *of).splitlines()
        assert head == "Client metrics configs for told are:"
        return set(lines)

    metrics, match = "org.apache.kafka.producer.,a.", "client_id=b.*,client_source_port=1"
    wanted = {"  interval.ms=5000", f"  metrics={metrics}", f"  match={match}"}
    eventually(lambda: tool(broker, CLIENT_METRICS, "--list") == "told\n", "it is listed")
    eventually(lambda: described(*name) == wanted, "it is described")
    assert described() == wanted
    tool(broker, CLIENT_METRICS, "--alter", *name, "--interval", "", "--match", "")
    wanted = {"  interval.ms=300000", f"  metrics={metrics}", "  match="}
    eventually(lambda: described(*name) == wanted, "what is empty has its default again")
    with pytest.raises(ToolError, match="Illegal client matching pattern: client_name=x"):
        tool(broker, CLIENT_METRICS, "--alter", *name, "--match", "client_name=x")
    with pytest.raises(ToolError, match=r"interval must be between 100 and 3600000 \(1 hour\)"):
        tool(broker, CLIENT_METRICS, "--alter", *name, "--interval", "99")
    said = tool(broker, CLIENT_METRICS, "--delete", *name)
    assert said == "Deleted client metrics config for told.\n"
    eventually(lambda: tool(broker, CLIENT_METRICS, "--describe", *name) == nothing, "it is deleted")
    said = tool(broker, CLIENT_METRICS, "--alter", "--generate-name", "--metrics", "*")
    made = re.fullmatch(r"Altered client metrics config for (\S{22})\.\n", said)
    assert made is not None, said
    tool(broker, CLIENT_METRICS, "--delete", f"--name={made[1]}")
    eventually(lambda: tool(broker, CLIENT_METRICS, "--list") == "\n", "none is left")


@pytest.mark.parametrize("kind", ["groups", "client-metrics"])
def test_nothing_has_settings_of_its_own(broker: Broker, kind: str) -> None:
    said = tool(broker, CONFIGS, "--entity-type", kind, "--describe")
    assert "Dynamic configs for" not in said
    if kind == "client-metrics":
        assert "Error" not in tool(broker, CLIENT_METRICS, "--list")


def test_features_keep_their_levels(broker: Broker) -> None:
    assert re.search(
        r"metadata\.version .*FinalizedVersionLevel: 4\.3-IV0", tool(broker, FEATURES, "describe")
    )
    same = ("--feature", "transaction.version=2")
    assert tool(broker, FEATURES, "upgrade", *same) == "transaction.version was upgraded to 2.\n"
    dry = tool(broker, FEATURES, "upgrade", *same, "--feature", "metadata.version=30", "--dry-run")
    assert dry == "metadata.version can be upgraded to 30.\ntransaction.version can be upgraded to 2.\n"
    assert "was downgraded to 2" in tool(broker, FEATURES, "downgrade", *same)
    for command, feature, why in (
        ("upgrade", "group.version=7", "Local controller 1 only supports versions 0-1"),
        ("upgrade", "transaction.version=1", "Can't downgrade the version of this feature without setting"),
        ("upgrade", "nonsense=1", "Local controller 1 does not support this feature"),
        ("disable", "nonsense", "Could not disable nonsense. .*Feature nonsense not found"),
    ):
        with pytest.raises(ToolError, match=why):
            tool(broker, FEATURES, command, "--feature", feature)


def test_the_quorum_is_one_node(broker: Broker, new_topic: TopicMaker) -> None:
    def status() -> dict[str, str]:
        lines = tool(broker, QUORUM, "describe", "--status").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    before = status()
    new_topic(1)
    after = status()
    assert int(before["HighWatermark"]) < int(after["HighWatermark"])
    assert (after["LeaderId"], after["MaxFollowerLag"], after["CurrentObservers"]) == ("1", "0", "[]")
    (voter,) = json.loads(after["CurrentVoters"])
    assert (voter["id"], len(voter["endpoints"])) == (1, 1)
    _, row = tool(broker, QUORUM, "describe", "--replication", "--human-readable").splitlines()
    node, _, end, lag, _, _, role = re.split(r"\s*\t", row.strip())
    assert (node, lag, role) == ("1", "0", "Leader")
    assert int(end) >= int(after["HighWatermark"])


def test_no_other_broker_is_registered(broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    _, row = kafka_tool(CLUSTER, "list-endpoints", *server).splitlines()
    assert row.split() == ["1", "127.0.0.1", str(broker.port), "null", "unfenced", "broker"]
    with pytest.raises(ToolError, match="Broker ID 7 is not currently registered"):
        kafka_tool(CLUSTER, "unregister", *server, "--id", "7")


def test_java_describes_topics_in_pages(broker: Broker, new_topic: TopicMaker) -> None:
    topics = {new_topic(partitions): partitions for partitions in (5, 1, 3)}
    asked = ("--describe", "--topic", "|".join(topics))
    whole = tool(broker, TOPICS, *asked)
    rows = re.findall(r"Topic: (\S+)\s+Partition: (\d+)\s+Leader: 1\s+Replicas: 1\s+Isr: 1\s+Elr: \s", whole)
    expected = {(name, str(number)) for name, count in topics.items() for number in range(count)}
    assert set(rows) == expected, "Metadata, without Elr, was asked"
    assert len(rows) == 9
    paged = tool(broker, TOPICS, *asked, "--partition-size-limit-per-response", "2")
    assert sorted(paged.splitlines()) == sorted(whole.splitlines())


def test_kafka_python_asks_the_same(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(3)
    with closing(kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        ((found,),) = (one["partitions"] for one in admin.describe_metadata_quorum()["topics"])
        assert (found["error"], found["leader_id"]) == (None, 1)
        assert found["current_voters"][0]["log_end_offset"] >= found["high_watermark"] > 0
        assert admin.update_features({"transaction.version": 2}) == {"transaction.version": "OK"}
        with pytest.raises(kafka.errors.InvalidUpdateVersionError, match="Local controller 1 only supports"):
            admin.update_features({"transaction.version": 9})
        page = admin.describe_topic_partitions([topic], response_partition_limit=2)
        assert page["next_cursor"] == {"topic_name": topic, "partition_index": 2}
        page = admin.describe_topic_partitions([topic], cursor=page["next_cursor"])
        assert [one["partition_index"] for one in page["topics"][0]["partitions"]] == [2]


def test_franz_asks_the_same(broker: Broker, new_topic: TopicMaker, franz: Franz) -> None:
    topic = new_topic(3)
    found = json.loads(franz.run("admin", broker.bootstrap, topic))
    assert found["leader"] == 1
    assert found["end"] >= found["high_watermark"] > 0
    assert found["refused"].startswith("BROKER_ID_NOT_REGISTERED")
    assert found["pages"] == [[0, 1], [2]]
