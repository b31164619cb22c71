"""Which consumers read from a replica instead (KIP-392): those in its rack, where it has what they ask for.

A replica has all that was written before a time, which it tells the owner. So a fetch from a segment file
that was changed last before that is the replica's. Who reads the end of a log, where files change, stays.
(Kafka: RackAwareReplicaSelector, ReplicaManager.findPreferredReadReplica.)
"""

from __future__ import annotations

from typing import Final

from mpbroker.handlers.requests.metadata import Metadata
from shm.clock import monotonic_ms
from shm.word import Words

# From the write of a record until it is below the high watermark.
MARGIN_MS: Final = 1_000
# A client that comes back earlier has found no replica there, or one that has less: it stays.
AGAIN_MS: Final = 60_000
_SENT_MAX: Final = 10_000


class PreferredReplicas:
    """`readable` is block `readable` of the private region."""

    def __init__(self, metadata: Metadata, readable: Words) -> None:
        self._metadata = metadata
        self._readable = readable
        # When a connection was sent away, by the connection and the partition's slot.
        self._sent_ms: dict[tuple[int, int], int] = {}

    def find(self, rack: str, connection: int, slot: int, changed_ns: int) -> int | None:
        """Return the replica for a fetch from a file that was last changed at `changed_ns` (wall time).

        None: the client is answered here.
        """
        there = self._metadata.replicas_by_rack.get(rack)
        if not (rack and there) or changed_ns // 1_000_000 >= self._readable.load(0) - MARGIN_MS:
            return None
        now_ms, key = monotonic_ms(), (connection, slot)
        if now_ms - self._sent_ms.get(key, now_ms - AGAIN_MS) < AGAIN_MS:
            return None
        if len(self._sent_ms) >= _SENT_MAX:
            self._sent_ms.clear()
        self._sent_ms[key] = now_ms
        return there[slot % len(there)]
