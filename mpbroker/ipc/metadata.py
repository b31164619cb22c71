"""What the coordinator publishes and every handler holds: topics and quotas; a base, and deltas after it."""

from __future__ import annotations

from msgspec import Struct

# Where the partition table has `__cluster_metadata-0`.
METADATA_SLOT = 0


class PartitionImage(Struct, array_like=True):
    partition: int
    slot: int
    slot_generation: int


class TopicImage(Struct, array_like=True):
    """`configs`: only what differs from the defaults, in Kafka's keys; changes raise `config_version`."""

    name: str
    topic_id: bytes
    partitions: list[PartitionImage]
    configs: dict[str, str] = {}
    config_version: int = 0
    internal: bool = False


class QuotaImage(Struct, array_like=True):
    """All quotas of an entity, (type, name) pairs; no values: it has none any more."""

    entity: list[tuple[str, str | None]]
    values: dict[str, float]


class MetadataBase(Struct, tag="base"):
    """Everything, as of the offset in `__cluster_metadata` before which all records are applied."""

    version: int
    cluster_id: str
    node_id: int
    topics: list[TopicImage]
    quotas: list[QuotaImage] = []


class MetadataDelta(Struct, tag="delta"):
    """What changed up to `version`: topics and quotas to put, and ids of topics that are gone."""

    version: int
    changed: list[TopicImage] = []
    removed: list[bytes] = []
    quotas: list[QuotaImage] = []


MetadataNews = MetadataBase | MetadataDelta
