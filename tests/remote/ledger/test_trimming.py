"""Old entries go, and nobody notices but by the time that a read takes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mpbroker.remote.ledger import ledger as ledger_module
from mpbroker.remote.ledger.claim import new_claim, settle
from mpbroker.remote.ledger.entries import PREFIX, LedgerDamaged, entry_name, seq_of
from mpbroker.remote.ledger.events import CutTaken, SnapshotWritten, TakenOver
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.snapshots import NAMED, NAMED_EVERY_MS, snapshot_name
from mpbroker.remote.ledger.snapshots import PREFIX as SNAPSHOTS
from mpbroker.remote.ledger.trimming import trim
from mpbroker.remote.store.object_store import StoreError
from mpbroker.storage.names import REMOTE_OWNER
from tests.support.fault_store import Fault, FaultStore, MemoryStore
from tests.support.killing_store import Killed, KillingStore
from tests.support.ledger_parts import STARTED, TOPIC, TOPIC_ID, opened_ledger, read, segment, snapshot_if_due

EVERY = 5


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "SNAPSHOT_EVERY", EVERY)


class Days:
    """An owner that writes some entries each day."""

    def __init__(self, directory: Path) -> None:
        self.store = MemoryStore()
        self.now_ms = 0
        self.directory = directory
        self.start()
        self.ledger.append([TOPIC])

    def start(self) -> None:
        self.ledger = Ledger(LedgerReader(self.store), OwnerFile(self.directory), lambda: self.now_ms)
        self.ledger.start(STARTED)

    def write(self, days: int, cut_since: int | None = None) -> None:
        for _ in range(days):
            for _ in range(EVERY):
                base = 10 * self.ledger.seq
                self.ledger.append([segment(base)])
            if cut_since is not None:
                self.ledger.append([CutTaken(b"c" * 16, 0, 0, "", self.ledger.seq, (), (), 0, cut_since)])
                cut_since = None
            snapshot_if_due(self.ledger)
            self.now_ms += NAMED_EVERY_MS

    def trim(self) -> int:
        return trim(self.store, self.ledger.state, self.ledger.check_fence)

    def entries(self) -> list[int]:
        return [seq for found in self.store.list(PREFIX) if (seq := seq_of(found.name)) is not None]

    def named(self) -> list[int]:
        return [one.event.seq for one in self.ledger.state.snapshots]


@pytest.fixture
def days(tmp_path: Path) -> Days:
    return Days(tmp_path)


def bases(reader: LedgerReader) -> list[int]:
    return [one.base for one in reader.state.segments_of(TOPIC_ID, 0)]


def test_entries_go_when_a_snapshot_is_a_week_old(days: Days) -> None:
    days.write(NAMED - 1)
    assert days.trim() == 0
    wanted = bases(read(days.store))
    days.write(2)
    first = days.ledger.state.trimmed_before
    assert (first, len(days.named())) == (days.named()[0], NAMED)
    assert days.trim() > 0
    # The first is that of the start.
    assert days.entries() == [1, *range(first, days.ledger.seq + 1)]
    assert bases(read(days.store))[: len(wanted)] == wanted
    whole = LedgerReader(days.store)
    whole.read_to_end(by_snapshot=False)
    assert (whole.seq, bases(whole)) == (days.ledger.seq, bases(read(days.store)))
    assert days.trim() == 0


def test_a_day_is_one_by_the_ledgers_order(days: Days) -> None:
    """An owner whose clock is a year ahead for a moment has named one snapshot, and not a week of them."""
    days.write(2)
    days.now_ms += 365 * NAMED_EVERY_MS
    days.write(1)
    days.now_ms -= 365 * NAMED_EVERY_MS
    days.write(2)
    assert days.trim() == 0
    assert len(days.named()) == 5
    days.now_ms -= NAMED_EVERY_MS
    for _ in range(3):
        days.write(1)
        days.now_ms -= NAMED_EVERY_MS
    assert len(days.named()) == 5


@pytest.mark.parametrize("cut_since", [0, 12])
def test_the_state_at_a_kept_cut_can_be_read(days: Days, cut_since: int) -> None:
    """And what was shipped after it."""
    days.write(3)
    days.write(2, cut_since)
    cut = days.ledger.state.cuts[0].event
    before = LedgerReader(days.store)
    before.read_to_end(cut.after)
    days.write(2 * NAMED)
    days.trim()
    assert days.ledger.state.trimmed_before <= cut.after
    assert all(entry_name(seq) in days.store.objects for seq in range(cut_since or cut.after, cut.after))
    then = LedgerReader(days.store)
    then.read_to_end(cut.after)
    assert (then.seq, bases(then)) == (cut.after, bases(before))


def test_the_first_entries_of_starts_and_generations_stay(days: Days) -> None:
    days.write(3)
    days.start()
    start = days.ledger.seq
    days.write(2 * NAMED)
    days.trim()
    assert days.entries()[:2] == [1, start]
    assert start < days.ledger.state.trimmed_before


class Asleep(LedgerReader):
    """Has read to the end, and sleeps before the caller goes on."""

    def __init__(self, days: Days) -> None:
        super().__init__(days.store)
        super().read_to_end()
        self.days: Days | None = days

    def read_to_end(self, last: int | None = None, *, by_snapshot: bool = True) -> None:
        if self.days is not None:
            self.days.write(2 * NAMED)
            self.days.trim()
            self.days = None
            assert entry_name(self.seq + 1) not in self.store.objects  # type: ignore[attr-defined]
        else:
            super().read_to_end(last, by_snapshot=by_snapshot)


def test_a_claim_that_has_slept_fills_no_gap(days: Days) -> None:
    days.write(1)
    reader = Asleep(days)
    assert not settle(reader, new_claim(reader, [TakenOver("cluster", 2, "host", b"c" * 16)]))
    assert read(days.store).generation == 1
    days.ledger.append([segment(10_000)])
    # The claim, which is nobody's.
    assert days.trim() == 1


def test_a_start_that_has_slept_fills_no_gap(days: Days, tmp_path: Path) -> None:
    days.write(1)
    directory = tmp_path / "copy"
    directory.mkdir()
    shutil.copy(tmp_path / REMOTE_OWNER, directory)
    with pytest.raises(Fenced, match="are an older copy"):
        Ledger(Asleep(days), OwnerFile(directory)).start(STARTED)
    days.ledger.append([segment(10_000)])


def test_a_follower_that_has_slept_goes_on_at_a_snapshot(days: Days) -> None:
    days.write(1)
    asleep = read(days.store)
    days.write(2 * NAMED)
    days.trim()
    asleep.read_to_end()
    assert (asleep.seq, bases(asleep)) == (days.ledger.seq, bases(read(days.store)))


def test_a_request_of_long_ago_is_passed_over(days: Days) -> None:
    """It has created an entry where one was trimmed, and a start, which stays, comes after it."""
    days.write(1)
    asleep = read(days.store)
    late = new_claim(asleep, [TakenOver("cluster", 2, "host", b"c" * 16)])
    days.ledger.renew()
    days.start()
    assert days.ledger.seq == late.seq + 1
    days.write(2 * NAMED)
    days.trim()
    assert days.store.create(entry_name(late.seq), late.body)
    asleep.read_to_end()
    assert (asleep.seq, asleep.generation) == (days.ledger.seq, 1)


def test_an_entry_that_is_lost_is_no_trimmed_one(days: Days) -> None:
    days.write(2 * NAMED)
    days.trim()
    first = days.ledger.state.trimmed_before
    # A reader that begins at the newest snapshot does not need it.
    days.store.delete([entry_name(first + 2)])
    whole = LedgerReader(days.store)
    with pytest.raises(LedgerDamaged, match=f"{entry_name(first + 2)} is there|is missing"):
        whole.read_to_end(by_snapshot=False)


def test_a_lost_snapshot_takes_a_week_of_reading(days: Days) -> None:
    days.write(2 * NAMED)
    days.trim()
    wanted = bases(read(days.store))
    for found in list(days.store.list(SNAPSHOTS))[1:]:
        days.store.objects[found.name] = b""
    assert bases(read(days.store)) == wanted


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_kill_at_any_step_of_it(tmp_path: Path, is_applied: bool) -> None:
    days = Days(tmp_path)
    days.write(2 * NAMED)
    objects, at = dict(days.store.objects), 0
    wanted = bases(read(days.store))
    while True:
        days.store.objects = dict(objects)
        try:
            trim(KillingStore(days.store, at, is_applied=is_applied), days.ledger.state, lambda: None)
            break
        except Killed:
            at += 1
        for by_snapshot in (True, False):
            reader = LedgerReader(days.store)
            reader.read_to_end(by_snapshot=by_snapshot)
            assert bases(reader) == wanted
    assert at > 2


def test_a_snapshot_that_reads_otherwise_is_not_named(tmp_path: Path) -> None:
    store = FaultStore(MemoryStore())
    ledger = opened_ledger(store, tmp_path)
    ledger.append([TOPIC])
    for at in range(EVERY):
        ledger.append([segment(10 * at)])
    store.plan("get", Fault.TORN)
    with pytest.raises(StoreError, match="is another one than was written"):
        snapshot_if_due(ledger)
    assert ledger.state.snapshots == []
    assert snapshot_if_due(ledger)
    assert [one.event for one in ledger.state.snapshots] == [SnapshotWritten(7, 0)]


def test_an_owner_that_wakes_late_deletes_no_snapshot_of_its_successor(days: Days) -> None:
    days.write(1)
    days.ledger.append([segment(10_000 + at, end=10_001 + at) for at in range(EVERY)])
    for _ in range(EVERY):
        days.ledger.renew()
    asleep, made = days.ledger, days.ledger.due_snapshot()
    assert made is not None
    days.start()
    for at in range(6):
        days.now_ms += NAMED_EVERY_MS
        for _ in range(EVERY):
            days.ledger.append([segment(20_000 + days.ledger.seq, end=20_001 + days.ledger.seq)])
        assert snapshot_if_due(days.ledger), at
    named = days.named()
    asleep.write_snapshot(made)
    there = [one.name for one in days.store.list(SNAPSHOTS)]
    assert set(map(snapshot_name, named)) <= set(there)


def test_nothing_goes_when_another_broker_owns_the_ledger(days: Days) -> None:
    days.write(2 * NAMED)
    before = dict(days.store.objects)
    assert settle(read(days.store), new_claim(read(days.store), [TakenOver("cluster", 2, "host", b"c" * 16)]))
    with pytest.raises(Fenced):
        days.trim()
    assert len(days.store.objects) == len(before) + 1
