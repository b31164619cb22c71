"""A broker whose segments go to a directory: uploads, restarts, and kills of its processes."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from mpbroker.ipc.nodes import NODES_FILE, Nodes
from mpbroker.ipc.replaced_files import read_json
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ListOffsetsRequest
from mpbroker.records.batch import checksum
from mpbroker.remote.layout.object_names import parse_object
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.registrations import Registration, register
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.directory import DirectoryStore
from mpbroker.storage.remote_segments import read_remote_segments
from mpbroker.testing import Broker
from tests.support.client_tools import eventually
from tests.support.forms import each, rounds
from tests.support.http_broker import pids, replace
from tests.support.object_store_servers import ObjectStoreServer, object_store_server
from tests.support.polling import PATIENCE_S, random_moment
from tests.support.produced import produce
from tests.support.socket_client import SocketClient

TOPIC = "orders"
VALUE_BYTES = 100_000
# Of two segments and the beginning of a third.
RECORDS = 25


class TieredBroker:
    """A broker with a tiered topic, and the directory that is its object store."""

    def __init__(self, broker: Broker, store: Path) -> None:
        self.broker = broker
        self.store = DirectoryStore(store)
        self.values: list[bytes] = []

    @property
    def directory(self) -> Path:
        return self.broker.log_dir / f"{TOPIC}-0"

    def create(self, config: Mapping[str, str] | None = None) -> None:
        tiered = {"remote.storage.enable": "true", "segment.bytes": "1048576", **(config or {})}
        self.broker.create_topic(TOPIC, 1, tiered)

    def produce(self) -> None:
        values = [os.urandom(VALUE_BYTES) for _ in range(RECORDS)]
        produce(self.broker.bootstrap_servers, TOPIC, values, enable_idempotence=True)
        self.values += values

    def read(self) -> list[bytes]:
        """Consume all records from offset 0 on."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap_servers, "group.id": "g"})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values: list[bytes] = []
        while len(values) < len(self.values):
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{len(values)} of {len(self.values)} records"
            assert message.error() is None, message.error()
            assert message.offset() == len(values)
            values.append(message.value())
        consumer.close()
        return values

    def state(self) -> RemoteState:
        reader = LedgerReader(self.store)
        reader.read_to_end()
        return reader.state

    def added(self) -> list[SegmentAdded]:
        return [one for segments in self.state().segments.values() for one in segments]

    def bases(self) -> list[int]:
        """Return the base offsets of the local segments."""
        return sorted(int(path.stem) for path in self.directory.glob("*.log"))

    def sealed(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))[:-1]

    def settle(self) -> list[SegmentAdded]:
        """Wait until all sealed segments are in the ledger and in the partition's file; return them."""
        wanted = [int(path.stem) for path in self.sealed()]
        eventually(
            lambda: [one.base for one in read_remote_segments(self.directory)] == wanted,
            "all sealed segments are uploaded",
        )
        return self.added()

    def check(self) -> None:
        """Check that the store has all sealed segments, once, and beside them only what nobody names."""
        added = self.settle()
        assert [one.base for one in added] == [int(path.stem) for path in self.sealed()]
        assert all(before.end == after.base for before, after in pairwise(added))
        for one in added:
            log, indexes, manifest = (self.store.get(name) for name in one.objects.all)
            assert log == (self.directory / f"{one.base:020d}.log").read_bytes()
            assert (checksum(log), checksum(indexes)) == (one.log_crc, one.indexes_crc)
            assert manifest
        ids = {one.segment_id for one in added}
        found = [objects for info in self.store.list("") if (objects := parse_object(info.name)) is not None]
        named = [objects for objects in found if objects.segment_id in ids]
        assert len(named) == 3 * len(ids)


SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "20",
    "mpbroker.remote.commit.interval.ms": "10",
    "log.retention.check.interval.ms": "50",
    "log.initial.task.delay.ms": "0",
}


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[TieredBroker]:
    store = tmp_path / "store"
    store.mkdir()
    with Broker(settings={**SETTINGS, "mpbroker.remote.url": f"file://{store}"}) as broker:
        yield TieredBroker(broker, store)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStoreServer]:
    with object_store_server(tmp_path) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def in_bucket(server: ObjectStoreServer) -> Iterator[TieredBroker]:
    """A broker with a bucket. Its server keeps objects as files, and the test reads these."""
    (server.bucket / "prefix").mkdir()
    url = f"s3://{server.bucket.name}/prefix"
    with Broker(settings={**SETTINGS, "mpbroker.remote.url": url}) as broker:
        yield TieredBroker(broker, server.bucket / "prefix")


def test_sealed_segments_are_uploaded_and_a_restart_goes_on(tiered: TieredBroker) -> None:
    tiered.create()
    tiered.produce()
    tiered.check()
    assert len(tiered.added()) == 2
    tiered.broker.stop(keep=True)
    tiered.broker.start()
    tiered.produce()
    tiered.check()
    assert len(tiered.added()) > 3


@pytest.mark.parametrize("name", ["tier", "log 0", "coordinator", "handler 0"])
def test_whoever_is_killed_no_segment_is_lost_or_there_twice(tiered: TieredBroker, name: str) -> None:
    tiered.create()
    tiered.produce()
    for _ in range(2):
        replace(tiered.broker, name)
        tiered.produce()
    tiered.check()
    assert len(tiered.added()) >= len(tiered.values) * VALUE_BYTES // (1 << 20) - 1


