"""Writes one bulletin of the coordinator: deltas, and bases once all readers follow the last one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

import msgspec

from mpbroker.ipc.bulletin import BaseTooLarge, BulletinFull, BulletinPublisher

_log = logging.getLogger("mpbroker.coordinator")


class Written(Enum):
    NOTHING = 0
    """Nothing is written: a base waits until all readers follow the last one."""
    DELTA = 1
    BASE = 2
    TOO_LARGE = 3
    """Even a base is too large; only a change can help."""


class BulletinWriter:
    """The writer of one bulletin; `what` is its content in an operator's words, for the log.

    `has_news` says that there is something to write, which a base that is too large no longer is. The loop
    reads it on every turn.
    Actions that wait for an announcement run when it is out.
    """

    def __init__(self, publisher: BulletinPublisher, what: str) -> None:
        self._publisher = publisher
        self._what = what
        self._needs_base = True
        self.has_news = True
        self._then: list[Callable[[], None]] = []
        self._encoder = msgspec.msgpack.Encoder()

    def changed(self) -> None:
        """Note that there is news. A base that was too large is tried again: it may have become smaller."""
        self.has_news = True

    def replaced(self) -> None:
        """Have the next message be a base: what was announced before may not be true any more."""
        self._needs_base = True
        self.has_news = True

    def then(self, action: Callable[[], None]) -> None:
        self._then.append(action)

    def run_actions(self) -> None:
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
