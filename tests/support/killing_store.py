"""An object store whose user is killed at a chosen request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from mpbroker.remote.store.object_store import ObjectInfo, ObjectStore, StoreError

T = TypeVar("T")


class Killed(BaseException):
    """The end of a process, as its last call sees it."""


class KillingStore:
    """Passes requests on; the one with the number `at` is the last. (Protocol: ObjectStore.)

    `is_applied`: that one is done, but its answer is lost. `requests` counts them.
    """

    def __init__(self, inner: ObjectStore, at: int = -1, *, is_applied: bool = False) -> None:
        self.inner = inner
        self.requests = 0
        self._at = at
        self._is_applied = is_applied

    def create(self, name: str, body: bytes) -> bool:
        return self._do(lambda: self.inner.create(name, body))

    def put(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        self._do(lambda: self.inner.put(name, pieces, size))

    def get(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        return self._do(lambda: self.inner.get(name, position, length))

    def size(self, name: str) -> int | None:
        return self._do(lambda: self.inner.size(name))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return iter(self._do(lambda: list(self.inner.list(prefix, after))))

    def delete(self, names: Iterable[str]) -> None:
        self._do(lambda: self.inner.delete(names))

    def _do(self, do: Callable[[], T]) -> T:
        number = self.requests
        self.requests += 1
        if number == self._at:
            if self._is_applied:
                with suppress(StoreError):
                    do()
            raise Killed
        return do()
