"""The thread that makes a cut every mpbroker.remote.checkpoint.interval.ms.

It begins when the ledger is this broker's, and ends when it no longer is. A cut that fails is made anew at
the next turn: what it has brought into the store is used then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.counters import Counter
from mpbroker.log.io.pace import Stints
from mpbroker.remote.cuts.cutter import Cutter, expired
from mpbroker.remote.cuts.instant import CutSkipped
from mpbroker.remote.cuts.manifest import bundle_name, cut_name
from mpbroker.remote.ledger.events import CutsRemoved
from mpbroker.remote.ledger.ledger import Fenced
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.tier.book import Book
from mpbroker.remote.tier.work import LOOK_S, Stopped, TierWork
from shm.clock import wall_ms
from shm.counters import CounterPage

log = logging.getLogger("mpbroker.remote")


class Cutting:
    """The thread's work. `cutter_of(store, paced)` makes the cutter; `step_back` lowers the priority."""

    def __init__(
        self,
        config: BrokerConfig,
        work: TierWork,
        counters: CounterPage,
        cutter_of: Callable[[ObjectStore, Callable[[int], None]], Cutter],
        step_back: Callable[[], object] = lambda: None,
    ) -> None:
        self._config = config
        self._work = work
        self._counters = counters
        self._cutter_of = cutter_of
        self._step_back = step_back
        self._stints = Stints()
        self._cutter: Cutter | None = None

    def run(self) -> None:
        """Make cuts until the work is stopped, or the ledger is another broker's."""
        self._step_back()
        try:
            while self._work.book is None:
                self._work.wait(LOOK_S)
            while True:
                began = time.monotonic()
                self.turn()
                took_s, interval_s = time.monotonic() - began, self._interval_s()
                # Whoever is slower than the interval leaves the disk and the network alone for as long.
                self._wait_until(began + max(interval_s, 2 * took_s if took_s > interval_s else 0.0))
        except (Stopped, Fenced):
            return

    def turn(self) -> None:
        """Make a cut if the ledger is this broker's. Raises Stopped, Fenced."""
        book, store = self._work.book, self._work.store
        if book is None or store is None:
            return
        try:
            if self._cutter is None:
                cutter = self._cutter_of(store, self._paced)
                cutter.remember(book.state)
                if book.state.cuts:
                    self._counters.set(Counter.COUNT_REMOTE_CUT_MS, book.state.cuts[-1].event.taken_ms)
                self._cutter = cutter
            self._cut(self._cutter, book)
            self._remove_expired(book, store)
        except CutSkipped as skipped:
            self._counters.add(Counter.COUNT_REMOTE_CUTS_SKIPPED)
            log.info("no cut is made: %s; the next one is due in %.0f s", skipped, self._interval_s())
        except (StoreError, OSError) as error:
            self._counters.add(Counter.COUNT_REMOTE_CUTS_SKIPPED)
            log.info("a cut has failed: %s; the next one is due in %.0f s", error, self._interval_s())

    def _cut(self, cutter: Cutter, book: Book) -> None:
        cut = cutter.make(book.state)
        book.commit_cut(cut)
        cutter.published(cut)
        self._counters.add(Counter.COUNT_REMOTE_CUTS)
        self._counters.set(Counter.COUNT_REMOTE_CUT_MS, cut.manifest.taken_ms)
        self._counters.set(Counter.COUNT_REMOTE_CUT_PAUSE_US, round(cut.paused_s * 1e6))

    def _remove_expired(self, book: Book, store: ObjectStore) -> None:
        event = expired(book.state, wall_ms(), self._config.mpbroker_remote_checkpoint_retention_ms)
        if event is not None:
            book.add([event])
            book.commit()
            store.delete(objects_of(event))

    def _interval_s(self) -> float:
        return self._config.mpbroker_remote_checkpoint_interval_ms / 1000

    def _wait_until(self, due: float) -> None:
        """Wait. Raises Stopped."""
        while (left_s := due - time.monotonic()) > 0:
            self._work.wait(min(left_s, LOOK_S))

    def _paced(self, count: int) -> None:
        self._work.pace(count, self._stints)


def objects_of(event: CutsRemoved) -> list[str]:
    """Return the names of the objects that an event lets go."""
    return [*map(cut_name, event.cut_ids), *map(bundle_name, event.bundle_ids)]
