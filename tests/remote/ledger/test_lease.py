"""The two sides of a lease, as units; the walk of standbys has them with a store."""

from __future__ import annotations

import pytest

from mpbroker.remote.ledger.events import (
    Event,
    Exported,
    Released,
    StandbyGone,
    StandbySet,
    Started,
    TakenOver,
)
from mpbroker.remote.ledger.lease import OwnerLease, StandbyWatch
from mpbroker.remote.ledger.state import RemoteState

MS = 1_000_000
LEASE_MS = 30_000


def state_of(*events: Event, lease_ms: int = LEASE_MS) -> RemoteState:
    state = RemoteState()
    state.apply([Started("cluster", 1, "host", lease_ms=lease_ms), StandbySet(2, "host", "", {})], 0)
    state.apply(events, 0)
    return state


def watch(until_ms: int, every_ms: int = 1_000, lease_ms: int = LEASE_MS) -> StandbyWatch:
    """Return one that has applied an entry at 0, and has heard until then that no other is there."""
    made = StandbyWatch(2, lease_ms)
    made.applied(0)
    for at_ms in range(every_ms, until_ms + 1, every_ms):
        made.absent(at_ms * MS)
    return made


def test_an_owner_is_valid_for_the_lease_without_the_margin() -> None:
    now_ns = 0
    lease = OwnerLease(LEASE_MS, lambda: now_ns)
    assert lease.valid_until_ns == 0
    assert lease.is_due()
    lease.renewed(5_000 * MS)
    assert (lease.due_ns, lease.valid_until_ns) == (15_000 * MS, 32_000 * MS)
    now_ns = 15_000 * MS - 1
    assert not lease.is_due()
    now_ns = 15_000 * MS
    assert lease.is_due()


def test_a_lease_grows_no_shorter() -> None:
    lease = OwnerLease(LEASE_MS, lambda: 0)
    lease.renewed(5_000 * MS)
    lease.renewed(4_000 * MS)
    assert lease.valid_until_ns == 32_000 * MS


def test_the_margin_is_enough_for_clocks_that_differ_by_five_percent() -> None:
    slow_owner_s = OwnerLease(LEASE_MS, lambda: 0)
    slow_owner_s.renewed(0)
    assert slow_owner_s.valid_until_ns / 0.95 < LEASE_MS * MS / 1.05


def test_a_standby_waits_for_the_whole_lease() -> None:
    assert not watch(29_000).may_claim(state_of())
    assert watch(30_000).may_claim(state_of())


def test_the_longer_lease_counts() -> None:
    assert not watch(30_000).may_claim(state_of(lease_ms=40_000))
    assert watch(40_000).may_claim(state_of(lease_ms=40_000))
    assert not watch(30_000, lease_ms=40_000).may_claim(state_of())


def test_a_new_owner_gets_longer_until_its_first_start() -> None:
    taken = TakenOver("cluster", 3, "host", b"cut", by_standby=True, lease_ms=LEASE_MS)
    state = state_of(taken)
    assert not watch(119_000).may_claim(state)
    assert watch(120_000).may_claim(state)
    state.apply([Started("cluster", 3, "host", lease_ms=LEASE_MS)], 0)
    assert watch(30_000).may_claim(state)


def test_each_entry_begins_the_wait_anew() -> None:
    made = watch(30_000)
    made.applied(30_001 * MS)
    assert not made.may_claim(state_of())


def test_a_standby_that_is_not_named_claims_nothing() -> None:
    assert not watch(90_000).may_claim(state_of(StandbyGone(2)))
    assert not watch(90_000).may_claim(state_of(StandbyGone(2), Released()))


def test_after_an_outage_the_owner_has_time_to_write() -> None:
    made = watch(60_000)
    made.failed()
    assert not made.may_claim(state_of())
    for at_ms in range(61_000, 71_000, 1_000):
        made.absent(at_ms * MS)
        assert not made.may_claim(state_of())
    made.absent(71_000 * MS)
    assert made.may_claim(state_of())


@pytest.mark.parametrize(("slept_ms", "may_claim"), [(5_000, True), (5_001, False)])
def test_a_standby_that_slept_hears_the_store_out_first(slept_ms: int, may_claim: bool) -> None:
    made = watch(60_000)
    made.absent((60_000 + slept_ms) * MS)
    assert made.may_claim(state_of()) == may_claim


def test_an_owner_that_released_the_ledger_is_not_waited_for() -> None:
    made = watch(0)
    assert not made.may_claim(state_of(Released()))
    made.absent(1 * MS)
    assert made.may_claim(state_of(Released()))
    assert not made.may_claim(state_of())
    assert not made.may_claim(state_of(Released(), Exported("cluster", 1, "host")))