def test_a_kill_of_the_whole_broker_leaves_what_a_start_continues(tiered: TieredBroker) -> None:
    tiered.create()
    tiered.produce()
    tiered.broker.kill()
    tiered.broker.start()
    tiered.produce()
    tiered.check()


def test_local_segments_go_when_the_store_has_them_and_no_record_is_lost(tiered: TieredBroker) -> None:
    tiered.create({"local.retention.bytes": "1"})
    for _ in range(2):
        tiered.produce()
        eventually(
            lambda: [one.end for one in tiered.added()][-1:] == tiered.bases(),
            "only the newest segment is local",
        )
        assert tiered.read() == tiered.values
        tiered.broker.kill()
        tiered.broker.start()
        assert tiered.read() == tiered.values
    assert tiered.added()[0].base == 0


@each("seed", short=[1], long=range(1, 11))
def test_whoever_is_killed_at_any_moment_all_records_are_there_once(tiered: TieredBroker, seed: int) -> None:
    """Reads go through what only the store has, what both have and what only the disk has."""
    tiered.create({"local.retention.bytes": str(2 << 20)})
    chance = random.Random(seed)
    for _ in range(rounds(20)):
        producing = threading.Thread(target=tiered.produce)
        producing.start()
        random_moment(chance, 0.5)
        name = chance.choice(["tier", "tier", "log 0", "handler 0", "broker"])
        if name == "broker":
            tiered.broker.kill()
            tiered.broker.start()
        else:
            replace(tiered.broker, name)
        producing.join()
    assert tiered.read() == tiered.values
    eventually(lambda: tiered.bases()[-1:] == [one.end for one in tiered.added()][-1:], "all is uploaded")
    added = tiered.added()
    assert added[0].base == 0
    assert all(before.end == after.base for before, after in pairwise(added))


def test_an_outage_of_the_store_keeps_local_segments_and_is_over_by_itself(
    tiered: TieredBroker, tmp_path: Path
) -> None:
    tiered.create()
    store, away = tmp_path / "store", tmp_path / "away"
    tiered.produce()
    tiered.check()
    store.rename(away)
    tiered.produce()
    eventually(lambda: "the object store fails: " in tiered.broker.logs(), "the log tells of the outage")
    assert tiered.read() == tiered.values
    away.rename(store)
    tiered.check()
    eventually(lambda: "the object store answers again" in tiered.broker.logs(), "and of its end")
    assert tiered.broker.logs().count("the object store fails: ") == 1


def test_a_broker_with_a_standby_serves_while_its_lease_lasts(tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    store.mkdir()
    settings = {**SETTINGS, "mpbroker.remote.url": f"file://{store}", "mpbroker.remote.lease.ms": "1000"}
    with Broker(log_dir=tmp_path / "data", settings=settings) as broker:
        tiered = TieredBroker(broker, store)
        tiered.create()
        addresses = {"PLAINTEXT": ("127.0.0.1", 1)}
        register(tiered.store, Registration(2, "there", "", addresses, 0, 1))
        file = broker.log_dir / NODES_FILE
        eventually(file.exists, "the standby is named")
        assert list(tiered.state().standbys) == [2]
        nodes = read_json(file, Nodes)
        assert nodes is not None
        assert (nodes.leader, [one.id for one in nodes.nodes]) == (1, [1, 2])
        with SocketClient(broker_address(broker)) as connected:
            assert asked(connected) == ErrorCode.NONE
            store.rename(away)
            # Who was connected must not go on asking here.
            assert connected.socket.recv(1) == b""
        eventually(lambda: end_of(broker) == ErrorCode.NOT_LEADER_OR_FOLLOWER, "clients are refused")
        away.rename(store)
        eventually(lambda: end_of(broker) == ErrorCode.NONE, "clients are served")
        assert "the lease has run out" in broker.logs()
        broker.stop(keep=True)
        state = tiered.state()
        assert state.is_released
        assert state.cuts
        # A standby that has not heard of it may still take over: nobody is served without an entry.
        store.rename(away)
        broker.start()
        assert end_of(broker) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        away.rename(store)
        eventually(lambda: end_of(broker) == ErrorCode.NONE, "clients are served")
        assert not tiered.state().is_released


def broker_address(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host, int(port)


def end_of(broker: Broker) -> int:
    """Ask a new connection for the end of the log; return the error."""
    with SocketClient(broker_address(broker)) as client:
        return asked(client)


def asked(client: SocketClient) -> int:
    wanted = ListOffsetsRequest.ListOffsetsPartition(0, timestamp=-1)
    request = ListOffsetsRequest(-1, 0, [ListOffsetsRequest.ListOffsetsTopic(TOPIC, [wanted])])
    error: int = client.ask(ApiKey.LIST_OFFSETS, 5, request).topics[0].partitions[0].error_code
    return error


def test_a_bucket_takes_large_segments_in_parts_and_may_be_away(
    in_bucket: TieredBroker, server: ObjectStoreServer
) -> None:
    in_bucket.create({"segment.bytes": str(20 << 20)})
    for _ in range(10):
        in_bucket.produce()
    in_bucket.check()
    server.kill()
    for _ in range(10):
        in_bucket.produce()
    eventually(lambda: "the object store fails: " in in_bucket.broker.logs(), "the log tells of the outage")
    replace(in_bucket.broker, "tier")
    server.start()
    in_bucket.check()
    assert [one.size > 16 << 20 for one in in_bucket.added()] == [True, True]


def test_without_the_setting_there_is_no_tier(tmp_path: Path) -> None:
    with Broker(log_dir=tmp_path) as broker:
        assert "tier" not in pids(broker)
