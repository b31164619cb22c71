"""A model of brokers that own a ledger in turn: real ledgers, leases and claims, and a store that fails.

Time is that of the world; each broker has a clock of its own. All that may happen to a broker happens inside
its requests to the store: they fail, are applied late, or never; it is killed before or after one; or it
sleeps there, while the others go on. Records are segments of two partitions, one for each log worker; a
record of the second one may be caused by one of the first.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mpbroker.ipc.leading import ALWAYS, NEVER
from mpbroker.remote.ledger.claim import Claim, ClaimFile, new_claim, settle
from mpbroker.remote.ledger.entries import LedgerDamaged, Writer, decode_entry, digest, entry_name, seq_of
from mpbroker.remote.ledger.events import (
    Event,
    Released,
    SegmentAdded,
    StandbySet,
    Started,
    TakenOver,
)
from mpbroker.remote.ledger.lease import TO_START, StandbyWatch
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.registrations import (
    Registration,
    read_registrations,
    register,
    registration_name,
)
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.ledger.trimming import trim
from mpbroker.remote.restore.take_over import TakenLedger, write_owner
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.tier.leadership import Leadership
from mpbroker.storage.names import REMOTE_OWNER
from tests.support.fault_store import ForwardingStore, MemoryStore
from tests.support.ledger_parts import TOPIC, TOPIC_ID, segment, snapshot_if_due

T = TypeVar("T")
LEASE_S = 30.0
LEASE_MS = 30_000
WORKERS = (0, 1)


class Violation(AssertionError):
    """Something that was promised does not hold."""


class Killed(BaseException):
    """The process ends here."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


@dataclass(frozen=True)
class Odds:
    """Chances of what happens at each request, and in each round."""

    killed: float = 0.002
    asleep: float = 0.003
    error: float = 0.02
    late: float = 0.08
    lost: float = 0.08
    outage: float = 0.003
    cut_off: float = 0.006
    mended: float = 0.06
    stopped: float = 0.004
    gone: float = 0.004
    trims: float = 0.1
    # It falls asleep before an object is created (ten times as often before a claim or a start), and is cut
    # off after a create that has failed.
    dozes: float = 0.0
    cuts: float = 0.0
    # It is killed after a request that may be applied late.
    dies: float = 0.0


CALM = Odds(0, 0, 0, 0, 0, 0, 0, 1, 0, 0)
# What is more frequent than usual: nothing, sleep, kills and late requests, brokers that are cut off after a
# create without an answer, clean stops, outages, brokers that are cut off.
USUAL = Odds()
SLEEPY = Odds(dozes=0.05, trims=0.5)
RUDE = Odds(killed=0.005, late=0.4, dies=0.5)
CUT_OFF = Odds(cuts=0.5, mended=0.02, error=0.005, cut_off=0.002, lost=0.1)
STOPPING = Odds(stopped=0.03, lost=0.3, cuts=0.5)
OUTAGES = Odds(outage=0.015)
LONELY = Odds(outage=0.0, cut_off=0.02, mended=0.02, error=0.0, late=0.02, lost=0.02)
TEMPERS = (USUAL, SLEEPY, RUDE, CUT_OFF, STOPPING, OUTAGES, LONELY)


class Mode(NamedTuple):
    """What a walk has. `clocks_stop`: a sleep may stop a broker's clock. `copies`: a disk may be copied.

    `temper` is by chance if it is None.
    """

    acks: str = "ledger"
    clocks_stop: bool = False
    copies: bool = False
    temper: Odds | None = None


class Record(NamedTuple):
    uid: int
    worker: int
    offset: int
    epoch: int
    # The uid of the record that this one follows from.
    cause: int

    def event(self) -> SegmentAdded:
        found = segment(self.offset, self.worker, end=self.offset + 1)
        kept = {"segment_id": self.uid.to_bytes(16), "largest_ms": self.epoch}
        return replaced(found, log_crc=self.cause, indexes_crc=self.uid, **kept)


def replaced(event: SegmentAdded, **fields: object) -> SegmentAdded:
    return SegmentAdded(**({name: getattr(event, name) for name in event.__struct_fields__} | fields))


def record_of(event: SegmentAdded) -> Record:
    return Record(event.indexes_crc, event.partition, event.base, event.largest_ms, event.log_crc)


