"""Rings for Python: queues of descriptors between two processes, whose push never blocks.

Descriptors that do not fit into a ring wait in a queue of the producer, in order. The consumer is asked to
ring the producer's bell when there is room again. `mpbroker/ipc/slots.pxd` explains the descriptors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from mpbroker.ipc.process import ProcessContext
from shm.ring import BYTES_PER_SLOT, Ring


class Outbox:
    """The producer's end of a ring. `flush` publishes all pushed descriptors and rings the bell once.

    `unsent` is shared by all outboxes of a process. It has the outboxes with unpublished descriptors.
    """

    def __init__(self, ring: Ring, ring_bell: Callable[[], None], unsent: set[Outbox]) -> None:
        self._ring = ring
        self._ring_bell = ring_bell
        self._unsent = unsent
        self._waiting = bytearray()
        self._is_urgent = False
        self._asked_for_space = False
        self.times_full = 0

    def __len__(self) -> int:
        """Return the number of descriptors that are not published yet."""
        return len(self._waiting) // BYTES_PER_SLOT

    @property
    def can_publish(self) -> bool:
        """Return whether a descriptor waits to be published and the ring has room."""
        return bool(self._waiting and self._ring.room())

    def push(self, slot: bytes) -> None:
        self._waiting += slot
        self._is_urgent = True
        self._unsent.add(self)

    def push_quietly(self, slot: bytes) -> None:
        """Queue a descriptor without waking the consumer, which takes it when something else wakes it.

        If the ring is full, the consumer is woken nevertheless.
        """
        self._waiting += slot
        self._unsent.add(self)

    def flush(self) -> bool:
        """Publish as many descriptors as fit into the ring. Return True if none is left."""
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
        self._is_urgent = False
        self._unsent.discard(self)
        if self._asked_for_space:
            self._asked_for_space = False
            self._ring.want_space(False)
        return True

    def _publish(self) -> None:
        published = self._ring.push_batch(bytes(self._waiting))
        if published:
            del self._waiting[: published * BYTES_PER_SLOT]
        if self._waiting or (published and self._is_urgent):
            self._ring_bell()

    def clear(self) -> None:
        """Drop the unpublished descriptors, because the consumer is dead."""
        self._waiting.clear()
        self._is_urgent = False
        self._unsent.discard(self)
        self._asked_for_space = False

    def rebind(self) -> None:
        """Drop the unpublished descriptors and use the emptied ring of the restarted consumer."""
        self.clear()
        self._ring.rebind()


def any_waits(pairs: Iterable[RingPair]) -> bool:
    """Return whether `waiting()` is true for one of these pairs."""
    # A loop is faster than any(), and this runs before each sleep.
    for pair in pairs:  # noqa: SIM110
        if pair.waiting():
            return True
    return False


class RingPair:
    """The two rings between this process and the process with index `other`."""

    def __init__(self, context: ProcessContext, other: int) -> None:
        self.other = other
        self._ring_other = partial(context.ring, other)
        self._inbox = context.memory.ring(other, context.index)
        self._outbox = Outbox(context.memory.ring(context.index, other), self._ring_other, set())

    def waiting(self) -> bool:
        """Return whether there is a descriptor to take, or room to publish one that waits."""
        return self._inbox.waiting() > 0 or self._outbox.can_publish

    @property
    def has_unsent(self) -> bool:
        return bool(len(self._outbox))

    def take(self) -> list[bytes]:
        """Take and return the received descriptors, oldest first."""
        slots, producer_waits = self._inbox.take()
        if not slots:
            return []
        if producer_waits:
            self._ring_other()
        return [slots[at : at + BYTES_PER_SLOT] for at in range(0, len(slots), BYTES_PER_SLOT)]

    def push(self, slot: bytes) -> None:
        """Queue a descriptor; `flush` publishes it."""
        self._outbox.push(slot)

    def flush(self) -> None:
        """Publish the descriptors that fit, and ring the bell once. Call it before the process may sleep."""
        self._outbox.flush()

    def drop(self) -> None:
        """Drop all descriptors from and for the other process, because it is dead."""
        self._inbox.take(self._inbox.size)
        self._outbox.clear()

    def rebind(self) -> None:
        """Use the emptied rings of the other process, which was restarted."""
        self._inbox.rebind()
        self._outbox.rebind()
