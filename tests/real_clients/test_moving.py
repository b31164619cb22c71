"""Directories go from mpbroker to Apache Kafka and back, and from Apache Kafka to mpbroker and back.

Clients see the same at each station: topics with their ids and settings, records, committed offsets, users,
quotas and permissions. Of the transactions of both protocols that were open at the first station, some are
committed at the last one by their producers; others find their producers fenced.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from mpbroker.migration.from_kafka import import_
from mpbroker.migration.to_kafka import export
from mpbroker.storage.directory_layout import read_properties
from ops.bench.brokers import HOST, Broker, Kafka, Mpbroker
from tests.support.client_adapters import confluent_read, confluent_write
from tests.support.client_samples import by_partition, sample_records
from tests.support.client_tools import dump, eventually
from tests.support.committed_offsets import UNCOMMITTED, commit_offset, ends, is_pending, offset_of, read
from tests.support.file_trees import tree
from tests.support.polling import PATIENCE_S
from tests.support.quota_client import alter, described
from tests.support.real_brokers import TRANSACTIONS, create_topic, served, with_settings
from tests.support.transactional_clients import (
    Confluent,
    Fenced,
    Open,
    Program,
    Transactional,
    commits,
    sends,
)

SETTINGS = {
    **TRANSACTIONS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ORDERS, GROUP, PARTITIONS, COUNT = "orders", "readers", 2, 40
# Topics with an open transaction, by what becomes of it; each is the name of its transactional id and group.
GOES_ON, FENCED = (("confluent-goes-on", "java-goes-on"), ("confluent-fenced", "java-fenced"))
# Its transactions, each third one aborted, lie in several segments of Kafka's smallest size.
MIXED, SEGMENT, VALUE = "mixed", {"segment.bytes": str(1 << 20)}, "{} {} ".ljust(1000, ".")
ROUNDS, EACH = 20, 100
KINDS = ("FEATURE_LEVEL", "TOPIC", "PARTITION", "CONFIG", "CLIENT_QUOTA", "USER_SCRAM_CREDENTIAL")
SCRAM = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
RULE = AclBinding(
    ResourceType.TOPIC,
    ORDERS,
    ResourcePatternType.LITERAL,
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)
ANY_RULE = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


@dataclass
class Left:
    """A stopped node's directory, what clients saw there, and the producers of the open transactions."""

    directory: Path
    port: int
    seen: dict[str, Any]
    producers: dict[str, Transactional]


def ours(directory: Path) -> Mpbroker:
    return with_settings(Mpbroker(directory), SETTINGS)


def kafka(directory: Path, *, is_dynamic: bool = True) -> Kafka:
    return with_settings(Kafka(directory, has_dynamic_quorum=is_dynamic), SETTINGS)


def opened(broker: Broker, name: str, java: Program) -> Transactional:
    kind: Open = Confluent if name.startswith("confluent") else java.open
    return kind(broker.bootstrap, name)


def fill(broker: Broker, java: Program) -> dict[str, Transactional]:
    """Make one of each thing. Returns the producers of the open transactions."""
    create_topic(broker.bootstrap, ORDERS, PARTITIONS, {"retention.ms": "999999999"})
    records = sample_records(PARTITIONS, COUNT, seed=5)
    confluent_write(broker.bootstrap, ORDERS, records, "none")
    commit_offset(broker, GROUP, TopicPartition(ORDERS, 0, 7))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_acls([RULE])[RULE].result(PATIENCE_S)
    upsertion = UserScramCredentialUpsertion("alice", SCRAM, b"secret", b"0123456789abcdef")
    admin.alter_user_scram_credentials([upsertion])["alice"].result(PATIENCE_S)
    alter(broker, [("user", "alice"), ("client-id", None)], producer_byte_rate=1000)
    fill_mixed(broker)
    producers = {}
    for name in GOES_ON + FENCED:
        create_topic(broker.bootstrap, name, 1)
        producer = producers[name] = opened(broker, name, java)
        commits(producer, name, "before")
        producer.begin()
        sends(producer, name, "inside")
        producer.offsets(name, name, 0, 9)
    return producers