def records_of(state: RemoteState) -> list[list[Record]]:
    return [[record_of(one) for one in state.segments_of(TOPIC_ID, worker)] for worker in WORKERS]


class Truth(MemoryStore):
    """What is in the store, and what once was: the first object of each entry's name is history.

    It knows what each prefix of the ledger adds up to, and checks it.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.history: list[bytes] = []
        # Creates that took the place of an entry that was deleted.
        self.filled = 0
        self.state = RemoteState()
        self.known: set[int] = set()
        # Which record is at an offset of an epoch.
        self.names: dict[tuple[int, int, int], int] = {}

    def create(self, name: str, body: bytes) -> bool:
        is_made = super().create(name, body)
        seq = seq_of(name)
        if is_made and seq is not None:
            if seq == len(self.history) + 1:
                self._entered(body)
            else:
                self.filled += 1
        return is_made

    def is_history(self, reader: LedgerReader | Ledger) -> bool:
        inner = reader._reader if isinstance(reader, Ledger) else reader
        return inner.seq == 0 or digest(self.history[inner.seq - 1]) == inner.digest

    def name(self, record: Record) -> None:
        key = record.worker, record.epoch, record.offset
        expect(self.names.setdefault(key, record.uid) == record.uid, "an offset of an epoch has two records")

    def _entered(self, body: bytes) -> None:
        self.history.append(body)
        entry = decode_entry(len(self.history), body)
        for event in entry.events:
            if isinstance(event, TakenOver):
                named = event.broker_id in self.state.standbys
                expect(named, "a standby took over that the ledger does not name")
                self.world.take_overs += 1
        self.state.apply(entry.events, entry.header.time_ms)
        added = [record_of(one) for one in entry.events if isinstance(one, SegmentAdded)]
        self.known |= {one.uid for one in added}
        for one in added:
            expect(not one.cause or one.cause in self.known, "an effect is in the ledger without its cause")
            self.name(one)


class Connection(ForwardingStore):
    """A broker's way to the store."""

    def __init__(self, world: World, broker: Broker) -> None:
        super().__init__(world.truth)
        self.world = world
        self.broker = broker

    def _do(self, operation: str, name: str, do: Callable[[], T]) -> T:  # noqa: ARG002 - all are alike
        writes, creates = operation in ("create", "put", "delete"), operation == "create"
        world, odds = self.world, self.world.odds
        self._may_end()
        if creates:
            self._may_doze()
        if world.is_down or self.broker.is_cut_off or world.happens(odds.error):
            raise StoreError("no answer")
        if writes and world.happens(odds.late):
            world.late.append(do)
            if creates and world.happens(odds.dies):
                raise Killed
            self.broker.is_cut_off = creates and world.happens(odds.cuts)
            raise StoreError("no answer yet")
        done = do()
        self._may_end()
        if world.happens(odds.lost if writes else odds.error):
            self.broker.is_cut_off = creates and world.happens(odds.cuts)
            raise StoreError("the answer was lost")
        return done

    def _may_end(self) -> None:
        world = self.world
        if world.happens(world.odds.killed):
            raise Killed
        if world.happens(world.odds.asleep):
            self.broker.sleep(world.chance.choice((3.0, 15.0, 45.0, 120.0)) * world.chance.uniform(0.5, 1.0))

    def _may_doze(self) -> None:
        """Sleep for longer than a lease before an object is created."""
        world, is_owner = self.world, self.broker.is_owner()
        if world.happens(world.odds.dozes * (1 if is_owner else 10)):
            self.broker.sleep(
                LEASE_S * (world.chance.uniform(0.8, 3.0) if is_owner else world.chance.uniform(2, 5))
            )


class Rules:
    """How the brokers work. A test replaces what it wants to see fail."""

    ledger: type[Ledger] = Ledger
    leadership: type[Leadership] = Leadership
    watch: type[StandbyWatch] = StandbyWatch
    settle = staticmethod(settle)
    trim = staticmethod(trim)
    claim_is_kept = True
    start_comes_first = True
    stops_before_release = True
    begins_epochs = True
    opens_at_ledger_end = True
    # What follows from a record waits until that one is finished.
    waits_for_causes = True
    # acks=local: an entry has what all workers had at one instant.
    cuts_are_closed = True


