"""Keeps connections longer than a task lives: a process lends them to one reader after another.

A task of Spark lasts milliseconds, its worker process serves many tasks. A reader of a thousand partitions
would otherwise connect, ask for versions and for metadata a thousand times. A `Cluster` (the client's
connections to a Kafka cluster) belongs to one thread, so it is lent to one reader at a time; a second reader
gets a second `Cluster`. Those that a process inherited by a fork are dropped and not closed: parent and child
share one epoll instance.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig
from mpbroker.client.errors import ClientError

Key = tuple[tuple[tuple[str, int], ...], ClientConfig]

# Spark ends idle workers after a minute, too.
IDLE_S_MAX: Final = 60.0
# Clusters kept for each key: as many as threads of one process are likely to read at once.
KEPT_MAX: Final = 4


class Lent(NamedTuple):
    """A cluster lent to one reader.

    `made_s` is in monotonic seconds; `pid` is the process that it belongs to.
    """

    cluster: Cluster
    key: Key
    made_s: float
    pid: int


class _Kept(NamedTuple):
    """An unused cluster, since `since_s` in monotonic seconds."""

    lent: Lent
    since_s: float


class Connections:
    """Clusters by their servers and client settings. Many threads may use it."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self.forget()

    def forget(self) -> None:
        """Drop every connection without closing it: after a fork they are the parent's."""
        self._lock = threading.Lock()
        self._kept: dict[Key, list[_Kept]] = {}

    def take(self, servers: list[tuple[str, int]], config: ClientConfig, advice: str) -> Lent:
        """Lend a cluster to the caller alone, until it is given back. Raises ClientConfigError.

        Its knowledge of leaders and certificates is not older than metadata.max.age.ms.
        """
        key = (tuple(servers), config)
        now_s = self._clock_s()
        while (kept := self._popped(key)) is not None:
            fresh = now_s - kept.lent.made_s <= config.metadata_max_age_ms / 1000
            if fresh and now_s - kept.since_s <= IDLE_S_MAX and _lives(kept.lent.cluster):
                return kept.lent
            kept.lent.cluster.close()
        return Lent(Cluster(servers, config, advice), key, now_s, os.getpid())

    def give_back(self, lent: Lent) -> None:
        """Keep the cluster for the next reader, or close it if a response is still under way."""
        if lent.pid != os.getpid():
            return
        if not lent.cluster.client.in_flight_count():
            with self._lock:
                kept = self._kept.setdefault(lent.key, [])
                if len(kept) < KEPT_MAX:
                    kept.append(_Kept(lent, self._clock_s()))
                    return
        lent.cluster.close()

    def close(self) -> None:
        """Close all clusters that are not lent."""
        with self._lock:
            kept, self._kept = self._kept, {}
        for found in kept.values():
            for one in found:
                one.lent.cluster.close()

    def _popped(self, key: Key) -> _Kept | None:
        with self._lock:
            kept = self._kept.get(key)
            return kept.pop() if kept else None


def _lives(cluster: Cluster) -> bool:
    """Return whether the cluster can be used. The client notices here which connections have ended."""
    try:
        cluster.client.poll(0)
    except (ClientError, OSError):
        return False
    return True


CONNECTIONS: Final = Connections()
os.register_at_fork(after_in_child=CONNECTIONS.forget)
