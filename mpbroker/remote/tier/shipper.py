"""The thread that puts commit rounds into the object store, with mpbroker.remote.acks=ledger.

A log worker finishes a round when the worker's word has the round's number (`ipc/unshipped.pxd`). All rounds
that wait go into one entry of the ledger. Up to INLINE_BYTES the entry has their bytes; more bytes go into
objects that the entry names. What the store took of them before it failed is not put there again.

A process that is killed before it writes the word leaves the round waiting. Its successor ships the same
bytes to the same places again, which changes nothing if the ledger has them already.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from mpbroker.ipc.unshipped import read_round, round_number
from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.bundles import in_groups
from mpbroker.remote.cuts.manifest import new_id, shipped_name
from mpbroker.remote.ledger.events import Shipped
from mpbroker.remote.ledger.ledger import Fenced
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.tier.cutting import AWAITED_LOOK_S
from mpbroker.remote.tier.outage import Outage
from mpbroker.remote.tier.ranges import Found, Ranges
from mpbroker.remote.tier.tier_store import LOOK_S, Stopped, TierStore
from shm.counters import CounterPage
from shm.word import Words

INLINE_BYTES: Final = 256 << 10
OBJECT_BYTES: Final = 64 << 20
RETRY_S: Final = 0.2
FAILS: Final = (
    "records cannot be acknowledged: %s. With mpbroker.remote.acks=ledger they wait until it has them; this "
    "is tried again until it succeeds"
)
SUCCEEDS: Final = "records are acknowledged again, after %.0f s"
log = logging.getLogger("mpbroker.remote")


Rounds = Mapping[tuple[int, int], list[Found]]
"""The ranges of rounds, by worker and number."""


class _Sending:
    """Rounds on their way: the groups of ranges that the store lacks, and the events of the others."""

    def __init__(self, rounds: Rounds) -> None:
        parts = (part for found in rounds.values() for one in found for part in _divided(one))
        self.rounds = rounds
        self.groups = deque(in_groups(parts, lambda part: part.size, OBJECT_BYTES))
        self.events: list[Shipped] = []

    def is_of(self, rounds: Rounds) -> bool:
        """Return whether these rounds still wait, with the same files."""
        return all(rounds.get(key) == found for key, found in self.rounds.items())


class Shipper:
    """The thread's work. By log worker, `blocks` are the blocks of unshipped rounds, `words` what is shipped.

    `first_cut` says whether the store has a cut of this start: nothing is shipped before. `told(worker)` is
    called when the worker's word has changed.
    """

    def __init__(
        self,
        tier: TierStore,
        ranges: Ranges,
        blocks: Sequence[memoryview],
        words: Words,
        first_cut: Words,
        told: Callable[[int], None],
        counters: CounterPage,
    ) -> None:
        self._tier = tier
        self._ranges = ranges
        self._blocks = blocks
        self._words = words
        self._first_cut = first_cut
        self._told = told
        self._outage = Outage(counters, FAILS, SUCCEEDS)
        self._woken = threading.Event()
        self._shown: tuple[int, ...] = ()
        # The number of the last event. It grows after the bytes of the event were read.
        self.number = 0
        self._sending: _Sending | None = None
        # Whether the ledger was given their events, and may not have them yet.
        self._is_given = False

    @property
    def has_news(self) -> bool:
        """Return whether a log worker shows another round than at the last call of `follow`."""
        return self._shown != tuple(map(round_number, self._blocks))

    def objects(self) -> set[bytes]:
        """Return the objects that the next entry is about to name. Any thread may ask."""
        return set() if self._sending is None else {one.object_id for one in list(self._sending.events)}

    def follow(self) -> None:
        """Wake the thread if there is news. Called by the thread that log workers ring for."""
        if self.has_news:
            self._shown = tuple(map(round_number, self._blocks))
            self._woken.set()

    def mark(self) -> tuple[int, int]:
        """Return which rounds the files of this moment have: `Instant.shipped` and `since`.

        The log workers must be at rest. A round that is read later is not among them, even if its bytes are.
        """
        book = self._tier.book
        assert book is not None
        # The entry first: an event that gets its number meanwhile is in a later one.
        since = book.ledger.seq
        return max(self.number, book.state.last_shipped), since

    def run(self) -> None:
        """Ship rounds until the tier is stopped, or the ledger is another broker's."""
        try:
            while self._tier.book is None or not self._first_cut.load(0):
                self._pause(AWAITED_LOOK_S)
            while True:
                try:
                    while self.turn():
                        pass
                    self._pause(LOOK_S)
                except (StoreError, OSError) as error:
                    self._outage.failed(error)
                    self._tier.wait(RETRY_S)
        except (Stopped, Fenced):
            return

    def turn(self) -> bool:
        """Ship all rounds that wait; return whether there were any. Raises Fenced, StoreError, OSError."""
        book, store = self._tier.book, self._tier.objects
        assert book is not None
        assert store is not None
        sending = self._sending
        if sending is None or not self._is_given:
            rounds = self._read()
            if not rounds:
                return False
            if sending is None or not sending.is_of(rounds):
                # After the look at the rounds: a cut from here on counts later rounds as not its own.
                self.number = max(self.number, book.state.last_shipped)
                sending = self._sending = _Sending(rounds)
            self._put(store, sending)
            book.add(sending.events)
            self._is_given = True
        book.commit()
        for worker, number in sending.rounds:
            self._words.store(worker, number)
            self._told(worker)
        self._sending, self._is_given = None, False
        self._outage.succeeded()
        return True

    def _waits(self, worker: int) -> bool:
        return round_number(self._blocks[worker]) > self._words.load(worker)

    def _read(self) -> Rounds:
        """Return the rounds that wait. Raises NotFound, OSError."""
        rounds = {}
        for worker, block in enumerate(self._blocks):
            if self._waits(worker) and (read := read_round(block)) is not None:
                number, unsent = read
                rounds[worker, number] = [
                    one for some in unsent if (one := self._ranges.find(some)) is not None
                ]
        return rounds

    def _put(self, store: ObjectStore, sending: _Sending) -> None:
        """Make the events that are missing, with their objects in the store. Raises StoreError, OSError."""
        while sending.groups:
            some = sending.groups[0]
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
            sending.events.append(event)
            sending.groups.popleft()

    def _pause(self, seconds: float) -> None:
        """Wait for `follow` to wake this thread, for `seconds` at most. Raises Stopped."""
        self._woken.wait(seconds)
        self._woken.clear()
        self._tier.wait(0)


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
