"""Keeps connections longer than a task lives: a process lends them to one reader after the other.

A task of Spark lasts milliseconds, its worker process for many tasks. Who reads a thousand partitions would
connect, ask for versions and for metadata a thousand times. A cluster is lent to one reader at a time, since
it belongs to one thread; whoever comes meanwhile gets another one. What a process inherited by a fork is
the parent's: it is dropped, not closed, because both share one epoll instance.
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
# Of each key: as many as threads of one process are likely to read at once.
KEPT_MAX: Final = 4


class Lent(NamedTuple):
    """A cluster for one reader. `made_s`: in monotonic seconds; `pid`: whose process it belongs to."""

    cluster: Cluster
    key: Key
    made_s: float
    pid: int


class _Kept(NamedTuple):
    """A cluster that nobody uses. `since_s`: since when, in monotonic seconds."""

    lent: Lent
    since_s: float


class Connections:
    """Keeps clusters by their servers and their client settings. Many threads may use it."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self.forget()

    def forget(self) -> None:
        """Drops every connection without closing it: after a fork they are the parent's."""
        self._lock = threading.Lock()
        self._kept: dict[Key, list[_Kept]] = {}

    def take(self, servers: list[tuple[str, int]], config: ClientConfig, advice: str) -> Lent:
        """Lends a cluster to the caller alone, until it is given back. Raises ConfigError.

        What it knows of leaders and certificates is not older than metadata.max.age.ms.
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
        """Keeps the cluster for the next reader.

        Closes it if an answer is under way that nobody waits for.
        """
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
        """Closes all clusters that are not lent."""
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
    """Tells whether the cluster can be used; the client notices here which connections have ended."""
    try:
        cluster.client.poll(0)
    except (ClientError, OSError):
        return False
    return True


CONNECTIONS: Final = Connections()
os.register_at_fork(after_in_child=CONNECTIONS.forget)