class Broker:
    """A machine: its disk, its clock, and the process that runs on it or not."""

    def __init__(self, world: World, broker_id: int, directory: Path) -> None:
        self.world = world
        self.broker_id = broker_id
        self.directory = directory
        self.store = Connection(world, self)
        self.rate = world.chance.choice((0.95, 1.05))
        self.boot_s = 1.0
        self.clock_stands = False
        self.is_cut_off = False
        # On disk.
        self.log: list[list[Record]] = [[], []]
        self.process: Owner | Standby | None = None
        self._awake_s = 0.0
        self._sleeps = self._is_killed = False
        self._go, self._ended = threading.Semaphore(0), threading.Semaphore(0)

    def turn(self) -> bool:
        """Let it do something if it does not sleep; return whether this thread has to go on.

        One that has slept in the middle of a turn goes on in the thread where it fell asleep.
        """
        if self.world.now_s < self._awake_s:
            return True
        if self._sleeps:
            self._go.release()
            return False
        self.step()
        if is_killed := self._is_killed:
            self._ended.release()
        return not is_killed

    def sleep(self, seconds: float) -> None:
        """Sleep, and have another thread go on with the walk. Raises Killed."""
        self._awake_s = self.world.now_s + seconds
        self.clock_stands = self.world.mode.clocks_stop and self.world.happens(0.5)
        self._sleeps = True
        threading.Thread(target=self.world.go_on, daemon=True).start()
        self._go.acquire()
        self._sleeps = self.clock_stands = False
        if self._is_killed:
            raise Killed

    def kill(self) -> None:
        """End its process, wherever that is."""
        if self._sleeps:
            self._is_killed = True
            self._go.release()
            self._ended.acquire()
        self._is_killed, self._awake_s, self.process = False, 0.0, None

    def clock_ns(self) -> int:
        return round(self.boot_s * 1e9)

    def is_owner(self) -> bool:
        return isinstance(self.process, Owner) and self.process.has_started

    def leads(self) -> bool:
        return isinstance(self.process, Owner) and self.process.leads()

    def step(self) -> None:
        try:
            if self.process is None:
                if self.world.happens(self.world.restarts):
                    self.process = self._started()
            else:
                self.process.step()
        except StoreError:
            pass
        except Killed:
            self.process = None
        except LedgerDamaged as error:
            raise Violation(str(error)) from error
        except Fenced:
            # What is on this disk is set aside.
            (self.directory / REMOTE_OWNER).unlink(missing_ok=True)
            self.log = [[], []]
            self.process = Standby(self)

    def _started(self) -> Owner | Standby:
        claim = ClaimFile(self.directory).read()
        if claim is None and (self.directory / REMOTE_OWNER).exists():
            return Owner(self)
        return Standby(self, claim)


class Standby:
    """A process that follows the ledger, and claims it."""

    def __init__(self, broker: Broker, claim: Claim | None = None) -> None:
        self.broker = broker
        self.reader = LedgerReader(broker.store)
        self.watch = broker.world.rules.watch(broker.broker_id, LEASE_MS)
        self.file = ClaimFile(broker.directory)
        self.claim = claim

    def step(self) -> None:
        world, reader = self.broker.world, self.reader
        asked_ns, seq = self.broker.clock_ns(), reader.seq
        try:
            reader.read_to_end()
        except StoreError:
            self.watch.failed()
            raise
        finally:
            if reader.seq != seq:
                self.watch.applied(self.broker.clock_ns())
        expect(world.truth.is_history(reader), "a standby has read what is not in the ledger")
        if reader.seq == seq:
            self.watch.absent(asked_ns)
        if self.claim is None and self.watch.may_claim(reader.state):
            taken = TakenOver(
                *("cluster", self.broker.broker_id, "host", b"c" * 16),
                lease_ms=LEASE_MS,
                by_standby=True,
            )
            world.claimed(reader.state)
            assert reader.state.leader is not None
            former = StandbySet(reader.state.leader.broker_id, "host", "", {})
            self.claim = new_claim(reader, [taken, former])
            if world.rules.claim_is_kept:
                self.file.write(self.claim)
        if self.claim is not None:
            self._settle(self.claim)
        elif world.happens(0.1):
            named = Registration(self.broker.broker_id, "host", "", {}, 0, world.new_uid())
            register(self.broker.store, named)

    def _settle(self, claim: Claim) -> None:
        if self.broker.world.rules.settle(self.reader, claim):
            expect(
                self.broker.world.truth.is_history(self.reader), "a claim was won that is not in the ledger"
            )
            self._finish(claim.writer, claim.seq)
            self.broker.process = Owner(self.broker)
        else:
            self.file.remove()
            self.claim = None
            self.watch.applied(self.broker.clock_ns())

    def _finish(self, writer: Writer, seq: int) -> None:
        self.broker.log = records_of(self.reader.state)
        write_owner(self.broker.directory, TakenLedger(writer, seq), self.reader.state.standbys)
        self.broker.store.size("killed here")
        self.file.remove()


