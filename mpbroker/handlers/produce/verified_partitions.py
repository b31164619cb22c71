"""Remembers which partitions the coordinator has added to a transaction, so that a handler asks only once.

Only transactions whose end gives their producer another epoch are remembered (transaction.version 2). The
partition's log refuses a batch that comes after the end, since the marker has the newer epoch. The added
partitions are durable, so they are still valid after the coordinator's death. (Kafka asks the partition
whether it has an open transaction of the producer: UnifiedLog.hasOngoingTransaction.)
"""

from __future__ import annotations

from typing import TypeAlias

# A partition: its slot in the table, and the generation of that.
Place: TypeAlias = tuple[int, int]
# Some MB. A forgotten partition is asked for again.
PLACES_MAX = 50_000


class VerifiedPartitions:
    """Partitions that the coordinator has verified, by producer id. The oldest producer is dropped first."""

    def __init__(self, most_places: int = PLACES_MAX) -> None:
        self._most_places = most_places
        self._places = 0
        self._producers: dict[int, tuple[int, set[Place]]] = {}

    def __len__(self) -> int:
        return self._places

    def has(self, producer_id: int, epoch: int, place: Place) -> bool:
        known = self._producers.get(producer_id)
        return known is not None and known[0] == epoch and place in known[1]

    def add(self, producer_id: int, epoch: int, place: Place) -> None:
        """Remember an added partition. A new epoch drops the partitions of the producer's earlier epoch."""
        known = self._producers.get(producer_id)
        if known is None or known[0] != epoch:
            self._forget(producer_id)
            known = self._producers[producer_id] = epoch, set()
        if place not in known[1]:
            known[1].add(place)
            self._places += 1
        while self._places > self._most_places:
            self._forget(next(iter(self._producers)))

    def _forget(self, producer_id: int) -> None:
        known = self._producers.pop(producer_id, None)
        if known is not None:
            self._places -= len(known[1])
