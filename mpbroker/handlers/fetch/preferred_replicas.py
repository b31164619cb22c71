"""Sends consumers to a replica in their rack that has what they ask for (KIP-392).

A replica tells the owner the time before which it has all that was written. A fetch from a segment file that
was last changed before that time goes to the replica. A fetch from a newer file is answered here.
(Kafka: RackAwareReplicaSelector, ReplicaManager.findPreferredReadReplica.)
"""

from __future__ import annotations

from typing import Final

from mpbroker.handlers.requests.metadata import Metadata
from shm.clock import monotonic_ms
from shm.word import Words

# The longest time from the write of a record until it is below the high watermark.
MARGIN_MS: Final = 1_000
# A client that comes back earlier has found no replica, or one that has less: it is answered here.
AGAIN_MS: Final = 60_000
_SENT_MAX: Final = 10_000


class PreferredReplicas:
    """Finds replicas for fetches. `readable` is block `readable` of the private region."""

    def __init__(self, metadata: Metadata, readable: Words) -> None:
        self._metadata = metadata
        self._readable = readable
        # When a connection was sent away, by the connection and the partition's slot.
        self._sent_ms: dict[tuple[int, int], int] = {}

    def has_replicas(self, rack: str) -> bool:
        """Return whether a rack has replicas. Clients without a rack have the name ""."""
        return bool(rack) and rack in self._metadata.replicas_by_rack

    def find(self, rack: str, connection: int, slot: int, changed_ns: int) -> int | None:
        """Return the replica for a fetch from a file that was last changed at `changed_ns` (wall time).

        The rack has replicas. None: the client is answered here.
        """
        there = self._metadata.replicas_by_rack[rack]
        if changed_ns // 1_000_000 >= self._readable.load(0) - MARGIN_MS:
            return None
        now_ms, key = monotonic_ms(), (connection, slot)
        if now_ms - self._sent_ms.get(key, now_ms - AGAIN_MS) < AGAIN_MS:
            return None
        if len(self._sent_ms) >= _SENT_MAX:
            self._sent_ms.clear()
        self._sent_ms[key] = now_ms
        return there[slot % len(there)]
