"""Who reads from a replica (KIP-392): what the leader says, what the replica serves, and who comes back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.fetch import preferred_replicas
from mpbroker.handlers.fetch.preferred_replicas import AGAIN_MS, MARGIN_MS
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.leading import NEVER
from mpbroker.ipc.mirror import MirrorPointer, write_mirror
from mpbroker.ipc.nodes import Node, Nodes
from mpbroker.ipc.table import PartitionFlag
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import MetadataRequest
from mpbroker.protocol.numbers import READ_COMMITTED
from mpbroker.storage.names import REPLICA, links_name
from tests.support.handler_logs import TOPIC, Logged, ask, fetch, partition_of
from tests.support.handler_rig import base
from tests.support.handler_rig import rig as make_rig

METADATA = 3
ADDRESS = {"PLAINTEXT": ("there", 9092)}
NODES = [
    *(Node(1, "a", ADDRESS), Node(2, "a", ADDRESS)),
    *(Node(3, "a", ADDRESS, True), Node(4, "b", ADDRESS, True), Node(5, "a", ADDRESS, True)),
]
NOT_AVAILABLE = ErrorCode.OFFSET_NOT_AVAILABLE


def publish(log: Logged, leader: int) -> None:
    log.rig.bulletin.publish_base(base(TOPIC, version=7, nodes=Nodes(leader, 1, NODES)))
    log.rig.turn()


@pytest.fixture
def leader(log: Logged) -> Logged:
    """A leader with replicas in two racks, which have all that is written until now."""
    publish(log, 1)
    for _ in range(2):
        log.append()
    changed_ms = (log.directory / f"{0:020d}.log").stat().st_mtime_ns // 1_000_000
    log.rig.memory.words("readable").store(0, changed_ms + MARGIN_MS + 1)
    return log


def preferred(log: Logged, rack: str, offset: int = 0, version: int = 12, **fields: Any) -> int:
    """Return the replica that the leader names; if none, check that it has sent records."""
    found = partition_of(ask(log, fetch(offset, rack_id=rack, **fields), version))
    assert (found.error_code, bool(found.records)) == (0, found.preferred_read_replica < 0)
    return int(found.preferred_read_replica)


def test_a_client_is_sent_to_a_replica_in_its_rack_once(leader: Logged) -> None:
    now_ms = [10 * AGAIN_MS]
    with patch.object(preferred_replicas, "monotonic_ms", lambda: now_ms[0]):
        assert preferred(leader, "") == -1
        assert preferred(leader, "c") == -1
        assert preferred(leader, "b", version=10) == -1
        assert preferred(leader, "b") == 4
        # It comes back: the replica is gone, or lacks the offset.
        now_ms[0] += AGAIN_MS - 1
        assert preferred(leader, "b") == -1
        now_ms[0] += 1
        assert preferred(leader, "b") == 4


@pytest.mark.parametrize("version", [11, 12, 18])
def test_a_session_tells_it_too_and_the_turn_answers_only_those_without_a_rack(
    leader: Logged, version: int
) -> None:
    first = ask(leader, fetch(20, session_epoch=0, rack_id="a", wait_ms=0), version)
    assert not partition_of(first).records
    again = fetch(0, session_id=first.session_id, session_epoch=1, rack_id="a", wait_ms=60_000)
    found = partition_of(ask(leader, again, version))
    assert (found.preferred_read_replica, bytes(found.records)) == (3, b"")
    counters = leader.rig.context.counters
    for rack, is_fast in (("a", False), ("b", False), ("", True), ("c", True)):
        preferred(leader, rack, version=version)
        before = counters.get(Counter.COUNT_FETCHES_FAST)
        assert preferred(leader, rack, version=version) == -1
        assert counters.get(Counter.COUNT_FETCHES_FAST) - before == is_fast


def test_with_many_racks_python_answers_all_that_name_one(leader: Logged) -> None:
    nodes = [NODES[0], *(Node(10 + number, f"r{number}", ADDRESS, True) for number in range(9))]
    counters = leader.rig.context.counters
    for count, is_fast in ((9, True), (10, False), (1, True)):
        leader.rig.bulletin.publish_base(base(TOPIC, version=8, nodes=Nodes(1, 1, nodes[:count])))
        leader.rig.turn()
        before = counters.get(Counter.COUNT_FETCHES_FAST)
        for _ in range(2):
            assert preferred(leader, "other") == -1
        assert (counters.get(Counter.COUNT_FETCHES_FAST) > before) == is_fast


def test_what_has_changed_since_the_cut_is_the_leaders(leader: Logged) -> None:
    word = leader.rig.memory.words("readable")
    word.store(0, word.load(0) - 2)
    assert preferred(leader, "a") == -1
    word.store(0, 0)
    assert preferred(leader, "b") == -1


def test_what_is_tiered_is_the_leaders(leader: Logged) -> None:
    leader.publish(flags=PartitionFlag.PARTITION_LIVE | PartitionFlag.PARTITION_TIERED)
    assert preferred(leader, "a") == -1


def test_replicas_are_no_in_sync_replicas(leader: Logged) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name="logged")]
    response = leader.rig.ask(METADATA, 12, MetadataRequest(topics))
    found = response.topics[0].partitions[0]
    assert (found.leader_id, found.replica_nodes, found.isr_nodes) == (1, [1, 3, 4, 5], [1])
    assert {one.node_id: one.rack for one in response.brokers}[4] == "b"


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Logged]:
    """A replica with two batches, of which one is visible, from offset 5 on."""
    face, mirror = tmp_path / "face", tmp_path / "mirror-0"
    for one in (face, mirror / REPLICA):
        one.mkdir(parents=True)
    write_mirror(face, MirrorPointer(1, [str(mirror)], []))
    with make_rig(BrokerConfig(log_dirs=(str(face),))) as made:
        made.memory.leading().until_ns = NEVER
        made.publish(TOPIC)
        log = Logged(tmp_path, made)
        publish(log, 1)
        log.append()
        log.changes |= {"leader_epoch": 3, "log_start_offset": 5}
        log.publish()
        log.append(visible=False)
        log.directory.rename(mirror / REPLICA / links_name(TOPIC.topic_id, 0, 5))
        yield log


def error(log: Logged, offset: int, version: int = 12, **fields: Any) -> int:
    found = partition_of(ask(log, fetch(offset, **fields), version))
    assert not found.records
    return int(found.error_code)


def test_a_replica_serves_what_it_has_and_sends_others_back(replica: Logged) -> None:
    for isolation in (0, READ_COMMITTED):
        found = partition_of(ask(replica, fetch(5, isolation_level=isolation)))
        assert (bytes(found.records), found.high_watermark) == (replica.batches[0], 10)
        assert error(replica, 10, isolation_level=isolation) == NOT_AVAILABLE
    assert error(replica, 11, wait_ms=60_000) == NOT_AVAILABLE
    assert error(replica, 4) == ErrorCode.OFFSET_OUT_OF_RANGE
    # Kafka's followers serve no clients that cannot know of racks.
    assert error(replica, 5, version=10) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_replica_knows_leader_epochs_up_to_its_cut(replica: Logged) -> None:
    assert partition_of(ask(replica, fetch(5, current_leader_epoch=3))).records
    assert error(replica, 5, current_leader_epoch=4) == NOT_AVAILABLE
    found = partition_of(ask(replica, fetch(5, current_leader_epoch=2), 18))
    assert (found.error_code, found.current_leader.leader_id) == (ErrorCode.FENCED_LEADER_EPOCH, -1)


def test_what_only_the_store_has_is_the_leaders(replica: Logged) -> None:
    links = next(path.parent for path in (replica.directory.parent / "mirror-0").rglob("*.log"))
    (links / f"{0:020d}.log").rename(links / f"{7:020d}.log")
    assert error(replica, 5) == NOT_AVAILABLE


def test_links_that_are_gone_are_refused_quietly(replica: Logged, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(replica.directory.parent / "mirror-0" / REPLICA)
    assert error(replica, 5) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not caplog.records
