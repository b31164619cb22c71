"""Clients that know only the broker of a standby: they learn of the one that leads, and work with that."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from mpbroker.ipc.mirror import MirrorPointer, write_mirror
from mpbroker.ipc.nodes import NODES_FILE
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import MetadataRequest, ProduceRequest
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.remote.ledger.registrations import Registration, register
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.storage.names import META_PROPERTIES
from ops.bench.brokers import HOST, Mpbroker
from tests.support.client_adapters import confluent_read, confluent_write, java_consume
from tests.support.client_samples import Record
from tests.support.client_tools import eventually, kafka_tool
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import control, create_topic, served
from tests.support.socket_client import SocketClient

TOPICS = "org.apache.kafka.tools.TopicCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


class Pair(NamedTuple):
    leader: Mpbroker
    face: Mpbroker


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A broker, and the face of a standby whose mirror is the directory of that broker itself."""
    store = tmp_path_factory.mktemp("store")
    leader, face = (Mpbroker(tmp_path_factory.mktemp(name)) for name in ("leader", "face"))
    remote = (
        *("-o", "remote.log.storage.system.enable=true"),
        *("-o", f"mpbroker.remote.url=file://{store}"),
    )
    leader.flags = (*remote, "-o", "mpbroker.remote.lease.ms=1000")
    face.flags = (
        *remote,
        "-o",
        "mpbroker.remote.acks=ledger",
        "-o",
        "node.id=2",
        "--follow",
        str(face.log_dir),
    )
    address = {"PLAINTEXT": (HOST, face.port)}
    register(DirectoryStore(store), Registration(2, HOST, "", address, 0, 1))
    with served(leader):
        create_topic(leader.bootstrap, "orders", 2)
        eventually(lambda: len(named(leader)) == 2, "the leader names the standby")
        face.log_dir.mkdir()
        lines = (leader.log_dir / META_PROPERTIES).read_text().splitlines()
        (cluster,) = (line for line in lines if line.startswith("cluster.id="))
        (face.log_dir / META_PROPERTIES).write_text(f"version=1\n{cluster}\nnode.id=2\n")
        shutil.copy(leader.log_dir / NODES_FILE, face.log_dir)
        write_mirror(face.log_dir, MirrorPointer(1, [str(leader.log_dir)]))
        with served(face):
            yield Pair(leader, face)


def named(broker: Mpbroker) -> dict[int, int]:
    """The ports of all brokers, by id, as this one names them."""
    with SocketClient(broker) as client:
        response = client.ask(ApiKey.METADATA, 12, MetadataRequest([]))
    return {one.node_id: one.port for one in response.brokers}


def test_librdkafka_works_with_the_leader(pair: Pair) -> None:
    metadata = AdminClient({"bootstrap.servers": pair.face.bootstrap}).list_topics(timeout=PATIENCE_S)
    ports = {one.id: one.port for one in metadata.brokers.values()}
    assert ports == named(pair.leader) == named(pair.face) == {1: pair.leader.port, 2: pair.face.port}
    assert metadata.controller_id == 1
    partitions = metadata.topics["orders"].partitions.values()
    assert [(p.id, p.leader, p.replicas, p.isrs, p.error) for p in partitions] == [
        (number, 1, [1], [1], None) for number in range(2)
    ]
    record = Record(0, b"key", b"value", (), 1_700_000_000_000)
    assert confluent_write(pair.face.bootstrap, "orders", [record], "none") == [0]
    (read,) = confluent_read(pair.face.bootstrap, "orders", 2, 1)
    assert (read.record.key, read.record.value) == (b"key", b"value")


def test_java_works_with_the_leader(pair: Pair) -> None:
    def tool(name: str, *arguments: str) -> str:
        return kafka_tool(name, "--bootstrap-server", pair.face.bootstrap, *arguments)

    described = tool(TOPICS, "--describe", "--topic", "orders")
    assert described.count("Leader: 1\tReplicas: 1\tIsr: 1") == 2
    endpoints = kafka_tool(CLUSTER, "list-endpoints", "--bootstrap-server", pair.face.bootstrap)
    assert all(f"{HOST} {port} " in endpoints for port in (pair.leader.port, pair.face.port))
    assert "LeaderId:               1" in tool(QUORUM, "describe", "--status")
    # The controller is the leader, which also tells of the topic that the face does not know yet.
    tool(TOPICS, "--create", "--topic", "by-java", "--partitions", "1")
    kafka_tool(PRODUCER, "--bootstrap-server", pair.face.bootstrap, "--topic", "by-java", stdin=b"of java\n")
    limits = ("--group", "g", "--from-beginning", "--max-messages", "1")
    assert java_consume(pair.face.bootstrap, "by-java", *limits) == ["of java"]
    assert tool(GROUPS, "--list").split() == ["g"]


def test_a_face_refuses_records_and_says_what_it_is(pair: Pair) -> None:
    partition = ProduceRequest.PartitionProduceData(0, build_batch([NewRecord(value=b"v")]))
    topic = ProduceRequest.TopicProduceData(name="orders", partition_data=[partition])
    with SocketClient(pair.face) as client:
        response = client.ask(ApiKey.PRODUCE, 7, ProduceRequest(None, 1, 1000, [topic]))
    ((answer,),) = (one.partition_responses for one in response.responses)
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert control(pair.face).call("ready") == {"ready": True, "problems": [], "standby": True}
    status = control(pair.face).call("status")
    assert status["standby"]
    assert not {one["name"] for one in status["processes"]} & {"scrubber", "cleaner", "tier"}


def test_a_new_topic_of_the_leader_is_known_once_the_mirror_has_it(pair: Pair) -> None:
    create_topic(pair.leader.bootstrap, "later", 1)
    write_mirror(pair.face.log_dir, MirrorPointer(2, [str(pair.leader.log_dir)]))
    admin = AdminClient({"bootstrap.servers": pair.face.bootstrap})
    eventually(lambda: "later" in admin.list_topics(timeout=PATIENCE_S).topics, "the topic is known")
