"""The leader of a partition, as clients see it: this broker, unless it cannot use the partition.

A standby names the broker that it follows, whose leader epochs it does not know.
"""

from __future__ import annotations

from mpbroker.handlers.broker import Broker
from mpbroker.handlers.requests.metadata import Topic
from mpbroker.ipc.table import PartitionFlag

NO_LEADER = -1
UNKNOWN_EPOCH = -1


def leader_of(broker: Broker, topic: Topic, number: int) -> tuple[int, int]:
    """Return the partition's leader and leader epoch; the leader is NO_LEADER if its directory is offline."""
    leader = broker.metadata.leader_id
    if not broker.metadata.leads:
        return leader, UNKNOWN_EPOCH
    image = topic.partitions[number]
    now = broker.in_table(image)
    # Without a slot it is not open yet, for instance because a disk is full.
    offline = not image.slot_generation or (
        now is not None and bool(now.flags & PartitionFlag.PARTITION_OFFLINE)
    )
    # The log process has the epoch from leader-epoch-checkpoint; Fetch and ListOffsets check clients' epochs.
    return NO_LEADER if offline else leader, 0 if now is None else now.leader_epoch


def replicas_of(broker: Broker) -> list[int]:
    """Return the brokers that have a partition: the leader, and the replicas that serve reads of it."""
    return [broker.metadata.leader_id, *broker.metadata.replicas]
