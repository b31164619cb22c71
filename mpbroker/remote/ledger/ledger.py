"""Writes a ledger, as its only owner.

Entry n + 1 is created only if it is absent. That alone orders entries, and fences an owner that was replaced:
its next entry is there already, with other bytes. A create may be applied although it failed, and long after
that. Therefore:

* The bytes of an entry stay as they were at the first try, until it is known whether they are in. If they
  changed between tries, a late first try would be taken for the second one.
* An object that is there is compared as a whole. Its owner and number do not tell which try it is.
* Each entry has the digest of the one before, so that no entry follows another history than its writer's.
* The owner's disk has the number of an entry before the store does. A ledger that has more was written by a
  newer copy of this disk.

A process that dies may leave such a try behind. Its successor reads to the end and writes an entry of its own
start first: that comes after the late one, or makes it impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, NoReturn

import msgspec

from mpbroker.remote.ledger.entries import (
    FORMAT,
    Header,
    LedgerDamaged,
    Writer,
    decode_entry,
    encode_entry,
    entry_name,
)
from mpbroker.remote.ledger.events import Event, Started, TakenOver
from mpbroker.remote.ledger.owner import OwnerFile, new_nonce
from mpbroker.remote.ledger.reader import FORMAT_NAME, Format, LedgerReader
from mpbroker.remote.ledger.snapshots import MadeSnapshot, Snapshot, make_snapshot, put_snapshot
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore
from mpbroker.storage.names import REMOTE_OWNER
from shm.clock import boot_ns, wall_ms

SNAPSHOT_EVERY: Final = 256
EVENTS_MAX: Final = 5_000


class Fenced(Exception):
    """Raised where the ledger is another broker's; the message says whose, and what to do.

    `leader` is set if this broker was the owner, and a later generation has begun: what its first entry, or
    the last start in it, says of the owner.
    """

    def __init__(self, why: str, leader: Started | TakenOver | None = None) -> None:
        super().__init__(why)
        self.leader = leader


class _Pending(NamedTuple):
    """An entry that may be in the ledger, and how many of the queued events it has.

    `tried_ns` is when its first try began, by CLOCK_BOOTTIME.
    """

    seq: int
    body: bytes
    events: int
    tried_ns: int


class Ledger:
    """A ledger and its owner. One thread uses it; others may read `state`, `seq` and `fenced`.

    `store` is what entries are written to, if it has another timeout than the reader's.

    After a StoreError nothing is lost: `append` goes on with what it has, and must not be given it again.
    """

    def __init__(
        self,
        reader: LedgerReader,
        owner_file: OwnerFile,
        clock_ms: Callable[[], int] = wall_ms,
        boot_clock_ns: Callable[[], int] = boot_ns,
        *,
        store: ObjectStore | None = None,
    ) -> None:
        self._reader = reader
        self._store = store or reader.store
        self._file = self.owner_file = owner_file
        self._clock_ms = clock_ms
        self._boot_ns = boot_clock_ns
        self._start = ""
        self._first_start_ns = 0
        self._is_owner = False
        self._pending: _Pending | None = None
        self._queued: list[Event] = []
        # Why this broker must not write; None while it may.
        self.fenced: Fenced | None = None
        # When the first try of the last entry that is in began, by CLOCK_BOOTTIME; 0 before the first one.
        self.tried_ns = 0

    @property
    def state(self) -> RemoteState:
        """Return the state after the last entry that is known to be in the ledger."""
        return self._reader.state

    @property
    def seq(self) -> int:
        """Return the number of the last entry."""
        return self._reader.seq

    def start(self, started: Started) -> None:
        """Read to the end and write the entry of this start. After a StoreError it may be called again.

        Raises Fenced if the ledger is another broker's, LedgerDamaged, StoreError, OSError.
        """
        reader, owner = self._reader, self._file.owner
        self.fenced = None
        self._check_cluster(started.cluster_id)
        while True:
            reader.read_to_end()
            if self._start and reader.last is not None and reader.last.start == self._start:
                # A try is in, and nobody has written since: where older entries are trimmed, a create may
                # fill the place of one, if this process has slept before it.
                break
            self._check_place(started.cluster_id)
            if not self._start:
                start = new_nonce()
                owner.starts.append(start)
                self._file.save()
                self._start = start
            # Made anew for each try: whichever is in, it is this start. What is there instead may be a late
            # entry of this owner: it is read in the next turn.
            entry = self._entry([started])
            self._first_start_ns = self._first_start_ns or entry.tried_ns
            self._create(entry)
        # Which of the tries is in is not known: the first one counts.
        self.tried_ns = self._first_start_ns
        self._is_owner = True
        owner.starts = [self._start]
        self._file.save()

    def check(self, cluster_id: str) -> None:
        """Check that all that was read is this broker's. Raises Fenced, LedgerDamaged, StoreError."""
        self._check_cluster(cluster_id)
        if self._reader.last is not None:
            self._check_owner(self._reader.last)

    def renew(self) -> None:
        """Put what waits into the ledger, or an entry without events. Raises as `append` does."""
        self.append(is_renewal=True)

    def append(self, events: Sequence[Event] = (), *, is_renewal: bool = False) -> None:
        """Put events into the ledger, after those that may not be in yet; return when all are.

        Raises EventRefused for an event that contradicts the ledger; then none of `events` is taken. Raises
        StoreError; then the events are kept, and another `append`, perhaps of none, goes on with them.
        Raises Fenced.
        """
        assert self._is_owner, "start comes first"
        if self.fenced is not None:
            raise self.fenced
        self.state.check([*self._queued, *events])
        self._queued += events
        while self._queued or self._pending is not None or is_renewal:
            is_renewal = False
            if self._pending is None:
                self._pending = self._entry(self._queued[:EVENTS_MAX])
            found = self._create(self._pending)
            if found is not None:
                self._fence(self._pending.seq, found)
            self._follow(self._pending)
            self.tried_ns = self._pending.tried_ns
            del self._queued[: self._pending.events]
            self._pending = None

    def check_fence(self) -> None:
        """Check that no other broker has written. Call this before deleting objects. Raises as `append`."""
        self.append()
        try:
            found = self._store.get(entry_name(self.seq + 1))
        except ObjectMissing:
            return
        self._fence(self.seq + 1, found)

    def due_snapshot(self) -> MadeSnapshot | None:
        """Return a snapshot to be written if the last one is SNAPSHOT_EVERY entries old, else None."""
        reader = self._reader
        if reader.seq - reader.snapshot_seq < SNAPSHOT_EVERY:
            return None
        return make_snapshot(Snapshot(reader.seq, reader.digest, reader.state), self._clock_ms())

    def write_snapshot(self, made: MadeSnapshot) -> None:
        """Put a snapshot into the store; then its events are due. Any thread may do it. Raises StoreError."""
        put_snapshot(self._reader.store, made)
        self._reader.snapshot_seq = made.seq

    def _entry(self, events: Sequence[Event]) -> _Pending:
        seq = self._reader.seq + 1
        owner = self._file.owner
        writer = Writer(owner.generation, owner.nonce, self._start)
        body = encode_entry(writer, seq, self._reader.digest, self._clock_ms(), events)
        return _Pending(seq, body, len(events), self._boot_ns())

    def _create(self, pending: _Pending) -> bytes | None:
        """Create an entry. Return None if it is in, or the bytes that are there instead. Raises StoreError.

        An object that is there may be the entry itself: an answer was lost, or a try was applied late.
        """
        name = entry_name(pending.seq)
        self._file.announce(pending.seq)
        if self._store.create(name, pending.body):
            return None
        found = self._store.get(name)
        return None if self._is_the_same(found, pending.body) else found

    def _is_the_same(self, found: bytes, body: bytes) -> bool:
        return found == body

    def _follow(self, pending: _Pending) -> None:
        self._reader.follow(pending.seq, pending.body)

    def _check_cluster(self, cluster_id: str) -> None:
        found = self._reader.read_format()
        if found is not None and found.cluster_id != cluster_id:
            self._refuse(
                f"the prefix belongs to the cluster {found.cluster_id}, this broker is of {cluster_id}: give "
                "mpbroker.remote.url a prefix of its own"
            )

    def _check_place(self, cluster_id: str) -> None:
        """Check that the ledger is this broker's, as far as it was read. Make it if there is none."""
        reader, owner = self._reader, self._file.owner
        if reader.seq < owner.last_seq - 1:
            raise LedgerDamaged(
                f"the ledger ends with entry {reader.seq}, this broker has written {owner.last_seq - 1} "
                f"({self._file.path}): the store has lost entries, or mpbroker.remote.url names another one"
            )
        if reader.last is not None:
            self._check_owner(reader.last)
            if reader.state.exported is not None:
                self._refuse(
                    "Apache Kafka may write to the object store: it was exported, "
                    f"{_described(reader.last)}. Start Kafka, or take it back with mpbroker remote import"
                )
            if reader.read_format() is None:
                raise LedgerDamaged(f"{FORMAT_NAME} is missing, {entry_name(1)} is there")
        elif self._store.create(FORMAT_NAME, msgspec.json.encode(Format(FORMAT, cluster_id))):
            return
        else:
            self._check_cluster(cluster_id)

    def _check_owner(self, last: Header) -> None:
        owner = self._file.owner
        if last.owner != owner.nonce:
            was_owner = owner.last_seq > 0 and last.generation > owner.generation
            leader = self._reader.state.leader if was_owner else None
            # Who was taken over is told by whom, and what becomes of it.
            advice = (
                f". If that one is gone for good, this one needs its {REMOTE_OWNER}, or to be restored with "
                "mpbroker restore --take-over; if not, give mpbroker.remote.url a prefix of its own"
            )
            self._refuse(
                f"the ledger belongs to another broker: {_described(last)}{advice if leader is None else ''}",
                leader,
            )
        if last.start not in owner.starts:
            self._refuse(
                f"another broker has a copy of this one's {REMOTE_OWNER} and writes the same ledger: "
                f"{_described(last)}. Stop one of them"
            )
        if last.seq > owner.last_seq:
            self._refuse(
                f"this broker's directories are an older copy of the ledger's owner: {self._file.path} has "
                f"entry {owner.last_seq}, {_described(last)}. Start it with the newest copy"
            )

    def _fence(self, seq: int, found: bytes) -> NoReturn:
        leader = None
        try:
            header, events, _ = decode_entry(seq, found)
            who = _described(header)
            if events and isinstance(events[0], TakenOver):
                leader = events[0]
        except LedgerDamaged as error:
            who = str(error)
        self._refuse(f"another broker has taken the ledger over: {who}", leader)

    def _refuse(self, why: str, leader: Started | TakenOver | None = None) -> NoReturn:
        self.fenced = Fenced(why, leader)
        raise self.fenced


def _described(header: Header) -> str:
    when = datetime.fromtimestamp(header.time_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"{entry_name(header.seq)} is by owner {header.owner}, start {header.start}, of {when}"
