"""An object store whose user is killed at a chosen request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from mpbroker.remote.store.object_store import ObjectStore, StoreError
from tests.support.fault_store import ForwardingStore

T = TypeVar("T")


class Killed(BaseException):
    """The end of a process, as its last call sees it."""


class KillingStore(ForwardingStore):
    """Passes requests on; the one with the number `at` is the last.

    `is_applied`: that one is done, but its answer is lost. `requests` counts them.
    """

    def __init__(self, inner: ObjectStore, at: int = -1, *, is_applied: bool = False) -> None:
        super().__init__(inner)
        self.requests = 0
        self._at = at
        self._is_applied = is_applied

    def _do(self, operation: str, name: str, do: Callable[[], T]) -> T:  # noqa: ARG002 - all are alike
        number = self.requests
        self.requests += 1
        if number == self._at:
            if self._is_applied:
                with suppress(StoreError):
                    do()
            raise Killed
        return do()
