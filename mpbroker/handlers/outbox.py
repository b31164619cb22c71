"""The producing end of a ring: what does not fit waits here, in order, until there is room."""

from __future__ import annotations

from collections.abc import Callable

from shm.ring import BYTES_PER_SLOT, Ring


class Outbox:
    """Slots pushed during a turn are published together, with one ring of the bell, by `flush`.

    `unsent` is shared by all outboxes of a process: those that have something to publish.
    """

    def __init__(self, ring: Ring, ring_bell: Callable[[], None], unsent: set[Outbox]) -> None:
        self._ring = ring
        self._ring_bell = ring_bell
        self._unsent = unsent
        self._waiting = bytearray()
        self._asked_for_space = False
        self.times_full = 0

    def __len__(self) -> int:
        """Slots that are not published yet."""
        return len(self._waiting) // BYTES_PER_SLOT

    def push(self, slot: bytes) -> None:
        self._waiting += slot
        self._unsent.add(self)

    def flush(self) -> bool:
        """Publishes what there is room for; False when something has to wait."""
        if not self._waiting:
            return True
        self._publish()
        if self._waiting and not self._asked_for_space:
            self.times_full += 1
            self._asked_for_space = True
            if self._ring.want_space(True):
                self._publish()
        if self._waiting:
            return False
        self._unsent.discard(self)
        if self._asked_for_space:
            self._asked_for_space = False
            self._ring.want_space(False)
        return True

    def _publish(self) -> None:
        published = self._ring.push_batch(bytes(self._waiting))
        if published:
            del self._waiting[: published * BYTES_PER_SLOT]
            self._ring_bell()

    def clear(self) -> None:
        """The consumer is dead: nobody will take what waits."""
        self._waiting.clear()
        self._unsent.discard(self)
        self._asked_for_space = False

    def rebind(self) -> None:
        """The consumer has a successor and the ring is new."""
        self.clear()
        self._ring.rebind()
