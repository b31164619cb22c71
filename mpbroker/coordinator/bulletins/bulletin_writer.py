"""Writes one bulletin of the coordinator: deltas (the changes) and bases (the whole content)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum

import msgspec

from mpbroker.ipc.bulletin import BaseTooLarge, BulletinFull, BulletinPublisher
from mpbroker.ipc.topology import ACCEPTORS, HANDLERS, PROCESSORS, SUPERVISOR, TIER, SharedMemory

_log = logging.getLogger("mpbroker.coordinator")


class Written(Enum):
    NOTHING = 0
    """Nothing was written: a new base must wait until all readers have read the previous base."""
    DELTA = 1
    BASE = 2
    TOO_LARGE = 3
    """Even a base is too large for the bulletin; nothing is written until something is removed."""


class BulletinWriter:
    """The writer of one bulletin; `what` is its content in an operator's words, for the log.

    `has_news`: there is something to write. After a base that was too large, `has_news` is False until the
    content changes again.
    """

    def __init__(self, publisher: BulletinPublisher, what: str) -> None:
        self._publisher = publisher
        self._what = what
        self._needs_base = True
        self.has_news = True
        self._then: list[Callable[[], None]] = []
        self._encoder = msgspec.msgpack.Encoder()

    def replaced(self) -> None:
        """Make the next message a base, because the earlier messages may be wrong."""
        self._needs_base = True
        self.has_news = True

    def then(self, action: Callable[[], None]) -> None:
        """Queue an action that runs when all changes noted so far are announced."""
        self._then.append(action)

    def run_actions(self) -> None:
        """Run the queued actions. Call this method after ringing the readers' doorbells."""
        actions, self._then = self._then, []
        for action in actions:
            action()

    def write(self, delta: Callable[[], msgspec.Struct], base: Callable[[], msgspec.Struct]) -> Written:
        if not self._needs_base:
            try:
                self._publisher.publish_delta(self._encoder.encode(delta()))
            except BulletinFull:
                self._needs_base = True
            else:
                self.has_news = False
                return Written.DELTA
        if not self._publisher.can_publish_base():
            return Written.NOTHING
        self.has_news = False
        try:
            self._publisher.publish_base(self._encoder.encode(base()))
        except BaseTooLarge as error:
            _log.error("%s are not announced: %s. Remove some of them", self._what, error)
            return Written.TOO_LARGE
        self._needs_base = False
        return Written.BASE


class Bulletins:
    """All bulletins of the coordinator. `is_alive(role)` returns whether the role has a running process."""

    def __init__(self, memory: SharedMemory, is_alive: Callable[[int], bool]) -> None:
        self._memory = memory
        self._is_alive = is_alive
        self.topics = self._publisher("bulletin", "bulletin_acks", (*HANDLERS, TIER))
        self.credentials = self._publisher("credentials", "credential_acks", PROCESSORS)
        self.limits = self._publisher("limits", "limit_acks", ACCEPTORS)
        # The supervisor always counts as alive: no other process runs without it.
        self.brokers = self._publisher("brokers", "broker_acks", (SUPERVISOR,), lambda _: True)

    def lagging(self) -> list[int]:
        """Return the live readers that have not read the last base yet. They delay the next base."""
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
