"""The time by the store's clock. It decides when objects are deleted: the owner's clock may be wrong."""

from __future__ import annotations

from typing import Final

from mpbroker.remote.store.object_store import ObjectStore, StoreError
from shm.clock import boot_ns

# Written to learn the time.
CLOCK: Final = "mpbroker/clock"


class StoreClock:
    """The store's clock: read once, and continued by a clock of this host that nobody sets.

    A store in a directory has the clock of this host, as it was at the start.
    """

    def __init__(self, store: ObjectStore) -> None:
        """Read it. Raises StoreError."""
        self._ahead_ms = store_ms(store) - boot_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._ahead_ms + boot_ns() // 1_000_000


def store_ms(store: ObjectStore, name: str = CLOCK) -> int:
    """Return the time by the store's clock: when the object `name` was written, now. Raises StoreError."""
    store.put(name, [b"\n"], 1)
    directory, _, _ = name.rpartition("/")
    for found in store.list(f"{directory}/"):
        if found.name == name:
            return found.modified_ms
    raise StoreError(f"{name} was written, and is not listed")
