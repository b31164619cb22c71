"""Access to a log worker's block of unshipped rounds; `unshipped.pxd` has the layout."""
from libc.stdint cimport uint64_t
from libc.string cimport memcpy
from typing import NamedTuple

from mpbroker.ipc.unshipped cimport LIFE_SHIFT, UNSHIPPED_HEAD_BYTES, UnshippedEntry, UnshippedHead
from shm.atomics cimport fence_acquire, fence_full, load_acquire, store_release
from shm.doorbell cimport Doorbell

assert sizeof(UnshippedHead) == UNSHIPPED_HEAD_BYTES and sizeof(UnshippedEntry) == 64


def block_bytes(uint64_t slots) -> int:
    """Return the size of a worker's block, for a table of this many slots."""
    return UNSHIPPED_HEAD_BYTES + slots * sizeof(UnshippedEntry)


cdef class Unshipped:
    """A log worker's side. `word` is the tier's, `life` counts the processes of the worker.

    What a predecessor was writing is void from here on.
    """

    def __init__(
        self, unsigned char[::1] block, unsigned char[::1] word, Doorbell tier, uint64_t life
    ) -> None:
        self.keep = [block, word, tier]
        self.ref.head = <UnshippedHead *>&block[0]
        self.ref.entries = <UnshippedEntry *>(&block[0] + UNSHIPPED_HEAD_BYTES)
        self.ref.room = (block.shape[0] - UNSHIPPED_HEAD_BYTES) // sizeof(UnshippedEntry)
        self.ref.shipped = <uint64_t *>&word[0]
        self.ref.life = life << LIFE_SHIFT
        self.ref.tier = &tier.ref
        store_release(&self.ref.head.number, 0)
        fence_full()


class Place(NamedTuple):
    """The offset of a batch, and where it lies: the base of its segment, and the position in that."""

    offset: int
    segment_base: int
    position: int


class Unsent(NamedTuple):
    """A partition's part in a round: its bytes from `begin` to `end`."""

    slot: int
    generation: int
    log_start: int
    begin: Place
    end: Place


def round_number(const unsigned char[::1] block) -> int:
    """Return the number of the round that a log worker shows; 0 if it shows none."""
    return load_acquire(&(<UnshippedHead *>&block[0]).number)


def read_round(const unsigned char[::1] block) -> tuple[int, list[Unsent]] | None:
    """Return the round that a log worker shows, with its number; None if it shows none, or just another one.
    """
    cdef UnshippedHead *head = <UnshippedHead *>&block[0]
    cdef UnshippedEntry *entries = <UnshippedEntry *>(&block[0] + UNSHIPPED_HEAD_BYTES)
    cdef UnshippedEntry e
    cdef uint64_t number = load_acquire(&head.number)
    cdef uint64_t i, room = (block.shape[0] - UNSHIPPED_HEAD_BYTES) // sizeof(UnshippedEntry)
    if number == 0:
        return None
    found = []
    for i in range(min(head.count, room)):
        memcpy(&e, &entries[i], sizeof(e))
        found.append(
            Unsent(
                e.slot, e.generation, e.log_start,
                Place(e.begin.offset, e.begin.segment_base, e.begin.position),
                Place(e.end.offset, e.end.segment_base, e.end.position),
            )
        )
    fence_acquire()
    return (number, found) if load_acquire(&head.number) == number else None
