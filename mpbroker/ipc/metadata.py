"""The bulletin of metadata from the coordinator to all handlers.

It has topics, quotas, access control entries, and subscriptions to client metrics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from mpbroker.ipc.acls import AclImage
from mpbroker.ipc.nodes import Nodes

# The slot of `__cluster_metadata-0` in the partition table.
METADATA_SLOT = 0


_SLOT = struct.Struct("<II")


class PartitionImage(Struct, array_like=True):
    partition: int
    slot: int
    slot_generation: int


class PartitionSlots(Mapping[int, PartitionImage]):
    """A topic's partitions by number, from 0 on. A partition is unpacked only when it is accessed.

    `packed` has 8 bytes for each partition: its slot and the slot's generation (u32, little-endian).
    """

    __slots__ = ("packed",)

    def __init__(self, packed: bytes = b"") -> None:
        self.packed = packed

    @classmethod
    def of(cls, images: Iterable[PartitionImage]) -> PartitionSlots:
        return cls(b"".join(_SLOT.pack(image.slot, image.slot_generation) for image in images))

    def __len__(self) -> int:
        return len(self.packed) // _SLOT.size

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < len(self)

    def __getitem__(self, number: int) -> PartitionImage:
        if number not in self:
            raise KeyError(number)
        return PartitionImage(number, *_SLOT.unpack_from(self.packed, number * _SLOT.size))


class TopicImage(Struct, array_like=True):
    """A topic, with the slots of its partitions.

    `configs` has only the settings that the topic sets, by Kafka's key. Each change increases
    `config_version`. `slots` is the `packed` of PartitionSlots.
    """

    name: str
    topic_id: bytes
    slots: bytes
    configs: dict[str, str] = {}
    config_version: int = 0
    internal: bool = False

    @property
    def partitions(self) -> PartitionSlots:
        return PartitionSlots(self.slots)


class QuotaImage(Struct, array_like=True):
    """All quotas of `entity`, a list of (type, name). Empty `values` mean that all were removed."""

    entity: list[tuple[str, str | None]]
    values: dict[str, float]


class SubscriptionImage(Struct, array_like=True):
    """All settings of a subscription to client metrics. Empty `configs` mean that it was removed."""

    name: str
    configs: dict[str, str]


class MetadataBase(Struct, tag="base"):
    """All metadata as of offset `version` of `__cluster_metadata` (exclusive).

    `nodes` is None if the broker is the only one of its cluster.
    """

    version: int
    cluster_id: str
    node_id: int
    topics: list[TopicImage]
    quotas: list[QuotaImage] = []
    acls: list[AclImage] = []
    subscriptions: list[SubscriptionImage] = []
    nodes: Nodes | None = None


class MetadataDelta(Struct, tag="delta"):
    """Changes up to offset `version` (exclusive): items to set, ids of deleted topics, and deleted ACLs."""

    version: int
    changed: list[TopicImage] = []
    removed: list[bytes] = []
    quotas: list[QuotaImage] = []
    acls: list[AclImage] = []
    removed_acls: list[AclImage] = []
    subscriptions: list[SubscriptionImage] = []


MetadataNews = MetadataBase | MetadataDelta
