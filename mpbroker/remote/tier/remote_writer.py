"""Brings sealed segments into the store and the ledger, and removes what is no longer kept.

This runs in a thread of its own. Whatever fails is tried again until it succeeds, and nothing is lost
meanwhile: local segments stay until the ledger has them. What must not be tried again, such as writing to a
ledger that another broker has taken over, ends the thread. From then on what the store has is served, and
nothing is written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.counters import Counter
from mpbroker.log.io.pace import Stints
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.events import ObjectsDeleted
from mpbroker.remote.ledger.ledger import Fenced
from mpbroker.remote.ledger.owner import OwnerDamaged
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.ledger.trimming import trim
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.store.opening import StoreRefused
from mpbroker.remote.store.self_test import StoreUnfit
from mpbroker.remote.tier import removal
from mpbroker.remote.tier.book import Book
from mpbroker.remote.tier.collector import collect
from mpbroker.remote.tier.copying import Copying
from mpbroker.remote.tier.leadership import Leadership
from mpbroker.remote.tier.places import Key, Place, Places
from mpbroker.remote.tier.tier_store import LOOK_S, Stopped, TierStore
from mpbroker.remote.tier.topics import Topics
from mpbroker.remote.tier.uploader import Uploader
from shm.counters import CounterPage

COLLECT_EVERY_S: Final = 24 * 3600.0
# Removed segments whose objects one request deletes.
DELETED_AT_ONCE: Final = 100
_FINAL: Final = (Fenced, LedgerDamaged, OwnerDamaged, StoreUnfit)
log = logging.getLogger("mpbroker.remote")


class RemoteWriter:
    """The thread's work. `step_back` lowers its priority.

    `bundles` are objects that the ledger is about to name. `cut_needs(key)`: a restore of the newest cut
    needs what the ledger has of a partition.
    """

    def __init__(
        self,
        config: BrokerConfig,
        tier: TierStore,
        topics: Topics,
        places: Places,
        counters: CounterPage,
        leadership: Leadership,
        step_back: Callable[[], object] = lambda: None,
        collections_asked: Callable[[], int] = int,
        bundles: Callable[[], AbstractSet[bytes]] = frozenset,
        cut_needs: Callable[[Key], bool] = lambda _key: False,
    ) -> None:
        self._config = config
        self._tier = tier
        self._topics = topics
        self._places = places
        self._counters = counters
        self._leadership = leadership
        self._step_back = step_back
        self._stints = Stints()
        # What a turn works with, once the ledger is this broker's.
        self._store: ObjectStore
        self._book: Book
        self._copying: Copying | None = None
        self._next_collection = 0.0
        self._collections_asked = collections_asked
        self._bundles = bundles
        self._cut_needs = cut_needs
        self._asked = collections_asked()
        counters.set(Counter.COUNT_REMOTE_FENCED, 0)

    def run(self) -> None:
        """Work until the tier is stopped, or until an error that no retry can mend."""
        if self._config.mpbroker_remote_read_only:
            with suppress(Stopped):
                self._serve_reads()
            return
        tier = self._tier
        try:
            while True:
                try:
                    self.begin()
                    while True:
                        tier.wait(self.turn())
                except (StoreError, StoreRefused, OSError) as error:
                    delay_s = tier.outage.failed(error)
                    if tier.book is None and (self._config.ships_rounds or self._leadership.is_awaited):
                        # Everybody waits for it.
                        delay_s = min(delay_s, LOOK_S)
                    self._counters.set_status(f"the object store fails: {error}")
                    tier.wait(delay_s)
        except Stopped:
            return
        except _FINAL as error:
            if isinstance(error, Fenced):
                # A start that waits for this process goes by how it ends, and so by nothing before that.
                tier.end_if_taken_over(error)
            self._refused(str(error))
            with suppress(Stopped):
                tier.read_only(error)
            self._count_found()

    def _serve_reads(self) -> None:
        self._tier.open_for_reads()
        self._count_found()
        self._counters.set_status("reads only: the object store is another broker's")

    def _count_found(self) -> None:
        if self._tier.state is not None:
            self._count(self._tier.state)

    def begin(self) -> None:
        """Make ready for turns. A later call skips what is done. Raises as `TierStore.begin`."""
        tier = self._tier
        self._book = tier.begin()
        assert tier.objects is not None
        self._store = tier.objects
        if self._copying is None:
            uploader = Uploader(self._store, self._places, self._config.node_id, self._paced)
            self._copying = Copying(self._book, uploader, self._topics, self._counters, tier.give_way)
            # Only now: the library of the store has made its threads, which downloads use too, and whose
            # priority is that of this thread when they were made.
            self._step_back()

    def turn(self) -> float:
        """Do all that is to be done now; return the seconds until the next turn.

        Raises Stopped, StoreError, OSError, Fenced.
        """
        assert self._copying is not None
        book, until = self._book, time.monotonic() + self._config.remote_log_manager_task_interval_ms / 1000
        self._tier.give_way()
        topics = self._topics.now
        if topics is None:
            return LOOK_S
        # A topic that came back after `topics` were read is not yet in the ledger again.
        places = [place for place in self._places.read() if place.topic_id in topics]
        # Before the first request: in an outage no other step is reached.
        self._copying.count(places)
        # What a failure has left comes first: no event may be found twice.
        book.commit()
        book.follow(places)
        book.add(list(removal.of_topics(book.state, topics, self._tier.now_ms())))
        for place in places:
            if place.is_removed and self._cut_needs(place.key):
                # The next cut has the local files of what is to be removed.
                continue
            events = list(removal.of_partition(book.state, place))
            if events and (not place.is_removed or self._is_hidden(place, book)):
                book.add(events)
        is_done = self._copying.copy(places, until)
        book.commit()
        self._copying.count(places)
        self._delete_due(book)
        if is_done:
            self._collect_if_due(book)
            book.snapshot_if_due()
        self._tier.outage.succeeded()
        self._count(book.state)
        self._counters.set_status(self._copying.problem or "waiting")
        return until - time.monotonic() if is_done else 0.0

    def _is_hidden(self, place: Place, book: Book) -> bool:
        """Return whether nobody relies any more on what the store has of a partition, and it is to go."""
        if not book.hide(place):
            return False
        # Who has it tiered again from here on reads the file anew.
        now = self._places.find(place.slot, place.generation)
        return now is not None and now.is_removed

    def _count(self, state: RemoteState) -> None:
        counters = self._counters
        there = [one.size for segments in state.segments.values() for one in segments]
        removed = [one.segment.size for one in state.removed.values()]
        counters.set(Counter.COUNT_REMOTE_SEGMENTS, len(there))
        counters.set(Counter.COUNT_REMOTE_BYTES, sum(there))
        counters.set(Counter.COUNT_REMOTE_REMOVED_SEGMENTS, len(removed))
        counters.set(Counter.COUNT_REMOTE_REMOVED_BYTES, sum(removed))

    def _delete_due(self, book: Book) -> None:
        delay_ms = self._config.mpbroker_remote_delete_delay_ms
        doomed = [one.segment for one in removal.due(book.state, self._tier.now_ms(), delay_ms)]
        for start in range(0, len(doomed), DELETED_AT_ONCE):
            self._tier.give_way()
            some = doomed[start : start + DELETED_AT_ONCE]
            book.check_fence()
            self._store.delete([name for one in some for name in one.objects.all])
            book.add([ObjectsDeleted(tuple(one.segment_id for one in some))])
            book.commit()
            self._counters.add(Counter.COUNT_REMOTE_DELETED_SEGMENTS, len(some))

    def _collect_if_due(self, book: Book) -> None:
        asked = self._collections_asked()
        if time.monotonic() < self._next_collection and asked == self._asked:
            return
        found = collect(self._store, book.state, self._bundles(), book.check_fence, self._tier.give_way)
        trimmed = trim(self._store, book.state, book.check_fence)
        if trimmed:
            log.info("%d entries and snapshots of the ledger that are of no more use are deleted", trimmed)
        if found:
            log.info("%d objects of uploads that were given up are deleted", found)
        self._next_collection, self._asked = time.monotonic() + COLLECT_EVERY_S, asked

    def _refused(self, why: str) -> None:
        counters = self._counters
        self._tier.files.withdraw()
        counters.set(Counter.COUNT_REMOTE_FENCED, 1)
        counters.add(Counter.COUNT_REMOTE_ERRORS)
        counters.set_last_error(why)
        counters.set_status(f"stopped: {why}")
        log.error(
            "nothing is uploaded or deleted any more: %s. Segments stay on this disk. Restart the broker "
            "when this is settled",
            why,
        )

    def _paced(self, count: int) -> None:
        self._tier.pace(count, self._stints)
