"""Records of a cluster's metadata, one after the other, and what they come to."""

from __future__ import annotations

from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.protocol import messages as m
from tests.support.kafka_directory import encoded, register
from tests.support.metadata_images import ALL, ID, PARTITION, QUOTA, image_of

NO_OP, UNKNOWN = b"\x01\x14\x00\x00", b"\x01\x7f\x00"


def test_a_partition_changes_with_its_epochs() -> None:
    change = m.PartitionChangeRecord(0, ID, isr=[1, 2], leader=2, replicas=[1, 2])
    image = image_of(*encoded(m.TopicRecord("orders", ID), PARTITION, change))
    after = image.partitions[ID][0]
    assert (after.isr, after.leader, after.replicas) == ([1, 2], 2, [1, 2])
    assert (after.leader_epoch, after.partition_epoch, after.directories) == (1, 1, [ID])


def test_what_is_removed_is_gone() -> None:
    removals: list[m.Message] = [
        m.ConfigRecord(2, "orders", "retention.ms", None),
        m.RemoveTopicRecord(ID),
        m.ClientQuotaRecord(QUOTA.entity, QUOTA.key, 0.0, True),
        m.RemoveUserScramCredentialRecord("alice", 1),
        m.RemoveAccessControlEntryRecord(ID),
        m.RemoveDelegationTokenRecord("t"),
    ]
    image = image_of(*encoded(*ALL, *removals))
    assert image == ClusterImage(features={"metadata.version": 30}, next_producer_id=1000)


def test_brokers_come_and_go_and_unknown_types_are_counted() -> None:
    gone = b"\x01\x01\x00\x00\x00\x00\x02" + bytes(9)
    image = image_of(register(1), register(2), gone, NO_OP, UNKNOWN, UNKNOWN)
    assert image.brokers == {1}
    assert image.unknown == {127: 2}
