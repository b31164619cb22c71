"""The interface of object stores. All calls block, and several threads may make them at once.

Nothing else may be assumed: a bucket has no rename, no append and no lock. Creating an object only if it is
absent (`create`) is the one conditional operation; the ledger's order and the fence of its owner rest on it
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

DELETED_AT_ONCE: Final = 300


class StoreError(Exception):
    """A request failed, or had no answer in time; it may have been applied. The message names the object."""


class ObjectMissing(StoreError):
    """Raised when there is no object of this name."""


class ObjectInfo(NamedTuple):
    """An object in a listing. `modified_ms`: by the store's clock."""

    name: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """A store of immutable objects. Names are relative to the prefix that the store was opened with.

    Each request ends within the store's request timeout, or raises StoreError.
    """

    def create(self, name: str, body: bytes) -> bool:
        """Create an object; return False if one of this name exists. Durable on return.

        After a StoreError, or False for a name that only the caller uses, the object may be the caller's:
        an earlier try may have been applied. Read it and compare all bytes. Raises StoreError.
        """

    def put(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        """Write an object of `size` bytes, durably; replace one of the same name. Raises StoreError.

        `pieces` is read once. The object does not exist before all its bytes are there.
        """

    def get(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        """Return the object's bytes in this range, fewer at its end. Raises ObjectMissing, StoreError."""

    def size(self, name: str) -> int | None:
        """Return the object's size in bytes, or None if there is none. Raises StoreError."""

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose names begin with `prefix` and come after `after`, by name.

        `prefix` ends with "/" or is empty. Raises StoreError.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that are absent are no error. Raises StoreError."""


def delete_checked(store: ObjectStore, names: Sequence[str], may_delete: Callable[[], object]) -> None:
    """Delete objects, DELETED_AT_ONCE by one request.

    `may_delete` is called before each request, and raises if the store is no longer this broker's. Raises
    StoreError, and what that raises.
    """
    for start in range(0, len(names), DELETED_AT_ONCE):
        may_delete()
        store.delete(names[start : start + DELETED_AT_ONCE])
