"""Records of a cluster's metadata, one of each kind that is kept, and the image that records come to."""

from __future__ import annotations

from mpbroker.migration.cluster_image import ClusterImage
from mpbroker.protocol.messages import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    Message,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
    UserScramCredentialRecord,
)

ID = bytes(range(16))
QUOTA = ClientQuotaRecord([ClientQuotaRecord.EntityData("user", None)], "producer_byte_rate", 5.0)
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
