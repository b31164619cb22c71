"""Object stores for tests: one in memory, and one around another that fails as told, or by chance."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import TypeVar

from mpbroker.remote.store.object_store import ObjectInfo, ObjectMissing, ObjectStore, StoreError
from tests.support.polling import PATIENCE_S

T = TypeVar("T")


class Fault(Enum):
    ERROR = auto()
    """Fails, and does nothing."""
    LOST = auto()
    """Does what it is asked, then fails: the answer is lost."""
    LATE = auto()
    """Fails, and does what it was asked when the test says `deliver`, or never."""
    TORN = auto()
    """A read returns half of the bytes."""
    HANG = auto()
    """Waits until the test says `release`, then fails."""
    SLOW = auto()
    """Waits until the test says `release`, then goes on."""


class MemoryStore:
    """Objects in a dictionary. (Protocol: ObjectStore.) `now_ms` is the store's clock."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified_ms: dict[str, int] = {}
        self.now_ms = 0
        self._lock = threading.Lock()

    def create(self, name: str, body: bytes) -> bool:
        with self._lock:
            if name in self.objects:
                return False
            self._set(name, body)
            return True

    def put(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        body = b"".join(pieces)
        if len(body) != size:
            raise ValueError(f"{name} has {len(body)} bytes, not {size}")
        with self._lock:
            self._set(name, body)

    def _set(self, name: str, body: bytes) -> None:
        self.objects[name] = body
        self.modified_ms[name] = self.now_ms

    def get(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        try:
            body = self.objects[name]
        except KeyError:
            raise ObjectMissing(f"{name} is not there") from None
        return body[position:] if length is None else body[position : position + length]

    def size(self, name: str) -> int | None:
        body = self.objects.get(name)
        return None if body is None else len(body)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        for name in sorted(self.objects):
            if name.startswith(prefix) and name > after:
                yield ObjectInfo(name, len(self.objects[name]), self.modified_ms.get(name, 0))

    def delete(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self.objects.pop(name, None)


class ForwardingStore:
    """Passes operations on to a store, by way of `_do`. (Protocol: ObjectStore.)"""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def create(self, name: str, body: bytes) -> bool:
        return self._do("create", name, lambda: self.inner.create(name, body))

    def put(self, name: str, pieces: Iterable[bytes], size: int) -> None:
        whole = list(pieces)
        self._do("put", name, lambda: self.inner.put(name, whole, size))

    def get(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        return self._do("get", name, lambda: self.inner.get(name, position, length))

    def size(self, name: str) -> int | None:
        return self._do("size", name, lambda: self.inner.size(name))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        yield from self._do("list", prefix, lambda: list(self.inner.list(prefix, after)))

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        self._do("delete", " ".join(doomed), lambda: self.inner.delete(doomed))

    def _do(self, operation: str, name: str, do: Callable[[], T]) -> T:
        raise NotImplementedError


class FaultStore(ForwardingStore):
    """Passes operations on to a store, but for those that have a fault.

    `plan` says what the next calls of an operation meet; `odds` are chances of faults of all operations that
    write. While `is_down` all fail. `calls` has operation and name of each call.
    """

    def __init__(
        self,
        inner: ObjectStore,
        chance: random.Random | None = None,
        odds: Mapping[Fault, float] | None = None,
    ) -> None:
        super().__init__(inner)
        self.is_down = False
        self.calls: list[tuple[str, str]] = []
        self.waiting = threading.Semaphore(0)
        self._plans: dict[str, list[Fault | None]] = defaultdict(list)
        self._late: list[Callable[[], object]] = []
        self._released = threading.Event()
        self._chance = chance or random.Random(0)
        self._odds = dict(odds or {})

    def plan(self, operation: str, *faults: Fault | None) -> None:
        """Set what the next calls of an operation meet, in order; None goes well."""
        self._plans[operation] += faults

    def deliver(self, which: int = 0) -> bool:
        """Do what a call that failed was asked; return False if there is none."""
        if which >= len(self._late):
            return False
        self._late.pop(which)()
        return True

    @property
    def late(self) -> int:
        """Return how many calls may still be applied."""
        return len(self._late)

    def release(self) -> None:
        """Let all calls that hang go on, and those to come."""
        self._released.set()

    def get(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        is_torn = self._plans["get"][:1] == [Fault.TORN]
        found = super().get(name, position, length)
        return found[: len(found) // 2] if is_torn else found

    def _do(self, operation: str, name: str, do: Callable[[], T]) -> T:
        self.calls.append((operation, name))
        fault = self._fault_of(operation)
        if fault in (Fault.HANG, Fault.SLOW):
            self.waiting.release()
            assert self._released.wait(PATIENCE_S), "nobody released it"
        if self.is_down or fault in (Fault.ERROR, Fault.HANG):
            raise StoreError(f"{name}: no answer")
        if fault is Fault.LATE:
            self._late.append(do)
            raise StoreError(f"{name}: no answer yet")
        done = do()
        if fault is Fault.LOST:
            raise StoreError(f"{name}: the answer was lost")
        return done

    def _fault_of(self, operation: str) -> Fault | None:
        if self._plans[operation]:
            return self._plans[operation].pop(0)
        if operation in ("create", "put", "delete") and self._odds:
            at = self._chance.random()
            for fault, odds in self._odds.items():
                if at < odds:
                    return fault
                at -= odds
        return None
