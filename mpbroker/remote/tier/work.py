"""The tier's work: brings sealed segments into the store and the ledger, and removes what is no longer kept.

It runs in a thread of its own. Whatever fails is tried again until it succeeds, and nothing is lost
meanwhile: local segments stay until the ledger has them. What must not be tried again, such as writing to a
ledger that another broker has taken over, ends the thread. From then on what the store has is served, and
nothing is written.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.counters import Counter
from mpbroker.log.io.pace import Pace, Stints
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.events import ObjectsDeleted, Started
from mpbroker.remote.ledger.lease import RENEWALS
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import OwnerDamaged, OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.registrations import addresses_of
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.ledger.trimming import trim
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store
from mpbroker.remote.store.self_test import StoreUnfit, check_store
from mpbroker.remote.tier import removal
from mpbroker.remote.tier.book import Book
from mpbroker.remote.tier.collector import collect
from mpbroker.remote.tier.copying import Copying
from mpbroker.remote.tier.leadership import Leadership, taken_over
from mpbroker.remote.tier.outage import Outage
from mpbroker.remote.tier.places import Key, Place, Places
from mpbroker.remote.tier.remote_files import RemoteFiles
from mpbroker.remote.tier.store_clock import StoreClock
from mpbroker.remote.tier.topics import Topics
from mpbroker.remote.tier.uploader import Uploader
from shm.clock import wall_ms
from shm.counters import CounterPage
from shm.word import Words

COLLECT_EVERY_S: Final = 24 * 3600.0
# Removed segments whose objects one request deletes.
DELETED_AT_ONCE: Final = 100
# The longest sleep without a look at the settings.
LOOK_S: Final = 1.0
_FINAL: Final = (Fenced, LedgerDamaged, OwnerDamaged, StoreUnfit)
log = logging.getLogger("mpbroker.remote")


class Stopped(Exception):
    """Raised when the process is to stop."""


class TierWork:
    """The thread's work. Others may read `store`, `state` and `book`, and call `stop`, `pace` and `wait`.

    `step_back` lowers the thread's priority. `bundles` are objects that the ledger is about to name.
    `cut_needs(key)`: a restore of the newest cut needs what the ledger has of a partition.
    """

    def __init__(
        self,
        config: BrokerConfig,
        cluster_id: str,
        topics: Topics,
        places: Places,
        words: Words,
        counters: CounterPage,
        leadership: Leadership,
        step_back: Callable[[], object] = lambda: None,
        opened: Callable[[str, int], ObjectStore] = open_store,
        collections_asked: Callable[[], int] = int,
        bundles: Callable[[], AbstractSet[bytes]] = frozenset,
        cut_needs: Callable[[Key], bool] = lambda _key: False,
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._leadership = leadership
        self._topics = topics
        self._places = places
        self._files = RemoteFiles(words)
        self._counters = counters
        self._step_back = step_back
        self._open_store = opened
        self._outage = Outage(counters)
        self._pace = Pace(lambda: config.remote_log_manager_copy_max_bytes_per_second)
        self._stints = Stints()
        self._stops = threading.Event()
        self.store: ObjectStore | None = None
        self._is_fit = False
        self._clock: StoreClock | None = None
        self._reader: LedgerReader | None = None
        self._ledger: Ledger | None = None
        # What a turn works with, once the ledger is this broker's.
        self.book: Book | None = None
        self._copying: Copying | None = None
        self._next_collection = 0.0
        self._collections_asked = collections_asked
        self._bundles = bundles
        self._cut_needs = cut_needs
        self._asked = collections_asked()
        counters.set(Counter.COUNT_REMOTE_FENCED, 0)

    @property
    def state(self) -> RemoteState | None:
        """Return what the ledger says, as far as it was read."""
        return None if self._reader is None else self._reader.state

    def stop(self) -> None:
        self._stops.set()

    def run(self) -> None:
        """Work until `stop` is called, or until an error that no retry can mend."""
        if self._config.mpbroker_remote_read_only:
            with suppress(Stopped):
                self._serve_reads()
            return
        try:
            while True:
                try:
                    self.begin()
                    while True:
                        self.wait(self.turn())
                except (StoreError, StoreRefused, OSError) as error:
                    delay_s = self._outage.failed(error)
                    if self.book is None and (self._config.ships_rounds or self._leadership.is_awaited):
                        # Everybody waits for it.
                        delay_s = min(delay_s, LOOK_S)
                    self._counters.set_status(f"the object store fails: {error}")
                    self.wait(delay_s)
        except Stopped:
            return
        except _FINAL as error:
            if isinstance(error, Fenced):
                # A start that waits for this process goes by how it ends, and so by nothing before that.
                self.end_if_taken_over(error)
            self._refused(str(error))
            with suppress(Stopped):
                self._read_only(error)

    def _serve_reads(self) -> None:
        """Open a store that is another broker's, and read its ledger. Raises Stopped."""
        config = self._config
        while self.store is None:
            try:
                self.store = self._open_store(
                    config.mpbroker_remote_url, config.mpbroker_remote_request_timeout_ms
                )
            except (StoreError, StoreRefused) as error:
                self.wait(self._outage.failed(error))
        self._outage.succeeded()
        self._read_only()
        if self.state is not None:
            self._count(self.state)
        self._counters.set_status("reads only: the object store is another broker's")

    def now_ms(self) -> int:
        """Return the time by the store's clock; before that was read by this host's."""
        return wall_ms() if self._clock is None else self._clock.now_ms()

    def end_if_taken_over(self, fenced: Fenced) -> None:
        """Raise FatalError if another broker leads what this one has led."""
        if fenced.leader is not None:
            log.error("%s", fenced)
            raise taken_over(fenced.leader, self._config.node_id)

    def begin(self) -> None:
        """Open and test the store, and read the ledger to its end. A later call skips what is done.

        Raises StoreRefused, StoreUnfit, OwnerDamaged, LedgerDamaged, Fenced, StoreError, OSError.
        """
        config, counters, url = self._config, self._counters, self._config.mpbroker_remote_url
        if self.store is None:
            counters.set_status("opening the object store")
            self.store = self._open_store(url, config.mpbroker_remote_request_timeout_ms)
        if not self._is_fit:
            counters.set_status("testing the object store")
            check_store(self.store)
            self._is_fit = True
        if self._ledger is None:
            file, self._reader = OwnerFile(Path(config.log_dirs[0])), LedgerReader(self.store)
            file.owner.acks = config.mpbroker_remote_acks
            self._ledger = Ledger(
                *(self._reader, file, self.now_ms),
                boot_clock_ns=self._leadership.clock_ns,
                store=self._open_store(url, self._entry_timeout_ms()),
            )
            self._listeners = config.listeners, config.advertised_listeners
            self._started = Started(
                *(self._cluster_id, config.node_id, socket.gethostname()),
                listeners=addresses_of(config),
                rack=config.broker_rack or "",
                lease_ms=config.mpbroker_remote_lease_ms,
                acks=config.mpbroker_remote_acks,
            )
        if self.book is None:
            counters.set_status("reading the ledger")
            self._ledger.start(self._started)
            self._clock = StoreClock(self.store)
            self._leadership.begin(self._ledger, self._started)
            self.book = Book(
                *(self._ledger, self._files, counters, self._outage, self._leadership),
                lambda: config.mpbroker_remote_commit_interval_ms,
            )
            uploader = Uploader(self.store, self._places, config.node_id, self._paced)
            self._copying = Copying(self.book, uploader, self._topics, counters, self._give_way)
            # Only now: the library of the store has made its threads, which downloads use too, and whose
            # priority is that of this thread when they were made.
            self._step_back()
            log.info(
                "%s has %d segments; entry %d of its ledger is of this start",
                url,
                sum(map(len, self._ledger.state.segments.values())),
                self._ledger.seq,
            )

    def started(self) -> Started:
        """Return what the ledger is to say of this broker, also after its listeners were changed."""
        listeners = self._config.listeners, self._config.advertised_listeners
        if listeners != self._listeners:
            # The look-up of a name may take long.
            self._started = structs.replace(self._started, listeners=addresses_of(self._config))
            self._listeners = listeners
        return self._started

    def turn(self) -> float:
        """Do all that is to be done now; return the seconds until the next turn.

        Raises Stopped, StoreError, OSError, Fenced.
        """
        assert self.book is not None
        assert self._copying is not None
        book, until = self.book, time.monotonic() + self._config.remote_log_manager_task_interval_ms / 1000
        self._give_way()
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
        book.add(list(removal.of_topics(book.state, topics, self.now_ms())))
        for place in places:
            if place.is_removed and self._cut_needs(place.key):
                # The next cut has the local files of what is to be removed here.
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
        self._outage.succeeded()
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
        assert self.store is not None
        delay_ms = self._config.mpbroker_remote_delete_delay_ms
        doomed = [one.segment for one in removal.due(book.state, self.now_ms(), delay_ms)]
        for start in range(0, len(doomed), DELETED_AT_ONCE):
            self._give_way()
            some = doomed[start : start + DELETED_AT_ONCE]
            book.check_fence()
            self.store.delete([name for one in some for name in one.objects.all])
            book.add([ObjectsDeleted(tuple(one.segment_id for one in some))])
            book.commit()
            self._counters.add(Counter.COUNT_REMOTE_DELETED_SEGMENTS, len(some))

    def _collect_if_due(self, book: Book) -> None:
        assert self.store is not None
        asked = self._collections_asked()
        if time.monotonic() < self._next_collection and asked == self._asked:
            return
        found = collect(self.store, book.state, self._bundles(), book.check_fence, self._give_way)
        trimmed = trim(self.store, book.state, book.check_fence)
        if trimmed:
            log.info("%d entries and snapshots of the ledger that are of no more use are deleted", trimmed)
        if found:
            log.info("%d objects of uploads that were given up are deleted", found)
        self._next_collection, self._asked = time.monotonic() + COLLECT_EVERY_S, asked

    def _refused(self, why: str) -> None:
        counters = self._counters
        self._files.withdraw()
        counters.set(Counter.COUNT_REMOTE_FENCED, 1)
        counters.add(Counter.COUNT_REMOTE_ERRORS)
        counters.set_last_error(why)
        counters.set_status(f"stopped: {why}")
        log.error(
            "nothing is uploaded or deleted any more: %s. Segments stay on this disk. Restart the broker "
            "when this is settled",
            why,
        )

    def _read_only(self, refused: Exception | None = None) -> None:
        """Read the ledger to serve remote segments, if `begin` failed before it. Raises Stopped."""
        if self.store is None or self.book is not None:
            return
        reader = self._reader = self._reader or LedgerReader(self.store)
        while True:
            try:
                reader.read_to_end()
                break
            except LedgerDamaged as error:
                log.error("what the object store has can be read as far as its ledger: %s", error)
                return
            except StoreError:
                self.wait(LOOK_S)
        if isinstance(refused, OwnerDamaged) and not reader.state.standbys:
            self._leadership.lead_alone()

    def _entry_timeout_ms(self) -> int:
        """Return when an entry that has no answer is tried again: before the lease runs out."""
        config = self._config
        return min(config.mpbroker_remote_request_timeout_ms, config.mpbroker_remote_lease_ms // RENEWALS)

    def _paced(self, count: int) -> None:
        self.pace(count, self._stints)

    def pace(self, count: int, stints: Stints) -> None:
        """Wait as remote.log.manager.copy.max.bytes.per.second demands. Raises Stopped.

        Threads share the rate. Each has stints of its own.
        """
        stints.rest_if_due()
        mark = self._pace.take(count)
        self._give_way()
        while (left_s := self._pace.left_s(mark)) > 0:
            self.wait(min(left_s, LOOK_S))

    def wait(self, seconds: float) -> None:
        """Wait, or raise Stopped."""
        if self._stops.wait(max(seconds, 0.0)):
            raise Stopped

    def _give_way(self) -> None:
        if self._stops.is_set():
            raise Stopped