def fill_mixed(broker: Broker) -> None:
    """Write transactions of two producers that overlap."""
    create_topic(broker.bootstrap, MIXED, 1, SEGMENT)
    writers = [Confluent(broker.bootstrap, f"{MIXED}-{number}") for number in range(2)]
    for writer in writers:
        writer.begin()
    for number in range(ROUNDS):
        writer, kind = writers[number % 2], "kept" if number % 3 else "gone"
        sends(writer, MIXED, *(VALUE.format(kind, each) for each in range(EACH)))
        writer.commit() if number % 3 else writer.abort()
        writer.begin()
    for writer in writers:
        writer.abort()
        writer.close()
    eventually(lambda: len({*ends(broker, MIXED)}) == 1, "their markers are written")


def wait_for_coordinator(broker: Broker) -> None:
    """Wait until the group can be asked for: librdkafka's admin client dies of a coordinator that loads."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})

    def is_there() -> bool:
        try:
            return bool(reader.committed([TopicPartition(ORDERS, 0)], PATIENCE_S))
        except KafkaException:
            return False

    eventually(is_there, "the group's coordinator has loaded it")
    reader.close()


def seen(broker: Broker) -> dict[str, Any]:
    """What clients see, to be compared with what they see elsewhere."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    names, transacted = [ORDERS, MIXED], GOES_ON + FENCED
    wait_for_coordinator(broker)
    topics = admin.describe_topics(TopicCollection(names))
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    settings = admin.describe_configs(resources)
    users = admin.describe_user_scram_credentials(["alice"])["alice"].result(PATIENCE_S)
    return {
        "ids": {name: str(topics[name].result(PATIENCE_S).topic_id) for name in names},
        "settings": [settings[one].result(PATIENCE_S)["retention.ms"].value for one in resources],
        "records": by_partition(confluent_read(broker.bootstrap, ORDERS, PARTITIONS, COUNT)),
        "offset": offset_of(broker, GROUP, ORDERS),
        "users": [(str(one.mechanism), one.iterations) for one in users.scram_credential_infos],
        "quotas": described(broker),
        "rules": admin.describe_acls(ANY_RULE).result(PATIENCE_S),
        "open": {name: ends(broker, name) for name in transacted},
        "committed": {name: read(broker, name) for name in transacted},
        "mixed": read(broker, MIXED)[0],
        "everything": len(read(broker, MIXED, isolation=UNCOMMITTED)[0]),
        "pending": [is_pending(broker, name, name) for name in transacted],
    }


