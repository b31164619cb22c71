"""Brokers that own a ledger in turn: nothing that was promised is lost, and every rule is needed for that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.leading import ALWAYS, NEVER
from mpbroker.remote.ledger import ledger as ledger_module
from mpbroker.remote.ledger import reader as reader_module
from mpbroker.remote.ledger import snapshots as snapshots_module
from mpbroker.remote.ledger.claim import Claim
from mpbroker.remote.ledger.entries import Header, decode_header, entry_name
from mpbroker.remote.ledger.events import StandbySet
from mpbroker.remote.ledger.lease import MARGIN, StandbyWatch
from mpbroker.remote.ledger.ledger import Ledger, _Pending
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.ledger.trimming import trim
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.remote.tier.leadership import Leadership
from tests.support.forms import pick
from tests.support.ledger_parts import Serial
from tests.support.standby_world import (
    CUT_OFF,
    LEASE_MS,
    LONELY,
    OUTAGES,
    RUDE,
    SLEEPY,
    STOPPING,
    Mode,
    Rules,
    Violation,
    World,
)

ROUNDS = 300
WALKS = pick("walks of each kind", short=4, long=1_500)
WALKS_MAX = 200
LEDGER, LOCAL = Mode(), Mode("local")
CLOCKS, COPIES = Mode(clocks_stop=True), Mode(copies=True)
OF_SLEEPERS, OF_KILLERS, OF_CUT_OFF = (Mode(temper=one) for one in (SLEEPY, RUDE, CUT_OFF))
OF_LEAVERS, OF_OUTAGES, OF_LONELY = (Mode(temper=one) for one in (STOPPING, OUTAGES, LONELY))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A week of a ledger passes in a minute. A walk has no power cuts."""
    monkeypatch.setattr(ledger_module, "SNAPSHOT_EVERY", 3)
    monkeypatch.setattr(snapshots_module, "NAMED_EVERY_MS", 8_000)
    monkeypatch.setattr(snapshots_module, "NAMED", 3)
    monkeypatch.setattr(reader_module, "ThreadPoolExecutor", Serial)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def walk(seed: int, place: Path, mode: Mode, rules: type[Rules] = Rules) -> World:
    directory = place / str(seed)
    directory.mkdir()
    world = World(seed, directory, rules, mode, ROUNDS)
    try:
        world.run()
    except Violation as violation:
        violation.add_note(f"seed {seed}, {mode}")
        raise
    finally:
        shutil.rmtree(directory)
    return world


@pytest.mark.parametrize("mode", [LEDGER, LOCAL, CLOCKS, COPIES], ids=str)
def test_what_is_promised_holds(tmp_path: Path, mode: Mode) -> None:
    worlds = [walk(seed, tmp_path, mode) for seed in range(WALKS)]
    assert sum(one.take_overs for one in worlds) > WALKS / 2
    assert sum(one.truth.state.trimmed_before > 0 for one in worlds) > WALKS / 2


# ---- what becomes of it without one of the rules


class GrowsAndComparesWho(Ledger):
    """Makes the entry anew for each try, and takes any entry of this start for it."""

    def append(self, events: Any = (), *, is_renewal: bool = False) -> None:
        if self._pending is not None:
            self._pending, is_renewal = None, True
        super().append(events, is_renewal=is_renewal)

    def _is_the_same(self, found: bytes, body: bytes) -> bool:
        ours, theirs = decode_header(self.seq + 1, body), decode_header(self.seq + 1, found)
        return (ours.owner, ours.start) == (theirs.owner, theirs.start)


class AcknowledgesForeign(Ledger):
    """Takes whatever is there for its own."""

    def _is_the_same(self, found: bytes, body: bytes) -> bool:
        del found, body
        return True


class CountsFromLastTry(Ledger):
    """Has the lease begin with the last try of an entry."""

    def _create(self, pending: _Pending) -> bytes | None:
        if self._pending is pending:
            self._pending = pending._replace(tried_ns=self._boot_ns())
        return super()._create(pending)


class KnowsNoCopies(Ledger):
    """Goes on where its owner's name is the last one."""

    def _check_owner(self, last: Header) -> None:
        owner = self._file.owner
        owner.starts, owner.last_seq = [last.start], max(owner.last_seq, last.seq)
        super()._check_owner(last)


