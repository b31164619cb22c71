"""What a consumer group needs of the topics: their ids, their partitions, and a hash of both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from mpbroker.coordinator.runtime.host import Host

HASH_BYTES: Final = 8


@dataclass(eq=False)
class TopicMetadata:
    _host: Host

    def ids_of(self, names: Iterable[str]) -> frozenset[bytes]:
        """Return the ids of those topics that exist."""
        return frozenset(found for name in names if (found := self._host.id_of(name)) is not None)

    def partitions_of(self, topic_ids: Iterable[bytes]) -> dict[bytes, int]:
        """Return the number of partitions by topic id, of those topics that exist."""
        topics = {topic_id: self._host.name_of(topic_id) for topic_id in topic_ids}
        return {topic_id: self._host.partitions_of(name) for topic_id, name in topics.items() if name}

    def name_of(self, topic_id: bytes) -> str | None:
        return self._host.name_of(topic_id)

    def hash_of(self, names: Iterable[str]) -> int:
        """Return a hash of the ids and sizes of the topics that exist, 0 if none does; signed, 64 bits.

        Kafka takes XXH3, and the racks, too. After a move between Kafka and mpbroker each group thus has
        another hash, and one rebalance in which no partition moves. (Kafka: Utils.computeGroupHash.)
        """
        hasher = blake2b(digest_size=HASH_BYTES)
        found = 0
        for name in sorted(names):
            topic_id = self._host.id_of(name)
            if topic_id is not None:
                found += 1
                hasher.update(topic_id + self._host.partitions_of(name).to_bytes(4, "big"))
        return int.from_bytes(hasher.digest(), "big", signed=True) if found else 0