class Word:
    """The leading word. (As mpbroker.ipc.leading.Leading.)"""

    def __init__(self, until_ns: int) -> None:
        self.until_ns = until_ns


class Uncounted:
    """Counters that nobody reads."""

    def set(self, *_: int) -> None:
        """Forget it."""


class Owner:
    """A process that writes the ledger, and serves clients while it leads."""

    def __init__(self, broker: Broker) -> None:
        world, rules = broker.world, broker.world.rules
        self.world, self.broker, self.rules = world, broker, rules
        self.file = OwnerFile(broker.directory)
        self.ledger = rules.ledger(LedgerReader(broker.store), self.file, world.wall_ms, broker.clock_ns)
        must_start = rules.start_comes_first and bool(self.file.owner.standbys)
        self.word: Any = Word(NEVER if must_start else ALWAYS)
        counters: Any = Uncounted()
        self.leadership = rules.leadership(self.word, counters, clock_ns=broker.clock_ns)
        self.has_started = False
        self.is_stopping = False
        # Of each worker: what is in the ledger, what is finished, and what the entry has that is tried.
        self.shipped = [0, 0]
        self.finished = [0, 0] if world.ships and rules.start_comes_first else self._ends()
        self.given: list[int] | None = None

    def leads(self) -> bool:
        return self.word.until_ns == ALWAYS or self.broker.clock_ns() < self.word.until_ns

    def step(self) -> None:
        world, ledger = self.world, self.ledger
        self._serve()
        if not self.has_started:
            self._start()
            return
        if self.given is None and world.happens(world.odds.stopped):
            self.is_stopping = True
            if self.rules.stops_before_release:
                self.word.until_ns = NEVER
        if self.given is None and not self.is_stopping and world.happens(0.2):
            found = read_registrations(self.broker.store)
            gone = self.leadership.follow(found, self._append, self.started)
            self.broker.store.delete(map(registration_name, gone))
        if self.given is not None or self._has_news() or self.leadership.is_due or self.is_stopping:
            self._ship()
        elif world.happens(max(0.15, world.odds.trims)):
            snapshot_if_due(ledger)
        elif world.happens(world.odds.trims):
            self.rules.trim(self.broker.store, ledger.state, ledger.check_fence)

    def _ends(self) -> list[int]:
        return list(map(len, self.broker.log))

    def _start(self) -> None:
        ledger, ends = self.ledger, self._ends()
        self.started = Started("cluster", self.broker.broker_id, "host", lease_ms=LEASE_MS)
        ledger.start(self.started)
        expect(self.world.truth.is_history(ledger), "a start was written that is not in the ledger")
        self.shipped = list(map(len, records_of(ledger.state)))
        for at, end in zip(self.shipped, ends, strict=True):
            expect(at <= end, "the ledger has more than its owner")
        opens_at_ledger_end = self.world.ships and self.rules.opens_at_ledger_end
        self.finished = list(self.shipped) if opens_at_ledger_end else ends
        self.has_started = True
        self.leadership.begin(ledger, self.started)
        if TOPIC_ID not in ledger.state.topics:
            self._append([TOPIC])

    def _serve(self) -> None:
        """Take in records, and show what is finished."""
        world, log = self.world, self.broker.log
        if not self.leads():
            return
        for _ in range(world.chance.choice((0, 0, 0, 1, 2))):
            self._produce(world.chance.choice(WORKERS))
        if not world.ships:
            # What is durable here is finished.
            for worker in WORKERS:
                world.show(log[worker][self.finished[worker] :])
            self.finished = self._ends()
        for worker in WORKERS:
            world.show(log[worker][: self.finished[worker]][-2:])

    def _produce(self, worker: int) -> None:
        log = self.broker.log
        causes = log[0] if not self.rules.waits_for_causes else log[0][: self.finished[0]]
        if worker and not causes:
            return
        epoch = self.file.owner.generation if self.rules.begins_epochs else 1
        cause = causes[-1].uid if worker else 0
        log[worker].append(Record(self.world.new_uid(), worker, len(log[worker]), epoch, cause))

    def _has_news(self) -> bool:
        return self.world.happens(0.4) and self.shipped != self._ends()

    def _ship(self) -> None:
        """Have the ledger say what is durable here, or that this broker lives."""
        log, ends = self.broker.log, self._ends()
        if self.given is not None:
            self._append()
        else:
            if not self.is_stopping and (self.world.ships or not self.rules.cuts_are_closed):
                ends = [self.world.chance.randint(*pair) for pair in zip(self.shipped, ends, strict=True)]
            new = [one for worker in WORKERS for one in log[worker][self.shipped[worker] : ends[worker]]]
            events: list[Event] = [one.event() for one in new]
            if self.is_stopping:
                events.append(Released())
            self.given = ends
            self._append(events, is_renewal=True)
        if self.world.ships:
            for worker in WORKERS:
                self.world.show(log[worker][self.shipped[worker] : self.given[worker]])
            self.finished = list(self.given)
        self.shipped, self.given = self.given, None
        if self.is_stopping:
            self.broker.process = None

    def _append(self, events: Sequence[Event] = (), *, is_renewal: bool = False) -> None:
        """Do as the tier's book does."""
        before = self.ledger.seq
        try:
            self.ledger.append(events, is_renewal=is_renewal)
        except Fenced as fenced:
            self.leadership.lost(fenced)
            raise
        finally:
            if self.ledger.seq != before and (self.word.until_ns != NEVER or not self.is_stopping):
                self.leadership.renewed()
        expect(self.world.truth.is_history(self.ledger), "an entry was written that is not in the ledger")


