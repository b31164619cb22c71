"""Looks up ids and partitions of the topics of a consumer group, and hashes both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.runtime.host import Host

HASH_BYTES: Final = 8


@dataclass(eq=False)
class TopicMetadata:
    _host: Host

    def named(self, topic_ids: Iterable[bytes], names: Set[str]) -> frozenset[bytes]:
        """Return those topic ids whose topics exist and have one of the names."""
        return frozenset(topic_id for topic_id in topic_ids if self._host.name_of(topic_id) in names)

    def by_id(self, parts: Mapping[str, frozenset[int]]) -> dict[bytes, frozenset[int]]:
        """Return partitions by topic id instead of by name. Topics that do not exist are left out."""
        return {found: numbers for name, numbers in parts.items() if (found := self._host.id_of(name))}

    def by_name(self, parts: Mapping[bytes, Collection[int]]) -> dict[str, Collection[int]]:
        """Return partitions by name instead of by topic id. Topics that do not exist are left out."""
        return {
            name: numbers for topic_id, numbers in parts.items() if (name := self._host.name_of(topic_id))
        }

    def name_of(self, topic_id: bytes) -> str | None:
        return self._host.name_of(topic_id)

    def subscribed(self, group: ConsumerGroup) -> dict[str, tuple[bytes, int]]:
        """Return the id and the number of partitions of each topic to which members subscribe, by name."""
        names: set[str] = set()
        for some in (group.subscribers, group.pattern_topics):
            names.update(self._existing(some))
        found = ((name, self._host.id_of(name), self._host.partitions_of(name)) for name in names)
        return {name: (topic_id, count) for name, topic_id, count in found if topic_id is not None}

    def _existing(self, names: Mapping[str, int]) -> Iterable[str]:
        """Return those `names` that are topics. The loop is over names or topics, whichever are fewer."""
        known = self._host.metadata.ids
        few, many = (names, known) if len(names) < len(known) else (known, names)
        return (name for name in few if name in many)

    def hash_of(self, group: ConsumerGroup) -> int:
        """Return a hash of the ids and sizes of the subscribed topics, 0 if there is none; signed, 64 bits.

        Kafka uses XXH3 and hashes the racks, too. After a move between Kafka and mpbroker each group thus has
        another hash, and one rebalance in which no partition moves. (Kafka: Utils.computeGroupHash.)
        """
        if not group.must_check_metadata:
            return group.metadata_hash
        hasher = blake2b(digest_size=HASH_BYTES)
        found = self.subscribed(group)
        for name in sorted(found):
            topic_id, partitions = found[name]
            hasher.update(topic_id + partitions.to_bytes(4, "big"))
        return int.from_bytes(hasher.digest(), "big", signed=True) if found else 0