def leave(broker: Broker, java: Program) -> Left:
    with served(broker):
        producers = fill(broker, java)
        found = seen(broker)
    assert found["pending"] == [True] * 4
    assert set(found["open"].values()) == {(2, 3)}
    kept = [VALUE.format("kept", each) for _ in range(2 * ROUNDS // 3) for each in range(EACH)]
    assert (found["mixed"], found["everything"]) == (kept, ROUNDS * EACH)
    assert len(list((broker.log_dir / f"{MIXED}-0").glob("*.txnindex"))) > 1
    assert [len(found[one]) for one in ("users", "quotas", "rules")] == [1, 1, 1]
    return Left(broker.directory, broker.port, found, producers)


def check_and_go_on(broker: Broker, left: Left, java: Program) -> None:
    """At the last station: all is as it was; a transaction is ended by its producer, or by a successor."""
    assert seen(broker) == left.seen
    for name in GOES_ON:
        sends(left.producers[name], name, "behind")
        left.producers[name].commit()
        eventually(lambda name=name: ends(broker, name) == (5, 5), "the transaction has ended")  # type: ignore[misc]
        assert read(broker, name) == {0: ["before", "inside", "behind"]}
        eventually(lambda name=name: offset_of(broker, name, name) == 9, "its offset counts")  # type: ignore[misc]
    for name in FENCED:
        successor = opened(broker, name, java)
        with pytest.raises(Fenced):
            left.producers[name].commit()
        commits(successor, name, "after")
        successor.close()
        eventually(lambda name=name: ends(broker, name) == (6, 6), "both transactions have ended")  # type: ignore[misc]
        assert read(broker, name) == {0: ["before", "after"]}
        eventually(lambda name=name: not is_pending(broker, name, name), "its offset is gone")  # type: ignore[misc]
        assert offset_of(broker, name, name) is None
    for producer in left.producers.values():
        producer.close()
    # Ids of producers are not given out again.
    successor = Confluent(broker.bootstrap, "another")
    commits(successor, ORDERS, "new")
    successor.close()


def moved_in(left: Left) -> Mpbroker:
    broker = ours(left.directory)
    broker.port = left.port
    assert import_([broker.log_dir], is_dry=False).left == []
    return broker


def moved_out(directory: Path, port: int, *, is_dynamic: bool) -> Kafka:
    broker = kafka(directory, is_dynamic=is_dynamic)
    broker.port = port
    export([broker.log_dir], (HOST, broker.controller_port), is_dry=False)
    return broker


@pytest.fixture(scope="module")
def left_by_ours(tmp_path_factory: pytest.TempPathFactory, transacting_java: Program) -> Left:
    directory = tmp_path_factory.mktemp("moving") / "ours"
    directory.mkdir()
    return leave(ours(directory), transacting_java)


@pytest.fixture(scope="module")
def left_by_kafka(tmp_path_factory: pytest.TempPathFactory, transacting_java: Program) -> Left:
    directory = tmp_path_factory.mktemp("moving") / "kafka"
    directory.mkdir()
    return leave(kafka(directory, is_dynamic=False), transacting_java)


def test_kafkas_tools_read_our_metadata(left_by_ours: Left, tmp_path: Path) -> None:
    shutil.copytree(left_by_ours.directory, tmp_path / "copy")
    done = export([tmp_path / "copy" / "data"], (HOST, 9093), is_dry=False)
    log = tmp_path / "copy" / "data" / "__cluster_metadata-0" / f"{0:020d}.log"
    for file in (log, Path(done.files[-1])):
        told = dump("--cluster-metadata-decoder", "--files", str(file))
        for kind in KINDS:
            assert f'"type":"{kind}_RECORD"' in told, kind


def test_kafka_with_voters_starts_on_an_export(left_by_ours: Left, tmp_path: Path) -> None:
    shutil.copytree(left_by_ours.directory, tmp_path / "copy")
    with served(moved_out(tmp_path / "copy", left_by_ours.port, is_dynamic=False)) as broker:
        assert seen(broker) == left_by_ours.seen


@pytest.fixture(scope="module")
def kept_by_kafka(left_by_ours: Left) -> Left:
    """What mpbroker left, after Kafka has had it."""
    with served(moved_out(left_by_ours.directory, left_by_ours.port, is_dynamic=True)) as broker:
        assert seen(broker) == left_by_ours.seen
    return left_by_ours


def test_from_ours_to_kafka(kept_by_kafka: Left) -> None:
    assert read_properties(kept_by_kafka.directory / "data")


def test_and_back_to_ours(kept_by_kafka: Left, transacting_java: Program) -> None:
    with served(moved_in(kept_by_kafka)) as broker:
        check_and_go_on(broker, kept_by_kafka, transacting_java)


def test_a_dry_run_changes_nothing_of_kafkas(left_by_kafka: Left) -> None:
    log_dir = left_by_kafka.directory / "data"
    before = tree(log_dir)
    done = import_([log_dir], is_dry=True)
    assert (done.users, done.acls, done.quotas, done.left) == (1, 1, 1, [])
    assert tree(log_dir) == before


@pytest.fixture(scope="module")
def kept_by_ours(left_by_kafka: Left) -> Left:
    """What Kafka left, after mpbroker has had it."""
    with served(moved_in(left_by_kafka)) as broker:
        assert seen(broker) == left_by_kafka.seen
    return left_by_kafka


def test_from_kafka_to_ours(kept_by_ours: Left) -> None:
    assert read_properties(kept_by_ours.directory / "data")


def test_and_back_to_kafka(kept_by_ours: Left, transacting_java: Program) -> None:
    with served(moved_out(kept_by_ours.directory, kept_by_ours.port, is_dynamic=True)) as broker:
        check_and_go_on(broker, kept_by_ours, transacting_java)