class World:
    """One walk."""

    def __init__(self, seed: int, place: Path, rules: type[Rules], mode: Mode, rounds: int) -> None:
        self.chance = random.Random(seed)
        self.place, self.rules, self.mode, self.rounds = place, rules, mode, rounds
        self.odds = CALM
        self.now_s = 0.0
        self.truth = Truth(self)
        # acks=ledger
        self.ships = mode.acks == "ledger"
        self.late: list[Callable[[], object]] = []
        self.is_down = False
        # Of the last change, and of the last end of an outage that nobody overlooks.
        self.changed_s = self.up_since_s = 0.0
        self.restarts = 0.1
        self._uid = 0
        self.take_overs = 0
        self.brokers: list[Broker] = []
        for broker_id in range(1, self.chance.choice((2, 2, 3)) + 1):
            self._add(broker_id)
        first, *others = self.brokers
        first.process = Owner(first)
        for one in others:
            one.process = Standby(one)
        first.step()
        self._turns = self._walk()
        self._is_over = threading.Semaphore(0)
        self._error: BaseException | None = None
        self.odds = mode.temper or self.chance.choice(TEMPERS)

    def happens(self, odds: float) -> bool:
        return odds > 0 and self.chance.random() < odds

    def wall_ms(self) -> int:
        return round(self.now_s * 1000)

    def new_uid(self) -> int:
        self._uid += 1
        return self._uid

    def show(self, records: Iterable[Record]) -> None:
        """Let clients see records, or know that they were taken."""
        for one in records:
            if self.ships:
                expect(one.uid in self.truth.known, "a record was seen that is not in the ledger")
            self.truth.name(one)

    def claimed(self, state: RemoteState) -> None:
        """Check that a claim leaves the owner time after an outage."""
        if not state.is_released:
            has_waited = self.now_s - self.up_since_s > LEASE_S / 3 * 0.9
            expect(has_waited or not self.up_since_s, "a standby claims right after an outage")

    def run(self) -> None:
        """Walk. Raises Violation."""
        threading.Thread(target=self.go_on, daemon=True).start()
        self._is_over.acquire()
        for one in self.brokers:
            one.kill()
        if self._error is not None:
            raise self._error

    def go_on(self) -> None:
        """Give brokers their turns, in the thread of whichever of them was the last to sleep."""
        try:
            for broker in self._turns:
                if not broker.turn():
                    return
                self._check_leaders()
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._error = error
        self._is_over.release()

    def _walk(self) -> Iterator[Broker]:
        """Yield the brokers whose turn it is."""
        for _ in range(self.rounds):
            yield from self._round()
        self._check_ledger()
        self._calm_down()
        written = self.truth.known.copy()
        # A new owner goes on with its start, unless it has gone for good.
        is_gone = self._leader_id() not in {one.broker_id for one in self.brokers}
        leases = TO_START if is_gone and isinstance(self.truth.state.leader, TakenOver) else 1
        until_s = self.now_s + (leases + 1.2) * LEASE_S
        while self.now_s < until_s:
            yield from self._round()
        self._check_ledger()
        expect(written != self.truth.known, "nothing is written any more")

    def _round(self) -> Iterator[Broker]:
        """Let some time pass, and each broker do something."""
        self._pass(self.chance.uniform(0.1, 1.9))
        self._change()
        yield from self.chance.sample(self.brokers, len(self.brokers))

    def _calm_down(self) -> None:
        """Let all faults end. The owner may have gone for good."""
        self.odds, self.is_down, self.late = CALM, False, []
        self.restarts = 1.0
        for one in self.brokers:
            one.is_cut_off = False
            one.kill()
        if self.happens(0.5):
            owners = [one for one in self.brokers if one.broker_id == self._leader_id()]
            rest = {one.broker_id for one in self.brokers if one not in owners}
            if rest & self.truth.state.standbys.keys():
                for one in owners:
                    self.brokers.remove(one)

    def _leader_id(self) -> int:
        leader = self.truth.state.leader
        assert leader is not None
        return leader.broker_id

    def _add(self, broker_id: int) -> Broker:
        directory = self.place / str(len(list(self.place.iterdir())))
        directory.mkdir()
        self.brokers.append(Broker(self, broker_id, directory))
        return self.brokers[-1]

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        for one in self.brokers:
            if not one.clock_stands:
                one.boot_s += seconds * one.rate
        self._check_leaders()

    def _change(self) -> None:
        """Change what is not of one broker: the store, its connections, what is on its way to it."""
        if self.late and self.happens(0.1):
            self.late.pop(self.chance.randrange(len(self.late)))()
        if self.happens(self.odds.mended if self.is_down else self.odds.outage):
            if self.is_down and self.now_s - self.changed_s > LEASE_S / 5:
                self.up_since_s = self.now_s
            self.is_down, self.changed_s = not self.is_down, self.now_s
        broker = self.chance.choice(self.brokers)
        if self.happens(self.odds.gone):
            self.truth.delete([registration_name(broker.broker_id)])
        if self.happens(self.odds.mended if broker.is_cut_off else self.odds.cut_off):
            broker.is_cut_off = not broker.is_cut_off
        if self.mode.copies and len(self.brokers) < 4 and self.happens(0.01):
            copy = self._add(broker.broker_id)
            shutil.copytree(broker.directory, copy.directory, dirs_exist_ok=True)
            copy.log = [list(one) for one in broker.log]

    def _check_leaders(self) -> None:
        if not self.mode.clocks_stop and not self.mode.copies:
            expect(sum(one.leads() for one in self.brokers) < 2, "two brokers lead")

    def _check_ledger(self) -> None:
        """Check that all who read the ledger anew read the history."""
        wanted = records_of(self.truth.state)
        for by_snapshot in (True, False):
            reader = LedgerReader(self.truth)
            reader.read_to_end(by_snapshot=by_snapshot)
            expect(reader.seq == len(self.truth.history), f"the ledger ends with {entry_name(reader.seq)}")
            expect(self.truth.is_history(reader) and records_of(reader.state) == wanted, "a reader errs")
