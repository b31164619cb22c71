"""mpbroker's own commands are clients like others; what a broker finds too large they cut."""

from __future__ import annotations

import json
import re

import pytest

from ops.bench.brokers import Broker
from tests.support.client_tools import kafka_tool
from tests.support.own_cli import OwnCli
from tests.support.real_brokers import create_topic

OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
SYNONYMS = r"^  (\S+?)=.* synonyms=\{(\w+:[^}]*)\}$"
MAX_MESSAGE_BYTES = 20_000
LINES = b"".join(b"%06d %s\n" % (number, b"x" * (number % 300)) for number in range(6000))


def said(broker: Broker, *arguments: str, lines: bytes = b"", code: int = 0) -> list[str]:
    """The lines of a command: of standard output, or of standard error where it fails."""
    done = OwnCli(broker.bootstrap)(*arguments, code=code, stdin=lines)
    return (done.err if code else done.out).splitlines()


@pytest.mark.parametrize(("acks", "codec"), [("all", "gzip"), ("1", "none")])
def test_large_batches_into_a_topic_for_small_ones(broker: Broker, acks: str, codec: str) -> None:
    topic = f"small-{acks}-{codec}"
    create_topic(broker.bootstrap, topic, 1, {"max.message.bytes": str(MAX_MESSAGE_BYTES)})
    own = OwnCli(broker.bootstrap)
    assert own("produce", topic, "--acks", acks, "-z", codec, stdin=LINES).err == ""
    assert own("consume", topic, "--from-beginning", "-e").out == LINES.decode()


def test_a_line_that_is_too_large_is_named(broker: Broker) -> None:
    create_topic(broker.bootstrap, "small", 1, {"max.message.bytes": str(MAX_MESSAGE_BYTES)})
    lines = b"first\n" + b"y" * 2 * MAX_MESSAGE_BYTES + b"\nlast\n"
    (refused,) = said(broker, "produce", "small", lines=lines, code=1)
    assert "partition small-0: the record that begins with 'yyy" in refused
    assert refused.endswith("(MESSAGE_TOO_LARGE); 1 record is written")
    assert said(broker, "consume", "small", "--from-beginning", "-e") == ["first"]


def described(broker: Broker, topic: str) -> tuple[dict[str, str], list[int]]:
    """Settings of its own, and where each partition begins."""
    (one,) = json.loads("".join(said(broker, "topic", "describe", topic, "--json")))
    return one["configs"], [row["start_offset"] for row in one["partitions"]]


def test_a_topic_is_altered(broker: Broker) -> None:
    create_topic(broker.bootstrap, "altered", 1, {"retention.ms": "5000", "segment.bytes": "1048576"})
    changes = ["-c", "retention.ms=7000", "-c", "cleanup.policy=compact", "--delete-config", "segment.bytes"]
    settings, partitions = said(broker, "topic", "alter", "altered", *changes, "-p", "3")
    now = "retention.ms=7000, cleanup.policy=compact, segment.bytes reset to the broker's default"
    assert settings == f"altered topic altered: {now}"
    assert partitions == "topic altered has 3 partition(s)"
    wanted = {"retention.ms": "7000", "cleanup.policy": "compact"}
    assert described(broker, "altered") == (wanted, [0, 0, 0])

    (fewer,) = said(broker, "topic", "alter", "altered", "-p", "2", code=2)
    assert fewer.endswith("(INVALID_PARTITIONS)")
    (unknown,) = said(broker, "topic", "alter", "altered", "-c", "retenton.ms=1", code=2)
    assert "(INVALID_CONFIG); did you mean retention.ms?" in unknown
    for change in (["-c", "retention.ms=1"], ["-p", "2"]):
        (missing,) = said(broker, "topic", "alter", "nope", *change, code=1)
        assert missing == "mpbroker: topic nope: does not exist (UNKNOWN_TOPIC_OR_PARTITION)"
    assert described(broker, "altered") == (wanted, [0, 0, 0])


def test_records_are_deleted(broker: Broker) -> None:
    create_topic(broker.bootstrap, "shortened", 2)
    for partition, lines in (("0", b"a\n" * 5), ("1", b"b\n" * 3)):
        said(broker, "produce", "shortened", "-p", partition, lines=lines)
    before = ["topic", "delete-records", "shortened", "--before"]
    assert said(broker, *before, "2", "--partition", "0") == ["shortened-0: log start offset 2"]
    done = OwnCli(broker.bootstrap)(*before, "4", code=2)
    assert done.out == "shortened-0: log start offset 4\n"
    assert done.err == "mpbroker: shortened-1: no such offset 4, it has 0 to 3\n"
    assert described(broker, "shortened")[1] == [4, 0]
    assert said(broker, "consume", "shortened", "-o", "beginning", "-e", "-p", "0") == ["a"]
    assert said(broker, *before, "latest") == [
        "shortened-0: log start offset 5",
        "shortened-1: log start offset 3",
    ]
    assert described(broker, "shortened")[1] == [5, 3]
    (missing,) = said(broker, *before, "1", "--partition", "7", code=2)
    assert missing == "mpbroker: topic shortened has no partition 7, only 0 to 1"


