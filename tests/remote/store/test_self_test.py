"""Stores that break a promise are refused, each by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Barrier, BrokenBarrierError

import pytest

from mpbroker.remote.store import self_test
from mpbroker.remote.store.object_store import ObjectInfo, StoreError
from mpbroker.remote.store.self_test import RACERS, StoreUnfit, check_store
from tests.support.fault_store import Fault, FaultStore, MemoryStore
from tests.support.polling import PATIENCE_S


class Overwrites(MemoryStore):
    """Ignores the condition."""

    def create(self, name: str, body: bytes) -> bool:
        self.put(name, [body], len(body))
        return True


class OverwritesAndDenies(MemoryStore):
    def create(self, name: str, body: bytes) -> bool:
        was_there = name in self.objects
        self.put(name, [body], len(body))
        return not was_there


class LooksFirst(MemoryStore):
    """Looks whether the object is there, then writes it: wrong only where several do so at once."""

    def __init__(self) -> None:
        super().__init__()
        self._meet = Barrier(RACERS)

    def create(self, name: str, body: bytes) -> bool:
        was_there = name in self.objects
        if "race" in name:
            self._meet.wait(PATIENCE_S)
        if not was_there:
            self.put(name, [body], len(body))
        return not was_there


class OverwritesInRaces(MemoryStore):
    """One wins, and another one's bytes are there."""

    def create(self, name: str, body: bytes) -> bool:
        was_there = not super().create(name, body)
        if was_there and "race" in name:
            self.put(name, [body], len(body))
        return not was_there


class ListsLate(MemoryStore):
    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        yield from list(super().list(prefix, after))[:-1]


class ListsAtRandom(MemoryStore):
    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        yield from reversed(list(super().list(prefix, after)))


class IgnoresAfter(MemoryStore):
    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        del after
        return super().list(prefix)


class IgnoresRanges(MemoryStore):
    def get(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        del position, length
        return super().get(name)


class KeepsAll(MemoryStore):
    def delete(self, names: Iterable[str]) -> None:
        del names


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        (Overwrites, "creates an object that is there"),
        (OverwritesAndDenies, "replaces an object"),
        (LooksFirst, "several create one object at the same time"),
        (OverwritesInRaces, "has another object than the one that was created"),
        (ListsLate, "lists too much, too little"),
        (ListsAtRandom, "in disorder"),
        (IgnoresAfter, "after a name"),
        (IgnoresRanges, "those of a range"),
        (KeepsAll, "objects that were deleted"),
    ],
)
def test_a_store_that_breaks_a_promise_is_refused(unfit: type[MemoryStore], why: str) -> None:
    store = unfit()
    with pytest.raises(StoreUnfit, match=why):
        check_store(store)
    assert unfit is KeepsAll or store.objects == {}


def test_a_good_store_passes_and_is_empty_afterwards() -> None:
    store = MemoryStore()
    store.create("mpbroker/format", b"")
    check_store(store)
    assert list(store.objects) == ["mpbroker/format"]


def test_answers_that_are_lost_are_an_outage_and_no_breach() -> None:
    for faults in ((Fault.ERROR,), (Fault.LOST,), (None, None, *[Fault.LOST] * RACERS)):
        store = FaultStore(MemoryStore())
        store.plan("create", *faults)
        with pytest.raises(StoreError):
            check_store(store)


def test_a_race_without_a_winner_passes() -> None:
    """A client that repeats a request by itself finds its own object there."""

    class Repeats(MemoryStore):
        def create(self, name: str, body: bytes) -> bool:
            super().create(name, body)
            return super().create(name, body)

    check_store(Repeats())


def test_racers_start_together() -> None:
    """Else the race would find nothing: `LooksFirst` passes if each racer comes alone."""
    met = Barrier(RACERS)

    class Meets(MemoryStore):
        def create(self, name: str, body: bytes) -> bool:
            if "race" in name:
                met.wait(PATIENCE_S)
            return super().create(name, body)

    try:
        check_store(Meets())
    except BrokenBarrierError:
        pytest.fail("the racers did not come together")
    assert self_test.RACES >= 4
