"""Keeps a process's connections to brokers, and lends them to one reader after another.

A task of Spark lasts milliseconds, and its worker process runs many tasks. Without kept connections, reading
a thousand partitions would connect and request ApiVersions and Metadata a thousand times. A `Cluster` (the
client's connections to a Kafka cluster) is not thread-safe, so it is lent to one reader at a time; a second
reader gets a second `Cluster`. After a fork the child drops the inherited clients without closing them,
because parent and child share one epoll instance.
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
# Clients kept for each key: as many as threads of one process are likely to read at once.
KEPT_MAX: Final = 4


class Lent(NamedTuple):
    """A client of a cluster (`Cluster`) that is lent to one reader.

    `made_s` is the monotonic time at which the client was made; `pid` is the process that made it.
    """

    cluster: Cluster
    key: Key
    made_s: float
    pid: int


class _Kept(NamedTuple):
    """A client that no reader has used since the monotonic time `since_s`."""

    lent: Lent
    since_s: float


class Connections:
    """A thread-safe pool of idle clients of clusters, by servers and client settings."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self.forget()

    def forget(self) -> None:
        """Drop all clients without closing them: after a fork their connections belong to the parent."""
        self._lock = threading.Lock()
        self._kept: dict[Key, list[_Kept]] = {}

    def take(self, servers: list[tuple[str, int]], config: ClientConfig, advice: str) -> Lent:
        """Lend a kept or new client (`Cluster`) to the caller until `give_back`. Raises ClientConfigError.

        A kept client is at most metadata.max.age.ms old, so that it knows current leaders and certificates.
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
        """Keep the client for the next reader; close it if a response is pending or enough are kept."""
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
        """Close all clients that are not lent."""
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
    """Return whether the client can be used, after a poll that detects closed connections."""
    try:
        cluster.client.poll(0)
    except (ClientError, OSError):
        return False
    return True


CONNECTIONS: Final = Connections()
os.register_at_fork(after_in_child=CONNECTIONS.forget)
