"""Kafka's features and the levels that this program has (KIP-584)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

GROUP_VERSION: Final = "group.version"
"""Level 1 is the consumer protocol (KIP-848)."""
SUPPORTED: Final[Mapping[str, int]] = {
    # The metadata log's records are those of 4.3-IV0. (Kafka: MetadataVersion)
    "metadata.version": 30,
    "kraft.version": 0,
    "eligible.leader.replicas.version": 0,
    GROUP_VERSION: 1,
    "share.version": 0,
    "streams.version": 0,
    # Level 2 is KIP-890 part 2. Clients that do not know it work as with level 0.
    "transaction.version": 2,
}
"""The highest supported level of each feature, which is also its finalized level."""
FINALIZED: Final = {name: level for name, level in SUPPORTED.items() if level}
"""The finalized levels above 0, which means off: a feature that is not finalized has level 0."""


def oldest_level(name: str) -> int:
    """Return a feature's lowest supported level: 0, but for metadata.version the only supported level."""
    return SUPPORTED[name] if name == "metadata.version" else 0


def is_consumer_protocol_enabled(rebalance_protocols: Collection[str]) -> bool:
    """Return whether groups of the consumer protocol are served.

    `rebalance_protocols` is the broker's group.coordinator.rebalance.protocols. (Kafka:
    KafkaApis.isConsumerGroupProtocolEnabled.)
    """
    return FINALIZED.get(GROUP_VERSION, 0) >= 1 and "consumer" in rebalance_protocols
