"""The coordinator's bulletins, their readers, and which of these are behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.topology import ACCEPTORS, HANDLERS, PROCESSORS, SUPERVISOR, SharedMemory


class Bulletins:
    """All bulletins of the coordinator. `is_alive` says whether a role has a process now."""

    def __init__(self, memory: SharedMemory, is_alive: Callable[[int], bool]) -> None:
        self._memory = memory
        self._is_alive = is_alive
        self.topics = self._publisher("bulletin", "bulletin_acks", HANDLERS)
        self.credentials = self._publisher("credentials", "credential_acks", PROCESSORS)
        self.limits = self._publisher("limits", "limit_acks", ACCEPTORS)
        # The supervisor always counts as alive: without it no process is.
        self.brokers = self._publisher("brokers", "broker_acks", (SUPERVISOR,), lambda _: True)

    def behind(self) -> list[int]:
        """Return the readers that keep a bulletin from being written anew."""
        publishers = (self.topics, self.credentials, self.limits, self.brokers)
        return [reader for publisher in publishers for reader in publisher.lagging()]

    def _publisher(
        self, block: str, acks: str, readers: Iterable[int], is_alive: Callable[[int], bool] | None = None
    ) -> BulletinPublisher:
        counts = is_alive or self._is_alive
        return BulletinPublisher(
            self._memory.private.block(block),
            self._memory.words(acks),
            lambda: [reader for reader in readers if counts(reader)],
        )
