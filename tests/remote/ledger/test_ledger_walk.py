"""Random walks of owners, of a store that answers late or never, and of processes that die anywhere.

The walk knows what was acknowledged. Each rule of `ledger.py` is taken away once, and the walks must notice.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from mpbroker.remote.ledger import ledger as ledger_module
from mpbroker.remote.ledger import reader as reader_module
from mpbroker.remote.ledger.entries import LedgerDamaged, decode_header
from mpbroker.remote.ledger.events import Event, SegmentAdded, Started
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.snapshots import PREFIX as SNAPSHOTS
from mpbroker.remote.store.object_store import StoreError
from mpbroker.storage.names import REMOTE_OWNER
from tests.support.fault_store import Fault, FaultStore, MemoryStore
from tests.support.forms import rounds
from tests.support.ledger_parts import STARTED, TOPIC, TOPIC_ID, Serial, read, segment, snapshot_if_due

T = TypeVar("T")
STEPS = 60
ODDS = {Fault.LATE: 0.12, Fault.LOST: 0.12, Fault.ERROR: 0.04}
KILLED = 0.03
WALKS_MAX = 400


class Killed(BaseException):
    """The process ends here."""


class Violation(AssertionError):
    """Something that was promised does not hold."""


class KillingStore(FaultStore):
    """Kills its caller before or after some of its calls."""

    def _do(self, operation: str, name: str, do: Callable[[], T]) -> T:
        if operation == "get":
            # Threads read ahead: how many of them would draw lots differs from run to run.
            return super()._do(operation, name, do)
        at = self._chance.random()
        if at < KILLED:
            raise Killed
        done = super()._do(operation, name, do)
        if at > 1 - KILLED:
            raise Killed
        return done


class Machine:
    """A disk, and the process that runs on it or not."""

    def __init__(self, walk: Walk, directory: Path) -> None:
        self.walk = walk
        self.directory = directory
        self.ledger: Ledger | None = None
        self.runs = False
        self.is_fenced = False
        self.given: list[SegmentAdded] = []

    def step(self) -> None:
        try:
            self._step()
        except StoreError:
            pass
        except Killed:
            self.ledger = None
        except LedgerDamaged as error:
            raise Violation(str(error)) from error
        except Fenced as error:
            if self.walk.is_alone:
                raise Violation(f"the only owner was fenced: {error}") from error
            self.ledger, self.is_fenced = None, True

    def _step(self) -> None:
        chance = self.walk.chance
        if self.ledger is None:
            self.ledger = self.walk.kind(
                LedgerReader(self.walk.store), OwnerFile(self.directory), self.walk.clock
            )
            self.runs, self.given = False, []
        if not self.runs:
            self.ledger.start(STARTED)
            self.runs = True
        elif chance.random() < 0.1:
            snapshot_if_due(self.ledger)
        elif chance.random() < 0.1:
            self.ledger.check_fence()
        else:
            self._append(self.ledger)

    def _append(self, ledger: Ledger) -> None:
        events: list[Event] = []
        if not self.given:
            # Those that were given and are not known to be in.
            if TOPIC_ID not in ledger.state.topics:
                events.append(TOPIC)
            segments = ledger.state.segments_of(TOPIC_ID, 0)
            base = segments[-1].end if segments else 0
            self.given = [
                self.walk.new_segment(base + 10 * at) for at in range(self.walk.chance.randint(1, 3))
            ]
            events += self.given
        elif self.walk.chance.random() < 0.5:
            more = self.walk.new_segment(self.given[-1].end)
            self.given.append(more)
            events = [more]
        ledger.append(events)
        self.walk.acknowledged += self.given
        self.given = []


class Walk:
    """One walk of a seed."""

    def __init__(self, seed: int, kind: type[Ledger], place: Path, *, is_alone: bool) -> None:
        self.chance = random.Random(seed)
        self.kind = kind
        self.is_alone = is_alone
        self.inner = MemoryStore()
        self.store = KillingStore(self.inner, self.chance, ODDS)
        self.acknowledged: list[SegmentAdded] = []
        self._place = place
        self._time_ms = 0
        self._number = 0
        self._machines = [self._machine()]

    def clock(self) -> int:
        self._time_ms += 1
        return self._time_ms

    def new_segment(self, base: int) -> SegmentAdded:
        """Return a segment whose content is its own: two tries of it would be two segments."""
        self._number += 1
        return msgspec.structs.replace(segment(base), size=self._number)

    def run(self) -> None:
        for _ in range(STEPS):
            if not self.is_alone and self.chance.random() < 0.05 and len(self._machines) < 3:
                self._machines.append(self._machine())
            if self.store.late and self.chance.random() < 0.3:
                self.store.deliver(self.chance.randrange(self.store.late))
            self.chance.choice(self._machines).step()
            if self.chance.random() < 0.1:
                self._check()
        while self.store.deliver():
            pass
        self._check()

    def _machine(self) -> Machine:
        """Make a machine with a disk of its own, or with a copy of the first one's."""
        directory = self._place / str(len(list(self._place.iterdir())))
        directory.mkdir()
        owner = self._place / "0" / REMOTE_OWNER
        if owner.exists() and self.chance.random() < 0.5:
            shutil.copy(owner, directory)
        return Machine(self, directory)

    def _check(self) -> None:
        try:
            found = read(self.inner)
            snapshots = [name for name in self.inner.objects if name.startswith(SNAPSHOTS)]
            bare = MemoryStore()
            bare.objects = {name: body for name, body in self.inner.objects.items() if name not in snapshots}
            whole = read(bare)
        except LedgerDamaged as error:
            raise Violation(str(error)) from error
        segments = found.state.segments_of(TOPIC_ID, 0)
        if list(segments) != list(whole.state.segments_of(TOPIC_ID, 0)):
            raise Violation("a snapshot says something else than the entries")
        places = {one: at for at, one in enumerate(segments)}
        if not all(one in places for one in self.acknowledged):
            raise Violation("an acknowledged segment is not there")


