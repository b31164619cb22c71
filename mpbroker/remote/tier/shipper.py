"""The thread that puts commit rounds into the object store, with mpbroker.remote.acks=ledger.

A log worker finishes a round when the worker's word has the round's number (`ipc/unshipped.pxd`). All rounds
that wait go into one entry of the ledger. Up to INLINE_BYTES the entry has their bytes; more bytes go into
objects that the entry names.

A process that is killed before it writes the word leaves the round waiting. Its successor ships the same
bytes to the same places again, which changes nothing if the ledger has them already.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.unshipped import read_round, round_number
from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.bundles import in_groups
from mpbroker.remote.cuts.manifest import new_id, shipped_name
from mpbroker.remote.ledger.events import Shipped
from mpbroker.remote.ledger.ledger import Fenced
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.tier.cutting import AWAITED_LOOK_S
from mpbroker.remote.tier.ranges import Found, Ranges
from mpbroker.remote.tier.work import LOOK_S, Stopped, TierWork
from shm.clock import wall_ms
from shm.counters import CounterPage
from shm.word import Words

INLINE_BYTES: Final = 256 << 10
OBJECT_BYTES: Final = 64 << 20
RETRY_S: Final = 0.2
log = logging.getLogger("mpbroker.remote")


class Shipper:
    """The thread's work. By log worker, `blocks` are the blocks of unshipped rounds, `words` what is shipped.

    `first_cut` says whether the store has a cut of this start: nothing is shipped before. `told(worker)` is
    called when the worker's word has changed.
    """

    def __init__(
        self,
        work: TierWork,
        ranges: Ranges,
        blocks: Sequence[memoryview],
        words: Words,
        first_cut: Words,
        told: Callable[[int], None],
        counters: CounterPage,
    ) -> None:
        self._work = work
        self._ranges = ranges
        self._blocks = blocks
        self._words = words
        self._first_cut = first_cut
        self._told = told
        self._counters = counters
        self._woken = threading.Event()
        self._shown: tuple[int, ...] = ()
        # The number of the last event. It grows after the bytes of the event were read.
        self.number = 0
        # By worker: the round that the ledger was given, and may not have yet.
        self._given: dict[int, int] = {}
        self._problem = ""

    @property
    def has_news(self) -> bool:
        """Return whether a log worker shows another round than at the last call of `follow`."""
        return self._shown != tuple(map(round_number, self._blocks))

    def follow(self) -> None:
        """Wake the thread if there is news. Called by the thread that log workers ring for."""
        if self.has_news:
            self._shown = tuple(map(round_number, self._blocks))
            self._woken.set()

    def mark(self) -> tuple[int, int]:
        """Return which rounds the files of this moment have: `Instant.shipped` and `since`.

        The log workers must be at rest. A round that is read later is not among them, even if its bytes are.
        """
        book = self._work.book
        assert book is not None
        # The entry first: an event that gets its number meanwhile is in a later one.
        since = book.ledger.seq
        return max(self.number, book.state.last_shipped), since

    def run(self) -> None:
        """Ship rounds until the work is stopped, or the ledger is another broker's."""
        try:
            while self._work.book is None or not self._first_cut.load(0):
                self._pause(AWAITED_LOOK_S)
            while True:
                try:
                    while self.turn():
                        pass
                    self._pause(LOOK_S)
                except (StoreError, OSError) as error:
                    self._failed(error)
                    self._work.wait(RETRY_S)
        except (Stopped, Fenced):
            return

    def turn(self) -> bool:
        """Ship all rounds that wait; return whether there were any. Raises Fenced, StoreError, OSError."""
        book, store = self._work.book, self._work.store
        assert book is not None
        assert store is not None
        if not self._given:
            rounds = self._read()
            if not rounds:
                return False
            found = [one for unsent in rounds.values() for one in unsent]
            # After the look at the rounds: a cut from here on counts later rounds as not its own.
            self.number = max(self.number, book.state.last_shipped)
            book.add(list(self._events(store, found)))
            self._given = dict(rounds.keys())
        book.commit()
        for worker, number in self._given.items():
            self._words.store(worker, number)
            self._told(worker)
        self._given = {}
        if self._problem:
            self._problem = ""
            self._counters.set(Counter.COUNT_REMOTE_DOWN_SINCE_MS, 0)
            log.info("records are acknowledged again")
        return True

    def _waits(self, worker: int) -> bool:
        return round_number(self._blocks[worker]) > self._words.load(worker)

    def _read(self) -> dict[tuple[int, int], list[Found]]:
        """Return the rounds that wait, by worker and number. Raises NotFound, OSError."""
        rounds = {}
        for worker, block in enumerate(self._blocks):
            if self._waits(worker) and (read := read_round(block)) is not None:
                number, unsent = read
                rounds[worker, number] = [
                    one for some in unsent if (one := self._ranges.find(some)) is not None
                ]
        return rounds

    def _events(self, store: ObjectStore, found: Sequence[Found]) -> Iterator[Shipped]:
        """Yield the events; when they are all there, their objects are in the store."""
        parts = (part for one in found for part in _divided(one))
        for some in in_groups(parts, lambda part: part.size, OBJECT_BYTES):
            data = chain.from_iterable(one.read() for one in some)
            size = sum(one.size for one in some)
            ranges = tuple(one.shipped for one in some)
            if size <= INLINE_BYTES:
                event = Shipped(self.number + 1, ranges, b"".join(data))
            else:
                object_id, crc = new_id(), _Crc()
                store.put(shipped_name(object_id), crc.of(data), size)
                event = Shipped(self.number + 1, ranges, b"", object_id, size, crc.value)
            self.number += 1
            yield event

    def _pause(self, seconds: float) -> None:
        """Wait for `follow` to wake this thread, for `seconds` at most. Raises Stopped."""
        self._woken.wait(seconds)
        self._woken.clear()
        self._work.wait(0)

    def _failed(self, error: Exception) -> None:
        self._counters.add(Counter.COUNT_REMOTE_ERRORS)
        self._counters.set_last_error(str(error))
        if not self._problem:
            self._problem = str(error)
            self._counters.set(Counter.COUNT_REMOTE_DOWN_SINCE_MS, wall_ms())
            log.warning(
                "records cannot be acknowledged: %s. With mpbroker.remote.acks=ledger they wait until it has "
                "them; this is tried again until it succeeds",
                error,
            )


class _Crc:
    """The CRC-32C of bytes that pass by."""

    def __init__(self) -> None:
        self.value = 0

    def of(self, data: Iterable[bytes]) -> Iterator[bytes]:
        for piece in data:
            self.value = checksum(piece, self.value)
            yield piece


def _divided(found: Found) -> Iterator[Found]:
    """Yield a range, in parts if it is large. Nobody sees where a part ends: all are in one entry."""
    whole = found.shipped
    if found.size <= OBJECT_BYTES:
        yield found
        return
    for base, position, length in whole.pieces:
        for at in range(position, position + length, OBJECT_BYTES):
            count = min(position + length - at, OBJECT_BYTES)
            part = (base, at, count), (whole.end[0], base, at + count)
            yield found._replace(shipped=msgspec.structs.replace(whole, pieces=(part[0],), end=part[1]))