def test_settings_are_those_that_kafkas_tool_shows(broker: Broker) -> None:
    create_topic(broker.bootstrap, "set", 1, {"segment.bytes": "1048576"})
    said(broker, "config", "set", "--topic", "set", "retention.ms=7000", "cleanup.policy=compact,delete")
    said(broker, "config", "unset", "--topic", "set", "segment.bytes")
    said(broker, "config", "set", "--group", "set", "consumer.assignment.interval.ms=0")
    said(broker, "config", "set", "--client-metrics", "set", "metrics=a,b", "interval.ms=5000")
    for kind, name, flags in (
        ("topics", "set", ["--topic", "set"]),
        ("client-metrics", "set", ["--client-metrics", "set"]),
        ("groups", "set", ["--group", "set"]),
        ("brokers", "1", ["--broker", "1"]),
    ):
        entity = ("--entity-type", kind, "--entity-name", name)
        printed = kafka_tool(CONFIGS, "--bootstrap-server", broker.bootstrap, *entity, "--describe", "--all")
        theirs = dict(re.findall(r"^  (\S+?)=(.*?) sensitive=", printed, re.MULTILINE))
        ours = json.loads("".join(said(broker, "config", "get", *flags, "--all", "--json")))
        assert {row["name"]: str(row["value"]).replace("None", "null") for row in ours} == theirs
        sources = {key: found.split(":")[0] for key, found in re.findall(SYNONYMS, printed, re.MULTILINE)}
        assert {row["name"]: row["source"] for row in ours if row["synonyms"]} == sources


def test_offsets_and_directories_are_those_that_kafkas_tools_show(broker: Broker) -> None:
    create_topic(broker.bootstrap, "measured", 2)
    said(broker, "produce", "measured", "-p", "1", lines=b"x\n" * 7)
    server = ("--bootstrap-server", broker.bootstrap)
    printed = kafka_tool(OFFSETS, *server, "--topic", "measured")
    rows = json.loads("".join(said(broker, "offsets", "measured", "--json")))
    assert [f"measured:{row['partition']}:{row['latest']}" for row in rows] == printed.splitlines()
    printed = kafka_tool(LOG_DIRS, *server, "--describe", "--topic-list", "measured")
    (told,) = json.loads(printed.splitlines()[-1])["brokers"]
    theirs = {
        (one["partition"], one["size"], one["offsetLag"], one["isFuture"])
        for one in told["logDirs"][0]["partitions"]
    }
    (ours,) = json.loads("".join(said(broker, "log-dirs", "measured", "--json")))
    assert {
        (f"{row['topic']}-{row['partition']}", row["size"], row["offset_lag"], row["is_future"])
        for row in ours["partitions"]
    } == theirs
    assert ours["log_dir"] == told["logDirs"][0]["logDir"]


def test_the_cluster_is_the_one_that_kafkas_tools_show(broker: Broker) -> None:
    ours = json.loads("".join(said(broker, "cluster", "--api-versions", "--json")))
    server = ("--bootstrap-server", broker.bootstrap)
    assert kafka_tool(CLUSTER, "cluster-id", *server).split() == ["Cluster", "ID:", ours["cluster_id"]]
    printed = kafka_tool(FEATURES, *server, "describe")
    found = re.findall(r"Feature: (\S+)\s.*MaxVersion: (\S+)\s+FinalizedVersionLevel: (\S+)", printed)
    levels = {name: (largest, level) for name, largest, level in found if name != "metadata.version"}
    assert {
        row["feature"]: (str(row["max_version"]), str(row["finalized"]))
        for row in ours["features"]
        if row["feature"] != "metadata.version"
    } == levels
    assert levels["transaction.version"] == ("2", "2")
    assert levels["group.version"] == ("1", "1")
    printed = kafka_tool(API_VERSIONS, *server)
    theirs = re.findall(r"\w+\((\d+)\): (\d+)(?: to (\d+))? \[usable", printed)
    assert {(key, low, high or low) for key, low, high in theirs} == {
        (str(row["key"]), str(row["min_version"]), str(row["max_version"])) for row in ours["apis"]
    }


def test_headers_of_every_record(broker: Broker) -> None:
    create_topic(broker.bootstrap, "headed", 1)
    # So many that batches are cut by what headers take.
    large = ["-H", f"more={'x' * 2000}"]
    said(broker, "produce", "headed", "-H", "a=1", "-H", "b", "-H", "c=d=e", *large, lines=b"v\n" * 1000)
    rows = said(broker, "consume", "headed", "-o", "beginning", "-e", "--json")
    assert len(rows) == 1000
    assert json.loads(rows[-1])["headers"][:3] == [["a", "1"], ["b", None], ["c", "d=e"]]
