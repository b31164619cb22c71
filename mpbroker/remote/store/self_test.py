"""Asks a store at the start whether it keeps what the ledger rests on.

A store that ignores the condition of a create, or checks it and writes in two steps, gives a ledger two
owners. The second kind shows only when several create one object at the same time.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final

from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore, StoreError

PREFIX: Final = "mpbroker/self-test/"
RACERS: Final = 8
RACES: Final = 4


class StoreUnfit(Exception):
    """Raised for a store that breaks a promise; the message says which one."""


def check_store(store: ObjectStore) -> None:
    """Try all operations, on objects below PREFIX that are deleted afterwards.

    Raises StoreUnfit, StoreError.
    """
    place = f"{PREFIX}{uuid.uuid4().hex}/"
    created, whole = f"{place}created", f"{place}whole"
    raced = [f"{place}race-{race}" for race in range(RACES)]
    names = sorted([created, whole, *raced])
    try:
        _one_creates(store, created)
        _reads_ranges(store, whole)
        for name in raced:
            _one_wins(store, name)
        _lists(store, place, names)
        store.delete([*names, f"{place}absent"])
        _expect(not list(store.list(place)), "lists objects that were deleted")
    finally:
        with contextlib.suppress(StoreError):
            store.delete(names)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StoreUnfit(f"the store {otherwise}: tiered storage cannot rest on it, use another one")


def _one_creates(store: ObjectStore, name: str) -> None:
    # After an answer that was lost the store has it already.
    store.create(name, b"first")
    _expect(not store.create(name, b"second"), "creates an object that is there")
    _expect(store.get(name) == b"first", "replaces an object where it may only create one")


def _reads_ranges(store: ObjectStore, name: str) -> None:
    body = bytes(range(100))
    store.put(name, [b"replaced"], 8)
    store.put(name, [body[:50], body[50:]], 100)
    _expect(store.size(name) == 100, "tells a wrong size")
    _expect(store.get(name, 10, 5) == body[10:15], "returns other bytes than those of a range")
    _expect(store.get(name, 90, 20) == body[90:], "returns other bytes than those of a range at the end")
    _expect(store.get(name) == body, "returns other bytes than were written")
    _expect(_is_missing(lambda: store.get(name + "-absent")), "returns an object that is absent")


def _one_wins(store: ObjectStore, name: str) -> None:
    """Let several create one object at once. Answers that were lost may leave no winner, never two."""
    start = Barrier(RACERS)

    def race(body: bytes) -> bool:
        start.wait()
        return store.create(name, body)

    bodies = [b"%d" % racer for racer in range(RACERS)]
    with ThreadPoolExecutor(RACERS) as racers:
        won = list(racers.map(race, bodies))
    winners = [body for body, has_won in zip(bodies, won, strict=True) if has_won]
    _expect(len(winners) <= 1, "lets several create one object at the same time, where one may")
    _expect(store.get(name) in (winners or bodies), "has another object than the one that was created")


def _lists(store: ObjectStore, place: str, names: list[str]) -> None:
    """Compare listings with the names that are there, in order."""
    listed = [found.name for found in store.list(place)]
    _expect(listed == names, "lists too much, too little or in disorder")
    listed = [found.name for found in store.list(place, names[1])]
    _expect(listed == names[2:], "lists too much or too little after a name")


def _is_missing(read: Callable[[], object]) -> bool:
    try:
        read()
    except ObjectMissing:
        return True
    return False
