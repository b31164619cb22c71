"""kafka-reassign-partitions with log_dirs, kafka-log-dirs: partitions move while they are written to."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from mpbroker.protocol.messages import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from mpbroker.storage.names import log_worker_of
from ops.bench.brokers import MPBROKER_COMMAND, Broker, Kafka, Mpbroker
from tests.support.client_tools import ToolError, eventually, kafka_tool
from tests.support.committed_offsets import read
from tests.support.forms import each, pick
from tests.support.polling import PATIENCE_S
from tests.support.produced import produce
from tests.support.real_brokers import create_topic, kill_worker, served
from tests.support.socket_client import SocketClient
from tests.support.worker_load import Load

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
CONFIGS = {"segment.bytes": str(1 << 20), "file.delete.delay.ms": "1000"}
TOPIC, VALUE_BYTES = "t", 1000
MOVES, DYNAMIC_BROKER = "replica.alter.log.dirs.io.max.bytes.per.second", 2


def two_dirs(directory: Path) -> tuple[Path, Path]:
    return directory / "data", directory / "other"


@pytest.fixture(name="two")
def _two(tmp_path: Path) -> Iterator[Broker]:
    dirs = ",".join(map(str, two_dirs(tmp_path)))
    broker: Broker
    if os.environ.get("MPBROKER_TEST_BROKER") == "kafka":
        broker = Kafka(tmp_path, properties=[f"log.dirs={dirs}"])
    else:
        template = MPBROKER_COMMAND.replace("{log_dir}", dirs)
        broker = Mpbroker(
            tmp_path, template=template, flags=("--log-workers", "2", "-o", "log.journal.bytes=1048576")
        )
    with served(broker):
        yield broker


def load_of(broker: Broker) -> Load:
    return Load(broker.bootstrap, TOPIC, value_bytes=VALUE_BYTES)


def described(broker: Broker, topic: str = TOPIC) -> list[tuple[str, int, int, bool]]:
    """(log directory, partition, lag, is future) by Kafka's tool."""
    printed = kafka_tool(
        LOG_DIRS, "--bootstrap-server", broker.bootstrap, "--describe", "--topic-list", topic
    )
    found = json.loads(printed.splitlines()[-1])
    return [
        (each["logDir"], int(one["partition"].rpartition("-")[2]), one["offsetLag"], one["isFuture"])
        for node in found["brokers"]
        for each in node["logDirs"]
        for one in each["partitions"]
    ]


def reassign(broker: Broker, plan: Path, *arguments: str) -> str:
    file = ("--reassignment-json-file", str(plan))
    return kafka_tool(REASSIGN, "--bootstrap-server", broker.bootstrap, *file, *arguments)


def plan_to(broker: Broker, tmp_path: Path, to: str, topic: str = TOPIC) -> Path:
    printed = kafka_tool(LOG_DIRS, "--bootstrap-server", broker.bootstrap, "--describe")
    node = json.loads(printed.splitlines()[-1])["brokers"][0]["broker"]
    partition = {"topic": topic, "partition": 0, "replicas": [node], "log_dirs": [to]}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    return plan


def other_of(tmp_path: Path, here: str) -> str:
    return next(str(each) for each in two_dirs(tmp_path) if str(each) != here)


def throttles(broker: Broker) -> dict[str, str | None]:
    """Return the broker's settings that clients have altered."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (told,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    return {name: one.value for name, one in told.result(PATIENCE_S).items() if one.source == DYNAMIC_BROKER}


def test_a_throttle_of_moves_holds_until_it_is_altered(two: Broker, tmp_path: Path) -> None:
    """Set, changed while the partition moves, and taken back by Kafka's tools."""
    create_topic(two.bootstrap, TOPIC, 1, CONFIGS)
    produce(two.bootstrap, TOPIC, [b"x" * VALUE_BYTES] * 3000)
    ((here, _, _, _),) = described(two)
    plan = plan_to(two, tmp_path, to := other_of(tmp_path, here))
    rates = ("--throttle", "5000000", "--replica-alter-log-dirs-throttle", "20000")
    reassign(two, plan, "--execute", *rates)
    limits = {f"{one}.replication.throttled.rate": "5000000" for one in ("leader", "follower")}
    limits[MOVES] = "20000"
    eventually(lambda: throttles(two) == limits, "the throttles are set")
    assert [each[3] for each in described(two)].count(True) == 1
    of_broker = ("--entity-type", "brokers", "--entity-name", "1", "--alter")
    kafka_tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", two.bootstrap, *of_broker, "--add-config", f"{MOVES}=100000000"),
    )
    eventually(lambda: described(two) == [(to, 0, 0, False)], "it goes on faster")
    assert "completed successfully" in reassign(two, plan, "--verify")
    eventually(lambda: throttles(two) == {}, "the throttles are gone")


def test_a_directory_that_is_none_is_refused(two: Broker, tmp_path: Path) -> None:
    create_topic(two.bootstrap, TOPIC, 1, CONFIGS)
    before = described(two)
    plan = plan_to(two, tmp_path, str(tmp_path / "nowhere"))
    refused = "LogDirNotFoundException: The user-specified log directory is not found"
    with pytest.raises(ToolError, match=refused):
        reassign(two, plan, "--execute")
    assert described(two) == before


