"""A claim is one entry: tried until it is decided, whoever is killed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.remote.ledger.claim import Claim, ClaimFile, new_claim, settle
from mpbroker.remote.ledger.events import TakenOver
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import OwnerDamaged
from mpbroker.remote.ledger.state import EventRefused
from mpbroker.remote.store.object_store import StoreError
from mpbroker.storage.names import REMOTE_CLAIM
from tests.support.fault_store import Fault, FaultStore, MemoryStore
from tests.support.ledger_parts import STARTED, TOPIC, ledger_of, read, segment

TAKEN = TakenOver("cluster", 2, "host", b"c" * 16, by_standby=True)


@pytest.fixture
def store() -> FaultStore:
    return FaultStore(MemoryStore())


@pytest.fixture
def owner(store: FaultStore, tmp_path: Path) -> Ledger:
    made = ledger_of(store, tmp_path)
    made.start(STARTED)
    return made


def claim_of(store: FaultStore) -> Claim:
    return new_claim(read(store), [TAKEN])


def test_a_claim_begins_the_next_generation(owner: Ledger, store: FaultStore) -> None:
    claim = claim_of(store)
    assert settle(read(store), claim)
    found = read(store)
    assert found.last is not None
    assert (found.seq, found.generation, found.last.owner) == (2, 2, claim.writer.owner)
    with pytest.raises(Fenced):
        owner.append([TOPIC])


@pytest.mark.usefixtures("owner")
def test_a_claim_that_would_make_the_ledger_unreadable_is_refused(store: FaultStore) -> None:
    with pytest.raises(EventRefused):
        new_claim(read(store), [TAKEN, segment(0)])


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST, Fault.LATE])
def test_a_claim_whose_answer_was_lost_is_decided_later(
    owner: Ledger, store: FaultStore, fault: Fault
) -> None:
    claim = claim_of(store)
    store.plan("create", fault)
    with pytest.raises(StoreError):
        settle(read(store), claim)
    assert settle(read(store), claim)
    assert not store.deliver() or read(store).seq == 2
    assert owner.seq == 1


def test_a_claim_that_is_applied_before_the_owner_writes_is_won(owner: Ledger, store: FaultStore) -> None:
    claim = claim_of(store)
    store.plan("create", Fault.LATE)
    with pytest.raises(StoreError):
        settle(read(store), claim)
    assert store.deliver()
    with pytest.raises(Fenced):
        owner.renew()
    assert settle(read(store), claim)


def test_a_claim_is_lost_when_the_owner_has_written(owner: Ledger, store: FaultStore) -> None:
    claim = claim_of(store)
    owner.renew()
    assert not settle(read(store), claim)
    owner.append([TOPIC])
    assert read(store).generation == 1


def test_of_two_claims_one_is_won(owner: Ledger, store: FaultStore) -> None:
    claims = [claim_of(store), claim_of(store)]
    assert [settle(read(store), one) for one in claims] == [True, False]
    assert owner.seq == 1


def test_a_claim_that_was_won_and_superseded_is_lost(owner: Ledger, store: FaultStore) -> None:
    claim = claim_of(store)
    assert settle(read(store), claim)
    assert settle(read(store), claim_of(store))
    assert not settle(read(store), claim)
    assert owner.seq == 1


def test_the_file_has_the_bytes_of_the_entry(owner: Ledger, store: FaultStore, tmp_path: Path) -> None:
    file = ClaimFile(tmp_path)
    assert file.read() is None
    claim = claim_of(store)
    file.write(claim)
    assert ClaimFile(tmp_path).read() == claim
    (tmp_path / REMOTE_CLAIM).write_bytes(b"2\n{")
    with pytest.raises(OwnerDamaged, match=REMOTE_CLAIM):
        file.read()
    file.remove()
    file.remove()
    assert file.read() is None
    assert owner.seq == 1
