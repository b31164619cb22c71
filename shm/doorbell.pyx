"""Doorbells wake sleeping processes, and need no system call for awake ones. `doorbell.pxd` explains how."""
import os

from shm.doorbell cimport DOORBELL_BYTES, bell_arm, bell_disarm, bell_drain, bell_ring, bell_sleep
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES = DOORBELL_BYTES


cdef class Doorbell:
    """A doorbell in DOORBELL_BYTES of shared memory. `fd` is an inherited, non-blocking eventfd."""

    def __init__(self, unsigned char[::1] block, int fd):
        if block.shape[0] < DOORBELL_BYTES:
            raise ValueError(f"a doorbell needs {DOORBELL_BYTES} bytes, the block has {block.shape[0]}")
        if <size_t>&block[0] % 64:
            raise ValueError("a doorbell must lie on a cache line of its own")
        self.keep = block
        self.ref.armed = <uint64_t *>&block[0]
        self.ref.fd = fd

    @staticmethod
    def new_fd() -> int:
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def fd(self) -> int:
        return self.ref.fd

    def ring(self) -> None:
        """Wake the consumer if it sleeps. A producer calls this once after publishing a batch."""
        bell_ring(&self.ref)

    def arm(self) -> None:
        """Announce a sleep. The consumer calls this before the last check of its rings."""
        bell_arm(&self.ref)

    def disarm(self) -> None:
        bell_disarm(&self.ref)

    def drain(self) -> None:
        """Reset the eventfd after a wake-up. Consumer only."""
        bell_drain(&self.ref)

    def wait(self, timeout_ms: int, something_waits: Callable[[], bool]) -> bool:
        """Arm the bell. Unless `something_waits()`, sleep until the bell rings, a signal or the timeout.

        Return True if the bell has rung, or if something waits. Consumer only.
        """
        cdef int most_ms = timeout_ms
        cdef bint is_rung, waits = False
        bell_arm(&self.ref)
        try:
            waits = something_waits()
            if waits:
                return True
            with nogil:
                is_rung = bell_sleep(&self.ref, most_ms)
            return is_rung
        finally:
            bell_disarm(&self.ref)
            if waits:
                # Its producer has rung meanwhile, as a rule: the next sleep must not end for that.
                bell_drain(&self.ref)
