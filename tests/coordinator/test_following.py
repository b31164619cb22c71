"""The coordinator of a face publishes what is in the metadata log of another broker, and changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mpbroker.coordinator import following
from mpbroker.ipc import replaced_files
from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.broker_settings import BrokerSettings
from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.calls import (
    AllocateProducerIds,
    AlterScram,
    AlterSettings,
    ConfigAlteration,
    ConfigChange,
    CreateAcls,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    DescribeScram,
    Failed,
    ScramUsers,
)
from mpbroker.ipc.credentials import CredentialNews, ScramImage
from mpbroker.ipc.mirror import MirrorPointer, ReadPartition, write_mirror
from mpbroker.ipc.nodes import Node, Nodes, write_nodes
from mpbroker.ipc.table import PartitionFlag, read_partition
from mpbroker.ipc.topology import COORDINATOR, SUPERVISOR, processor
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import ConfigResourceType
from mpbroker.protocol.topic_names import METADATA_TOPIC
from tests.support.coordinator_tree import CoordinatorTree

LOG = f"{METADATA_TOPIC}-0"
SET = 0


class Party:
    """A broker that leads, the mirror of its metadata log, and the coordinator of a face."""

    def __init__(self, root: Path, make_tree: Callable[..., CoordinatorTree]) -> None:
        self.mirror, self.home = root / "mirror", root / "face"
        for directory in (root / "leader", self.home):
            directory.mkdir()
        self.version = 0
        self.leader = make_tree(directory=root / "leader")
        self.leader.serve()
        self.face = make_tree(directory=self.home)

    def copy(self) -> None:
        """Bring the mirror up to date, and tell the face."""
        shutil.copytree(self.leader.directory / LOG, self.mirror / LOG, dirs_exist_ok=True)
        self.tell()

    def tell(self, *readable: ReadPartition) -> None:
        self.version += 1
        pointer = MirrorPointer(self.version, ["/nowhere", str(self.mirror)], list(readable) or None)
        write_mirror(self.home, pointer)
        self.face.memory.doorbell(COORDINATOR).ring()

    def topics(self) -> dict[str, tuple[int, dict[str, str]]]:
        """Topics that handlers of the face know, whose partitions have no slots."""
        self.face.pump()
        images = self.face.handlers[0].topics.values()
        assert all(p.slot_generation == 0 for image in images for p in image.partitions.values())
        return {image.name: (len(image.partitions), image.configs) for image in images}

    def published(self, block: str, acks: str, reader: int) -> bytes:
        memory = self.face.memory
        return BulletinReader(memory.private.block(block), memory.words(acks), reader).poll()[-1]


@pytest.fixture
def party(
    tmp_path: Path, make_tree: Callable[..., CoordinatorTree], monkeypatch: pytest.MonkeyPatch
) -> Party:
    for module in (replaced_files, following):
        monkeypatch.setattr(module, "POLL_S", 0.0)
    return Party(tmp_path, make_tree)


def test_topics_of_the_leader_come_change_and_go(party: Party) -> None:
    create = [CreateTopic("kept", 3, configs={"retention.ms": "7"}), CreateTopic("gone", 1)]
    party.leader.ask(CreateTopics(create))
    party.copy()
    party.face.serve()
    ids = {name: image.topic_id for name, image in party.leader.handlers[0].topics.items()}
    party.face.until(lambda: party.topics() == {"kept": (3, {"retention.ms": "7"}), "gone": (1, {})})
    assert {n: image.topic_id for n, image in party.face.handlers[0].topics.items()} == ids

    party.leader.ask(DeleteTopics(["gone"]))
    changes = [ConfigChange("retention.ms", SET, "8")]
    party.leader.ask(AlterSettings([ConfigAlteration("kept", changes)]))
    party.leader.ask(CreateTopics([CreateTopic("new", 2)]))
    party.copy()
    party.face.until(lambda: party.topics() == {"kept": (3, {"retention.ms": "8"}), "new": (2, {})})
    # Its own log has stayed empty, and its log worker was asked for no topic.
    assert (party.home / LOG / f"{0:020d}.log").stat().st_size == 0
    assert party.face.log is not None
    assert party.face.log.ensured == []


def test_users_entries_and_settings_of_the_leader_are_published(party: Party) -> None:
    ann = ScramImage("ann", 1, 4096, b"salt", b"stored", b"server")
    acl = AclImage(2, "orders", 3, "User:ann", "*", 3, 3)
    party.leader.ask(AlterScram([ann]))
    party.leader.ask(CreateAcls([acl]))
    setting = ConfigAlteration(
        "", [ConfigChange("max.connections", SET, "9")], kind=ConfigResourceType.BROKER
    )
    asked = party.leader.handlers[0].call(AlterSettings([setting]))
    party.leader.memory.words("brokers_done").store(0, 1)
    party.leader.until(lambda: asked in party.leader.handlers[0].answers)
    party.copy()
    party.face.serve()
    news = party.published("credentials", "credential_acks", processor(0))
    assert msgspec.msgpack.decode(news, type=CredentialNews).credentials == [ann]  # type: ignore[union-attr]
    news = party.published("brokers", "broker_acks", SUPERVISOR)
    assert msgspec.msgpack.decode(news, type=BrokerSettings) == BrokerSettings(
        1, {"": {"max.connections": "9"}}
    )
    party.face.until(lambda: party.face.handlers[0].acls == [acl])
    # It describes them, too.
    answer = party.face.ask(DescribeScram())
    assert isinstance(answer, ScramUsers)
    assert [user.user for user in answer.users] == ["ann"]


def test_what_consumers_may_read_has_slots_that_stay_until_handlers_know_others(party: Party) -> None:
    party.leader.ask(CreateTopics([CreateTopic("t", 3), CreateTopic("other", 1)]))
    party.copy()
    party.face.serve()
    party.face.until(lambda: set(party.topics()) == {"t", "other"})
    topic_id = party.face.handlers[0].topics["t"].topic_id

    def readable(place: int, generation: int, offset: int) -> ReadPartition:
        bounds = (offset, 0, offset * 100), (offset - 1, 0, offset * 90), 0
        return ReadPartition(topic_id, 1, place, generation, 0, 3, 2, *bounds)

    def slots() -> list[int]:
        party.face.pump()
        partitions = party.face.handlers[0].topics["t"].partitions
        return [partitions[number].slot_generation for number in range(3)]

    first, second = readable(0, 4, 10), readable(1, 5, 20)
    party.tell(first)
    party.face.until(lambda: slots() == [0, 4, 0])
    party.tell(second)
    party.face.until(lambda: slots() == [0, 5, 0])
    # Killed, the coordinator has a successor that publishes the same.
    party.face.replace(2)
    party.face.until(lambda: slots() == [0, 5, 0])
    table = party.face.memory.table()
    for one in (first, second):
        now = read_partition(table, table.slots - 1 - one.place)
        assert (now.topic_id, now.partition, now.generation) == (topic_id, 1, one.generation)
        assert (now.high_watermark, now.log_end_offset, now.log_start_offset) == (
            *(one.high_watermark[0], one.high_watermark[0], 2),
        )
        assert (now.last_stable_offset, now.leader_epoch, now.flags) == (
            *(one.last_stable[0], 3, PartitionFlag.PARTITION_LIVE),
        )
    # After a take-over nothing may be read until the new owner has made a cut.
    write_mirror(party.home, MirrorPointer(99, [str(party.mirror)], []))
    party.face.until(lambda: slots() == [0, 0, 0])


def test_a_face_changes_nothing(party: Party) -> None:
    party.copy()
    party.face.serve()
    for call in (CreateTopics([CreateTopic("t", 1)]), AllocateProducerIds()):
        answer = party.face.ask(call)
        assert isinstance(answer, Failed)
        assert answer.error == ErrorCode.NOT_CONTROLLER
    assert party.topics() == {}
    assert (party.home / LOG / f"{0:020d}.log").stat().st_size == 0


def test_a_torn_or_missing_log_waits_for_the_rest(party: Party) -> None:
    party.tell()
    party.face.start()
    party.leader.ask(CreateTopics([CreateTopic("a", 1)]))
    party.copy()
    party.face.until(party.face.is_ready)
    party.face.until(lambda: party.topics() == {"a": (1, {})})
    party.leader.ask(CreateTopics([CreateTopic("b", 1)]))
    party.copy()
    segment = party.mirror / LOG / f"{0:020d}.log"
    whole = segment.read_bytes()
    # The runner is in the middle of its write, says so nevertheless, and goes on.
    os.truncate(segment, len(whole) - 7)
    party.tell()
    party.leader.ask(CreateTopics([CreateTopic("c", 1)]))
    shutil.rmtree(party.mirror)
    party.tell()
    party.copy()
    party.face.until(lambda: set(party.topics()) == {"a", "b", "c"})


def test_a_face_goes_on_after_deaths_beside_it(party: Party) -> None:
    party.leader.ask(CreateTopics([CreateTopic("a", 1)]))
    party.copy()
    party.face.serve()
    party.face.replace_log()
    party.leader.ask(CreateTopics([CreateTopic("b", 1)]))
    party.copy()
    party.face.until(lambda: set(party.topics()) == {"a", "b"})
    party.face.replace(2)
    party.face.until(lambda: set(party.topics()) == {"a", "b"})
    assert party.face.stop() == 0


def test_nodes_are_published_when_they_change(party: Party) -> None:
    party.copy()
    alone = Nodes(1, 1, [Node(1, "", {"PLAINTEXT": ("a", 1)})])
    write_nodes(party.home, alone)
    party.face.serve()
    handler = party.face.handlers[0]
    party.face.until(lambda: handler.nodes == alone)
    both = Nodes(2, 2, [*alone.nodes, Node(2)])
    write_nodes(party.home, both)
    party.face.memory.doorbell(COORDINATOR).ring()
    party.face.until(lambda: handler.nodes == both)
    assert party.face.memory.counters(COORDINATOR).status == "following the leader's metadata"


def test_a_cut_that_changes_no_metadata_is_no_news(party: Party) -> None:
    party.copy()
    party.face.serve()
    handler = party.face.handlers[0]
    party.face.until(lambda: handler.bases == 1)
    party.tell()
    # It looks at the files before it answers.
    party.face.ask(DescribeScram())
    party.face.pump()
    assert handler.bases == 1
    party.leader.ask(CreateTopics([CreateTopic("a", 1)]))
    party.copy()
    party.face.ask(DescribeScram())
    party.face.pump()
    assert handler.bases == 2
