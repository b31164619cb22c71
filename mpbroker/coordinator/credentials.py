"""Telling the processors who may log in: SCRAM credentials, by a bulletin of their own.

Handlers are no readers of it: what a request handler never holds it cannot give away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from mpbroker.coordinator.scram_rules import Credentials
from mpbroker.ipc.bulletin import BulletinFull, BulletinPublisher
from mpbroker.ipc.credentials import CredentialBase, CredentialDelta, ScramImage


class CredentialAnnouncer:
    """Changes are noted with `changed`; what waits for them runs when they are out."""

    def __init__(self, publisher: BulletinPublisher) -> None:
        self._publisher = publisher
        self._changed: dict[tuple[str, int], None] = {}
        self._then: list[Callable[[], None]] = []
        self._needs_base = True
        self._encoder = msgspec.msgpack.Encoder()

    @property
    def has_news(self) -> bool:
        return self._needs_base or bool(self._changed)

    def changed(self, keys: Iterable[tuple[str, int]], then: Callable[[], None]) -> None:
        self._changed.update(dict.fromkeys(keys))
        self._then.append(then)

    def replaced(self) -> None:
        """The state was read from the log anew: what was said before may not be true any more."""
        self._needs_base = True

    def publish(self, credentials: Credentials) -> None:
        """Announces what is new, unless a base must wait until all processors follow the last one."""
        if not self.has_news:
            return
        if not self._needs_base and not self._publish_delta(credentials):
            self._needs_base = True
        if self._needs_base:
            if not self._publisher.can_publish_base():
                return
            everything = [_image(key, credentials) for key in credentials]
            self._publisher.publish_base(self._encoder.encode(CredentialBase(everything)))
            self._needs_base = False
        self._changed.clear()
        actions, self._then = self._then, []
        for action in actions:
            action()

    def _publish_delta(self, credentials: Credentials) -> bool:
        there = [_image(key, credentials) for key in self._changed if key in credentials]
        gone = [key for key in self._changed if key not in credentials]
        try:
            self._publisher.publish_delta(self._encoder.encode(CredentialDelta(there, gone)))
        except BulletinFull:
            return False
        return True


def _image(key: tuple[str, int], credentials: Credentials) -> ScramImage:
    one = credentials[key]
    return ScramImage(*key, one.iterations, one.salt, one.stored_key, one.server_key)
