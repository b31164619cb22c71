"""Decides which partitions go to the object store (Kafka: UnifiedLog.isRemoteLogEnabled)."""

from __future__ import annotations

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import TopicConfig
from mpbroker.ipc.table import PartitionFlag
from mpbroker.protocol.topic_names import INTERNAL_TOPICS, METADATA_TOPIC

NOT_TIERED = PartitionFlag(0)


def tiering(topic: str, config: TopicConfig, broker: BrokerConfig) -> PartitionFlag:
    """Return the flags by which the tier treats a topic's partitions.

    A topic whose policy became compact, which it may inherit from the broker, is not tiered: its segments
    change. What the store has of it is kept and served.
    """
    if not broker.remote_log_storage_system_enable or topic in INTERNAL_TOPICS or topic == METADATA_TOPIC:
        return NOT_TIERED
    if config.remote_storage_enable:
        flags = PartitionFlag.PARTITION_COPY_DISABLED if config.remote_log_copy_disable else NOT_TIERED
        return NOT_TIERED if "compact" in config.cleanup_policy else flags | PartitionFlag.PARTITION_TIERED
    return PartitionFlag.PARTITION_REMOTE_DELETED if config.is_remote_deleted else NOT_TIERED
