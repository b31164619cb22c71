"""The thread that makes a cut every mpbroker.remote.checkpoint.interval.ms.

It begins when the ledger is this broker's, and ends when it no longer is. A cut that fails is made anew at
the next turn: what it has brought into the store is used then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.counters import Counter
from mpbroker.log.io.pace import Stints
from mpbroker.remote.cuts.cutter import Cutter, expired
from mpbroker.remote.cuts.instant import CutSkipped
from mpbroker.remote.cuts.manifest import bundle_name, cut_name, shipped_name
from mpbroker.remote.ledger.events import CutsRemoved
from mpbroker.remote.ledger.ledger import Fenced
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.tier.book import Book
from mpbroker.remote.tier.places import Key
from mpbroker.remote.tier.tier_store import LOOK_S, Stopped, TierStore
from shm.counters import CounterPage
from shm.word import Words

FIRST_CUT_RETRY_S: Final = 0.5
# A start waits for the first cut.
AWAITED_LOOK_S: Final = 0.02
log = logging.getLogger("mpbroker.remote")


class Cutting:
    """The thread's work. `cutter_of(store, paced)` makes the cutter; `step_back` lowers the priority.

    `first_cut` is the word that says whether a cut of this start is in the store (None: nobody asks). Until
    then cuts follow at once. That one is made before partitions are open, so it has no ends, and readers of
    the bucket need another one. `are_open()` says whether partitions have been opened.
    """

    def __init__(
        self,
        config: BrokerConfig,
        tier: TierStore,
        counters: CounterPage,
        cutter_of: Callable[[ObjectStore, Callable[[int], None]], Cutter],
        step_back: Callable[[], object] = lambda: None,
        first_cut: Words | None = None,
        are_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self._config = config
        self._tier = tier
        self._first_cut = first_cut
        self._are_open = are_open
        self._has_ends = False
        # How often a cut was asked for, and how many of these the ledger has an answer for.
        self._asked = self._answered = 0
        # What was logged of the last cut that failed.
        self._problem = ""
        # Names of shipped bytes that the newest cut has, too.
        self._shipped: list[str] = []
        self._counters = counters
        self._cutter_of = cutter_of
        self._step_back = step_back
        self._stints = Stints()
        self._cutter: Cutter | None = None
        # All other processes have ended: nothing is to be spared.
        self.is_at_rest = False

    def bundles(self) -> set[bytes]:
        """Return the bundles that a cut may yet name, also if the ledger names them nowhere."""
        return set() if self._cutter is None else self._cutter.bundles()

    def needs(self, key: Key) -> bool:
        """Return whether a restore of the newest cut needs what the store has of a partition. Any thread."""
        book, cutter = self._tier.book, self._cutter
        if book is None or not book.state.cuts:
            return False
        return cutter is None or cutter.needs(book.state, key)

    def run(self) -> None:
        """Make cuts until the tier is stopped, or the ledger is another broker's."""
        self._step_back()
        try:
            while self._tier.book is None:
                self._tier.wait(LOOK_S if self._first_cut is None else AWAITED_LOOK_S)
            while True:
                while not (self._is_first or self._are_open()):
                    self._tier.wait(LOOK_S)
                began = time.monotonic()
                self.turn()
                took_s, interval_s = time.monotonic() - began, self._interval_s()
                if self._is_awaited:
                    interval_s = took_s = FIRST_CUT_RETRY_S
                # Whoever is slower than the interval leaves the disk and the network alone for as long.
                self._wait_until(began + max(interval_s, 2 * took_s if took_s > interval_s else 0.0))
        except (Stopped, Fenced):
            return

    @property
    def _is_first(self) -> bool:
        """Return whether others wait for the first cut of this start."""
        return self._first_cut is not None and not self._first_cut.load(0)

    @property
    def _is_awaited(self) -> bool:
        return self._answered < self._asked or (self._first_cut is not None and not self._has_ends)

    def await_cut(self) -> None:
        """Return when the ledger has a cut of what is there now. One thread may call it.

        Raises Stopped, Fenced.
        """
        assert self._tier.book is not None
        self._asked = asked = self._asked + 1
        while self._answered < asked:
            if self._tier.book.ledger.fenced is not None:
                raise self._tier.book.ledger.fenced
            self._tier.wait(AWAITED_LOOK_S)

    def turn(self) -> None:
        """Make a cut if the ledger is this broker's. Raises Stopped, Fenced."""
        book, store = self._tier.book, self._tier.objects
        if book is None or store is None:
            return
        try:
            self._cut(self._made_cutter(book, store), book)
            self._remove_expired(book, store)
        except (CutSkipped, StoreError, OSError) as error:
            self._counters.add(Counter.COUNT_REMOTE_CUTS_SKIPPED)
            if not self._is_awaited:
                log.info("no cut is made: %s; the next one is due in %.0f s", error, self._interval_s())
            elif str(error) != self._problem:
                log.info(
                    "no cut is made: %s. A start or an undeletion waits for it: this is tried until it "
                    "succeeds",
                    error,
                )
            self._problem = str(error)

    def last(self, book: Book, store: ObjectStore) -> None:
        """Make the cut of a broker whose other processes have ended.

        Raises CutSkipped, StoreError, OSError, Fenced.
        """
        self.is_at_rest = True
        cutter = self._made_cutter(book, store)
        cutter.look_anew()
        self._cut(cutter, book)

    def _made_cutter(self, book: Book, store: ObjectStore) -> Cutter:
        if self._cutter is None:
            cutter = self._cutter_of(store, self._paced)
            cutter.remember(book.state)
            if book.state.cuts:
                self._counters.set(Counter.COUNT_REMOTE_CUT_MS, book.state.cuts[-1].event.taken_ms)
            self._cutter = cutter
        return self._cutter

    def _cut(self, cutter: Cutter, book: Book) -> None:
        asked, has_ends = self._asked, not self._is_first
        cut = cutter.make(book.state)
        shipped = [shipped_name(one) for number, one in book.state.shipped if one and number <= cut.shipped]
        book.commit_cut(cut)
        cutter.published(cut)
        self._answered, self._has_ends = asked, has_ends
        if self._first_cut is not None:
            self._first_cut.store(0, 1)
        self._counters.add(Counter.COUNT_REMOTE_CUTS)
        self._counters.set(Counter.COUNT_REMOTE_CUT_MS, cut.manifest.taken_ms)
        self._counters.set(Counter.COUNT_REMOTE_CUT_PAUSE_US, round(cut.paused_s * 1e6))
        self._shipped_before(book, shipped)

    def _shipped_before(self, book: Book, names: list[str]) -> None:
        """Delete what was shipped before the last cut. Who restores that cut may still read the rest."""
        doomed, self._shipped = self._shipped, names
        if doomed and self._tier.objects is not None:
            book.check_fence()
            self._tier.objects.delete(doomed)

    def _remove_expired(self, book: Book, store: ObjectStore) -> None:
        event = expired(book.state, self._tier.now_ms(), self._config.mpbroker_remote_checkpoint_retention_ms)
        if event is not None:
            book.add([event])
            book.commit()
            store.delete(objects_of(event))

    def _interval_s(self) -> float:
        return self._config.mpbroker_remote_checkpoint_interval_ms / 1000

    def _wait_until(self, due: float) -> None:
        """Wait until a time, or until a cut is asked for. Raises Stopped."""
        asked = self._asked
        while asked == self._asked and (left_s := due - time.monotonic()) > 0:
            self._tier.wait(min(left_s, LOOK_S))

    def _paced(self, count: int) -> None:
        if not self.is_at_rest:
            self._tier.pace(count, self._stints)


def objects_of(event: CutsRemoved) -> list[str]:
    """Return the names of the objects that an event lets go."""
    return [*map(cut_name, event.cut_ids), *map(bundle_name, event.bundle_ids)]