def test_killed_on_the_way_it_goes_on(two: Broker, tmp_path: Path) -> None:
    """First the log worker, then the whole broker. A slow copy is seen on its way, and how far it is."""
    if not isinstance(two, Mpbroker):
        pytest.skip("it is about processes of ours")
    two.kill()
    two.flags = (*two.flags, "-o", f"replica.alter.log.dirs.io.max.bytes.per.second={1 << 16}")
    two.start()
    create_topic(two.bootstrap, TOPIC, 1, CONFIGS)
    with load_of(two) as load:
        eventually(lambda: load.sent > 6000, "there is something to copy")
    ((here, _, _, _),) = described(two)
    to = other_of(tmp_path, here)
    reassign(two, plan_to(two, tmp_path, to), "--execute")
    current, future = sorted(described(two), key=lambda each: each[3])
    assert (current[0], current[3]) == (here, False)
    assert (future[0], future[3]) == (to, True)
    assert 0 < future[2] <= load.sent
    kill_worker(two, log_worker_of(TOPIC, 0, 2))
    eventually(lambda: len(described(two)) == 2, "its successor goes on")
    two.kill()
    two.flags = two.flags[:-2]
    two.start()
    eventually(lambda: described(two) == [(to, 0, 0, False)], "it arrives after a restart")
    assert [int(value) for value in read(two, TOPIC)[0]] == list(range(load.sent))


@pytest.fixture(name="beside_a_small_disk")
def _beside_a_small_disk(tmp_path: Path) -> Iterator[Mpbroker]:
    """The second log directory is a small tmpfs, in a mount namespace of the broker's own."""
    namespace = ("unshare", "--user", "--map-root-user", "--mount")
    tried = subprocess.run([*namespace, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine gives no mount namespace: {tried.stderr.strip()}")
    data, other = two_dirs(tmp_path)
    other.mkdir()
    mount = f"sh -c 'mount -t tmpfs -o size=16m tmpfs {other} && exec \"$@\"' sh"
    command = MPBROKER_COMMAND.replace("{log_dir}", f"{data},{other}")
    broker = Mpbroker(
        tmp_path,
        template=f"{' '.join(namespace)} {mount} {command}",
        flags=("-o", "log.journal.bytes=1048576"),
    )
    with served(broker):
        yield broker


def test_a_full_disk_is_waited_for_and_the_partition_is_served(
    beside_a_small_disk: Mpbroker, tmp_path: Path
) -> None:
    broker, (data, other) = beside_a_small_disk, [str(each) for each in two_dirs(tmp_path)]
    create_topic(broker.bootstrap, TOPIC, 1, CONFIGS)
    reassign(broker, plan_to(broker, tmp_path, data), "--execute")
    eventually(lambda: described(broker) == [(data, 0, 0, False)], "it is where there is room")
    with load_of(broker) as load:
        eventually(lambda: load.sent > 20_000, "it is larger than the small disk")
        reassign(broker, plan_to(broker, tmp_path, other), "--execute")
        eventually(
            lambda: f"waits to move to {other}: No space left on device" in broker.output(), "it waits"
        )
        load.goes_on()
    (future,) = [each for each in described(broker) if each[3]]
    assert future[0] == other
    assert future[2] > 0
    reassign(broker, plan_to(broker, tmp_path, data), "--execute")
    assert described(broker) == [(data, 0, 0, False)]


def order(broker: Broker, to: str) -> int:
    """Ask for a move. Kafka's tools take a second each."""
    request = AlterReplicaLogDirsRequest
    topic = request.AlterReplicaLogDirTopic(TOPIC, [0])
    with SocketClient(broker) as client:
        response = client.ask(34, 2, request([request.AlterReplicaLogDir(to, [topic])]))
    return int(response.results[0].partitions[0].error_code)


def where(broker: Broker) -> list[tuple[str, bool]]:
    """(log directory, is future)"""
    with SocketClient(broker) as client:
        response = client.ask(35, 4, DescribeLogDirsRequest(None))
    return [
        (each.log_dir, partition.is_future_key)
        for each in response.results
        for topic in each.topics
        for partition in topic.partitions
        if topic.name == TOPIC
    ]


DEATHS = pick("deaths of a log worker during moves", short=4, long=20)


@each("seed", short=[1], long=range(1, 11))
def test_killed_again_and_again_nothing_is_lost_or_doubled(two: Broker, tmp_path: Path, seed: int) -> None:
    """Its log worker dies at any moment of a move, under a producer and a consumer."""
    if not isinstance(two, Mpbroker):
        pytest.skip("it is about processes of ours")
    create_topic(two.bootstrap, TOPIC, 1, CONFIGS)
    chance = random.Random(seed)
    with load_of(two) as load:
        for _ in range(DEATHS):
            eventually(lambda: [future for _, future in where(two)] == [False], "it is in one directory")
            ((here, _),) = where(two)
            to = other_of(tmp_path, here)
            assert order(two, to) == 0
            die_at = time.monotonic() + chance.choice((0, 0.02, 0.05, 0.1, 0.2))
            while time.monotonic() < die_at:
                where(two)
            kill_worker(two, log_worker_of(TOPIC, 0, 2))
            eventually(lambda to=to: where(two) == [(to, False)], "it arrives all the same")
            load.goes_on()
    assert "is in " not in two.output(), "it was in two directories"
