"""Records of a cluster's metadata, one after the other, and what they come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.coordinator.metadata.metadata_records import build_metadata_batch
from mpbroker.log.format.names import segment_name
from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.kraft_snapshot import RECORDS_PER_BATCH, Voter, bootstrap, snapshot
from mpbroker.migration.metadata_log import SnapshotId, read_image, snapshots_of
from mpbroker.protocol.messages import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    Message,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from tests.support.kafka_directory import election, encoded, register

ID, OTHER = bytes(range(16)), bytes(range(1, 17))
QUOTA = ClientQuotaRecord([ClientQuotaRecord.EntityData("user", None)], "producer_byte_rate", 5.0)
BEGIN, END, ABORT = b"\x01\x17\x00\x00", b"\x01\x18\x00\x00", b"\x01\x19\x00\x00"
NO_OP, UNKNOWN = b"\x01\x14\x00\x00", b"\x01\x7f\x00"
VOTER = Voter(1, ID, "CONTROLLER", "localhost", 9093)
PARTITION = PartitionRecord(0, ID, [1], [1], leader=1, leader_epoch=0, partition_epoch=0, directories=[ID])
ALL: list[Message] = [
    FeatureLevelRecord("metadata.version", 30),
    TopicRecord("orders", ID),
    PARTITION,
    ConfigRecord(2, "orders", "retention.ms", "5"),
    QUOTA,
    UserScramCredentialRecord("alice", 1, b"salt", b"stored", b"server", 4096),
    AccessControlEntryRecord(ID, 2, "orders", 3, "User:alice", "*", 3, 3),
    DelegationTokenRecord(owner="alice", token_id="t"),
    ProducerIdsRecord(-1, -1, 1000),
]


def image_of(*values: bytes) -> ClusterImage:
    image = ClusterImage()
    for value in values:
        image.apply(value)
    return image


def directory_of(home: Path, *values: bytes) -> Path:
    (home / segment_name(0)).write_bytes(election(0) + bytes(build_metadata_batch(list(values), 1, 1, 1)))
    return home


def test_a_partition_changes_with_its_epochs() -> None:
    change = PartitionChangeRecord(0, ID, isr=[1, 2], leader=2, replicas=[1, 2])
    image = image_of(*encoded(TopicRecord("orders", ID), PARTITION, change))
    after = image.partitions[ID][0]
    assert (after.isr, after.leader, after.replicas) == ([1, 2], 2, [1, 2])
    assert (after.leader_epoch, after.partition_epoch, after.directories) == (1, 1, [ID])


def test_what_is_removed_is_gone() -> None:
    removals: list[Message] = [
        ConfigRecord(2, "orders", "retention.ms", None),
        RemoveTopicRecord(ID),
        ClientQuotaRecord(QUOTA.entity, QUOTA.key, 0.0, True),
        RemoveUserScramCredentialRecord("alice", 1),
        RemoveAccessControlEntryRecord(ID),
        RemoveDelegationTokenRecord("t"),
    ]
    image = image_of(*encoded(*ALL, *removals))
    assert image == ClusterImage(features={"metadata.version": 30}, next_producer_id=1000)


def test_brokers_come_and_go_and_unknown_types_are_counted() -> None:
    gone = b"\x01\x01\x00\x00\x00\x00\x02" + bytes(9)
    image = image_of(register(1), register(2), gone, NO_OP, UNKNOWN, UNKNOWN)
    assert image.brokers == {1}
    assert image.unknown == {127: 2}


def test_a_transaction_counts_when_it_has_ended(tmp_path: Path) -> None:
    first, second, third = encoded(*(TopicRecord(name, name.encode() * 16) for name in "abc"))
    directory_of(tmp_path, BEGIN, first, END, BEGIN, second, ABORT, BEGIN, third)
    assert list(read_image(tmp_path).topics.values()) == ["a"]


def test_a_snapshot_is_read_back_whole(tmp_path: Path) -> None:
    """And so is one of several batches."""
    others = [TopicRecord(f"t{number}", number.to_bytes(16)) for number in range(1, 2 * RECORDS_PER_BATCH)]
    image = image_of(*encoded(*ALL, *others))
    image.next_offset, image.epoch = 77, 3
    (tmp_path / SnapshotId(77, 3).file_name).write_bytes(snapshot(image, VOTER, 1))
    (tmp_path / segment_name(77)).touch()
    assert read_image(tmp_path) == image


def test_the_latest_snapshot_and_the_log_behind_it(tmp_path: Path) -> None:
    directory_of(tmp_path, *encoded(TopicRecord("before", ID), TopicRecord("behind", OTHER)))
    for end, name in ((1, "earlier"), (2, "latest")):
        image = image_of(*encoded(TopicRecord(name, ID)))
        (tmp_path / SnapshotId(end, 1).file_name).write_bytes(snapshot(image, VOTER, 1))
    assert snapshots_of(tmp_path) == [(1, 1), (2, 1)]
    # The log's batch begins below the snapshot's end, so nothing of it is behind.
    assert list(read_image(tmp_path).topics.values()) == ["latest"]
    behind = build_metadata_batch(encoded(TopicRecord("behind", OTHER)), 1, 2, 5)
    (tmp_path / segment_name(0)).write_bytes(election(0) + election(1) + bytes(behind))
    image = read_image(tmp_path)
    assert list(image.topics.values()) == ["latest", "behind"]
    assert (image.next_offset, image.epoch) == (3, 5)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    directory_of(tmp_path, *encoded(PARTITION))
    with pytest.raises(CannotMove, match="the records from offset 1 on cannot be read"):
        read_image(tmp_path)
    directory_of(tmp_path, b"\x01\x02\x7f")
    with pytest.raises(CannotMove, match="A later version may have written them"):
        read_image(tmp_path)
    path = tmp_path / segment_name(0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CannotMove, match=r"is damaged at byte \d+"):
        read_image(tmp_path)
    path.write_bytes(election(0) + election(2))
    with pytest.raises(CannotMove, match="has no records from offset 1 to 2"):
        read_image(tmp_path)


def test_the_bootstrap_file_has_the_levels(tmp_path: Path) -> None:
    (tmp_path / SnapshotId(0, 0).file_name).write_bytes(bootstrap({"metadata.version": 30}, 1))
    (tmp_path / segment_name(0)).touch()
    assert read_image(tmp_path).features == {"metadata.version": 30}