class HasNoMargin(Leadership):
    """Leads as long as a standby waits."""

    def _lead_until(self, until_ns: int) -> None:
        margin_ns = 0 if until_ns in (ALWAYS, NEVER) else round(LEASE_MS * MARGIN * 1e6)
        super()._lead_until(until_ns + margin_ns)


class NamesInLedgerFirst(Leadership):
    """Has the owner's file follow the ledger."""

    def _set_standbys(self, broker_ids: Iterable[int]) -> None:
        super()._set_standbys(set(broker_ids) & self._ledger.state.standbys.keys())


class ClaimsUnnamed(StandbyWatch):
    """Claims whether the ledger names it or not."""

    def may_claim(self, state: RemoteState) -> bool:
        named = RemoteState()
        named.leader, named.is_released = state.leader, state.is_released
        named.standbys = {self._broker_id: StandbySet(self._broker_id, "", "", {})}
        return super().may_claim(named)


class ClaimsAtFirstAnswer(StandbyWatch):
    """Gives the owner no time after an outage."""

    def failed(self) -> None:
        self._absent_ns = None

    def _answered(self, asked_ns: int) -> None:
        self._answers_ns = self._answers_ns or asked_ns


class WaitsHalf(StandbyWatch):
    """Has less patience than it owes."""

    def _lease_ns(self, state: RemoteState) -> int:
        return super()._lease_ns(state) // 2


def settle_without_look(reader: LedgerReader, claim: Claim) -> bool:
    """Take a create that was done for a claim that is won."""
    reader.read_to_end()
    if reader.seq == claim.seq - 1 and reader.store.create(entry_name(claim.seq), claim.body):
        reader.follow(claim.seq, claim.body)
    return reader.last is not None and reader.last.owner == claim.writer.owner


def trim_all(store: ObjectStore, state: RemoteState, may_delete: Callable[[], object]) -> int:
    """Delete all that is old."""
    firsts, state.firsts = state.firsts, []
    try:
        return trim(store, state, may_delete)
    finally:
        state.firsts = firsts


def without(**rules: object) -> type[Rules]:
    return type("Without", (Rules,), rules)


# Each with a mode in which it bites, and the seed of a walk that does.
NEEDED = {
    "the bytes of an entry are fixed": (without(ledger=GrowsAndComparesWho), LEDGER, 22),
    "bytes are compared": (without(ledger=AcknowledgesForeign), LEDGER, 19),
    "the first try counts": (without(ledger=CountsFromLastTry), OF_CUT_OFF, 6),
    "the owner's file knows starts and entries": (without(ledger=KnowsNoCopies), COPIES, 11),
    "the owner's margin": (without(leadership=HasNoMargin), OF_LONELY, 56),
    "only who is named claims": (without(watch=ClaimsUnnamed), LEDGER, 29),
    "the store has answered for a while": (without(watch=ClaimsAtFirstAnswer), OF_OUTAGES, 42),
    "a standby waits for the whole lease": (without(watch=WaitsHalf), LEDGER, 0),
    "a claim reads to the end after its create": (without(settle=settle_without_look), OF_SLEEPERS, 29),
    "the first entries of starts and generations stay": (without(trim=trim_all), OF_SLEEPERS, 281),
    "a claim is on disk first": (without(claim_is_kept=False), OF_KILLERS, 56),
    "the owner's file names standbys first": (without(leadership=NamesInLedgerFirst), OF_CUT_OFF, 40),
    "a start is in before clients are served": (without(start_comes_first=False), LEDGER, 35),
    "who releases the ledger serves no more": (without(stops_before_release=False), OF_LEAVERS, 11),
    "a start shows what the ledger has": (without(opens_at_ledger_end=False), LEDGER, 5),
    "what follows waits for the ledger, too": (without(waits_for_causes=False), LEDGER, 7),
    "a take-over begins an epoch": (without(begins_epochs=False), LOCAL, 38),
    "cuts are closed": (without(cuts_are_closed=False), LOCAL, 7),
}


@pytest.mark.parametrize(("rules", "mode", "seed"), NEEDED.values(), ids=NEEDED)
def test_each_rule_is_needed(tmp_path: Path, rules: type[Rules], mode: Mode, seed: int) -> None:
    def walk_on() -> None:
        for further in range(WALKS_MAX):
            walk(seed + further, tmp_path, mode, rules)

    with pytest.raises(Violation):
        walk_on()