def walk(seed: int, kind: type[Ledger], place: Path, *, is_alone: bool) -> None:
    directory = place / f"{seed}"
    directory.mkdir(parents=True)
    Walk(seed, kind, directory, is_alone=is_alone).run()
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "SNAPSHOT_EVERY", 3)
    monkeypatch.setattr(ledger_module, "EVENTS_MAX", 2)
    monkeypatch.setattr(reader_module, "ThreadPoolExecutor", Serial)
    # A walk has no power cuts.
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.mark.parametrize("is_alone", [True, False])
def test_what_is_acknowledged_is_there(tmp_path: Path, is_alone: bool) -> None:
    for seed in range(rounds(200)):
        walk(seed, Ledger, tmp_path, is_alone=is_alone)


class ComparesWho(Ledger):
    """Takes any entry that this start has written for the one it tried."""

    def _is_the_same(self, found: bytes, body: bytes) -> bool:
        ours, theirs = decode_header(self.seq + 1, body), decode_header(self.seq + 1, found)
        return (ours.owner, ours.start) == (theirs.owner, theirs.start)


class GrowsEntries(Ledger):
    """Makes the entry anew for each try, with what has come since."""

    def append(self, events=(), **kinds) -> None:  # type: ignore[no-untyped-def]
        self._pending = None
        super().append(events, **kinds)


class GrowsAndComparesWho(GrowsEntries, ComparesWho):
    pass


class AcknowledgesForeign(Ledger):
    """Takes whatever is there for its own."""

    def _is_the_same(self, found: bytes, body: bytes) -> bool:
        del found, body
        return True


class StartsSilently(Ledger):
    """Goes on where the one before ended, without an entry of its own."""

    def start(self, started: Started) -> None:
        self._check_cluster(started.cluster_id)
        self._reader.read_to_end()
        if self.seq == 0:
            super().start(started)
            return
        self._start = self._file.owner.starts[-1]
        self._check_owner(self._reader.last)  # type: ignore[arg-type]
        self._is_owner = True


class TrustsErrors(Ledger):
    """Forgets an entry whose create has failed."""

    def append(self, events=(), **kinds) -> None:  # type: ignore[no-untyped-def]
        try:
            super().append(events, **kinds)
        except StoreError:
            self._pending = None
            raise


@pytest.mark.parametrize(
    ("kind", "is_alone"),
    [
        (GrowsEntries, True),
        (GrowsAndComparesWho, True),
        (AcknowledgesForeign, False),
        (StartsSilently, True),
        (TrustsErrors, True),
    ],
)
def test_each_rule_is_needed(tmp_path: Path, kind: type[Ledger], is_alone: bool) -> None:
    def walk_on() -> None:
        for seed in range(WALKS_MAX):
            walk(seed, kind, tmp_path, is_alone=is_alone)

    with pytest.raises(Violation):
        walk_on()
