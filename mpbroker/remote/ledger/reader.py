"""Reads a ledger: its entries without a gap, each bound to the one before by that one's digest."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

import msgspec

from mpbroker.remote.ledger.entries import (
    FORMAT,
    GENERATION,
    NO_DIGEST,
    PREFIX,
    Entry,
    Header,
    LedgerDamaged,
    decode_entry,
    decode_header,
    digest,
    entry_name,
    seq_of,
)
from mpbroker.remote.ledger.events import Started, TakenOver
from mpbroker.remote.ledger.snapshots import Snapshot, snapshots
from mpbroker.remote.ledger.state import EventRefused, RemoteState
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore

FORMAT_NAME: Final = "mpbroker/format"
READERS: Final = 8
READ_AHEAD: Final = 256


class _NotNext(LedgerDamaged):
    """Raised for an entry that does not follow. Entry `seq` is missing, or of another history.

    Where entries are trimmed, requests of long ago may have created some anew.
    """

    def __init__(self, message: str, seq: int) -> None:
        super().__init__(message)
        self.seq = seq


class Format(msgspec.Struct, frozen=True):
    """The object `mpbroker/format`: whose prefix this is. JSON."""

    format: int
    cluster_id: str


def read_entries(store: ObjectStore, first: int, last: int) -> Iterator[Entry]:
    """Yield entries of a ledger that was read to its end. Raises LedgerDamaged, StoreError."""
    with ThreadPoolExecutor(READERS) as readers:
        for start in range(first, last + 1, READ_AHEAD):
            seqs = range(start, min(start + READ_AHEAD, last + 1))
            bodies = readers.map(store.get, map(entry_name, seqs))
            yield from map(decode_entry, seqs, bodies)


class LedgerReader:
    """A ledger up to entry `seq`: what its events add up to, and the header and digest of the last entry.

    One thread uses it; others may read `state`.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.state = RemoteState()
        self.seq = 0
        self.digest = NO_DIGEST
        self.last: Header | None = None
        self.snapshot_seq = 0

    @property
    def generation(self) -> int:
        """Return the generation of the last entry, GENERATION if there is none."""
        return GENERATION if self.last is None else self.last.generation

    def read_format(self) -> Format | None:
        """Return whose ledger it is, None if there is none. Raises LedgerDamaged, StoreError."""
        try:
            body = self.store.get(FORMAT_NAME)
        except ObjectMissing:
            return None
        try:
            found = msgspec.json.decode(body, type=Format)
        except msgspec.DecodeError as error:
            raise LedgerDamaged(f"{FORMAT_NAME} is damaged: {error}") from error
        if found.format != FORMAT:
            raise LedgerDamaged(
                f"{FORMAT_NAME} has format {found.format}, this version reads {FORMAT}: upgrade mpbroker"
            )
        return found

    def read_to_end(self, last: int | None = None, *, by_snapshot: bool = True) -> None:
        """Apply all entries that are new, or those up to `last`; after a StoreError call it again.

        `by_snapshot`: begin at the newest snapshot, where there is one. Otherwise begin at the first entry,
        or at the oldest snapshot if entries before it are trimmed. A reader that lacks trimmed entries goes
        on at a snapshot, too: then `state` is another one. Raises LedgerDamaged.
        """
        if by_snapshot and not self.seq:
            self._begin_with(snapshots(self.store, last))
        try:
            self._read(last)
        except _NotNext as error:
            if not self._begin_with(snapshots(self.store, last, newest_first=by_snapshot)):
                raise
            self._read(last)
            if error.seq >= self.state.trimmed_before:
                raise

    def _read(self, last: int | None) -> None:
        for seq, body in self._listed():
            # A directory that changes while it is listed may leave out an entry and have the next one.
            self._follow_to(seq - 1 if last is None else min(seq - 1, last))
            if self.seq == last:
                return
            self.follow(seq, body)
        # A store may list an object later than it has it.
        self._follow_to(last)

    def _follow_to(self, last: int | None) -> None:
        """Apply the entries that follow, without a list: up to `last`, or the first one that is missing."""
        while last is None or self.seq < last:
            try:
                body = self.store.get(entry_name(self.seq + 1))
            except ObjectMissing:
                return
            self.follow(self.seq + 1, body)

    def follow(self, seq: int, body: bytes) -> None:
        """Apply the next entry. Raises LedgerDamaged."""
        if seq != self.seq + 1:
            raise _NotNext(f"{entry_name(self.seq + 1)} is missing, {entry_name(seq)} is there", self.seq + 1)
        entry = decode_entry(seq, body)
        if entry.header.previous != self.digest:
            raise _NotNext(f"{entry_name(seq)} follows another {entry_name(seq - 1)} than is there", self.seq)
        first = entry.events[0] if entry.events else None
        if entry.header.generation != self.generation + isinstance(first, TakenOver):
            raise LedgerDamaged(
                f"{entry_name(seq)} is of generation {entry.header.generation}, those before of "
                f"{self.generation}"
            )
        try:
            self.state.check(entry.events)
        except EventRefused as error:
            raise LedgerDamaged(f"{entry_name(seq)}: {error}") from error
        self.state.apply(entry.events, entry.header.time_ms)
        if isinstance(first, Started | TakenOver):
            self.state.firsts.append(seq)
        self.seq, self.digest, self.last = seq, entry.digest, entry.header

    def _begin_with(self, found: Iterator[Snapshot]) -> bool:
        """Begin at the first snapshot that is newer than what was read and belongs to this ledger."""
        for snapshot in found:
            if snapshot.seq <= self.seq:
                continue
            try:
                body = self.store.get(entry_name(snapshot.seq))
            except ObjectMissing:
                continue
            if digest(body) == snapshot.digest:
                self.state, self.seq, self.digest = snapshot.state, snapshot.seq, snapshot.digest
                self.last, self.snapshot_seq = decode_header(snapshot.seq, body), snapshot.seq
                return True
        return False

    def _listed(self) -> Iterator[tuple[int, bytes]]:
        """Yield entries from the next one on, and read some ahead."""
        names = (found.name for found in self.store.list(PREFIX, entry_name(self.seq)))
        seqs = (seq for name in names if (seq := seq_of(name)) is not None)
        with ThreadPoolExecutor(READERS) as readers:
            while some := list(islice(seqs, READ_AHEAD)):
                yield from zip(some, readers.map(self.store.get, map(entry_name, some)), strict=True)
