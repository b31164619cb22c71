"""Stores of tests that fail as they are told: each fault does what it says, and nothing else."""

from __future__ import annotations

import random
import threading

import pytest

from mpbroker.remote.store.object_store import StoreError
from tests.support.fault_store import Fault, FaultStore, MemoryStore
from tests.support.polling import PATIENCE_S


@pytest.fixture
def store() -> FaultStore:
    return FaultStore(MemoryStore())


@pytest.mark.parametrize(
    ("fault", "is_done"), [(Fault.ERROR, False), (Fault.LOST, True), (Fault.LATE, False)]
)
def test_calls_that_fail(store: FaultStore, fault: Fault, is_done: bool) -> None:
    store.plan("create", None, fault)
    assert store.create("a", b"1")
    with pytest.raises(StoreError):
        store.create("b", b"2")
    assert (store.size("b") is not None) == is_done
    assert store.deliver() == (fault is Fault.LATE)
    assert (store.size("b") is not None) == (fault is not Fault.ERROR)
    assert not store.deliver()
    assert store.calls == [("create", "a"), ("create", "b"), ("size", "b"), ("size", "b")]


def test_answers_that_are_torn(store: FaultStore) -> None:
    store.put("a", [b"12", b"34"], 4)
    store.plan("get", Fault.TORN)
    assert [store.get("a"), store.get("a")] == [b"12", b"1234"]


@pytest.mark.parametrize(("fault", "goes_on"), [(Fault.SLOW, True), (Fault.HANG, False)])
def test_calls_that_hang(store: FaultStore, fault: Fault, goes_on: bool) -> None:
    store.plan("delete", fault)
    store.create("a", b"1")
    failed = []

    def delete() -> None:
        try:
            store.delete(["a"])
        except StoreError as error:
            failed.append(error)

    thread = threading.Thread(target=delete)
    thread.start()
    assert store.waiting.acquire(timeout=PATIENCE_S)
    assert store.size("a") == 1
    store.release()
    thread.join()
    assert (bool(failed), store.size("a")) == ((False, None) if goes_on else (True, 1))


def test_an_outage(store: FaultStore) -> None:
    store.create("a", b"1")
    store.is_down = True
    for use in (lambda: store.get("a"), lambda: store.put("a", [b""], 0), lambda: list(store.list(""))):
        with pytest.raises(StoreError):
            use()
    store.is_down = False
    assert [found.name for found in store.list("")] == ["a"]


def test_faults_by_chance_are_the_same_for_a_seed() -> None:
    def walk(seed: int) -> str:
        store = FaultStore(MemoryStore(), random.Random(seed), {Fault.ERROR: 0.3, Fault.LATE: 0.3})
        outcome = ""
        for at in range(100):
            try:
                store.create(str(at), b"")
                outcome += "."
            except StoreError as error:
                outcome += "l" if "yet" in str(error) else "e"
        return outcome

    assert walk(1) == walk(1) != walk(2)
    assert set(walk(1)) == set(".le")
