"""The object store and this broker's ledger in it, as all threads of the tier use them."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.log.io.pace import Pace, Stints
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.events import Started
from mpbroker.remote.ledger.lease import RENEWALS
from mpbroker.remote.ledger.ledger import Fenced, Ledger
from mpbroker.remote.ledger.owner import OwnerDamaged, OwnerFile
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.registrations import addresses_of
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store
from mpbroker.remote.store.self_test import check_store
from mpbroker.remote.tier.book import Book
from mpbroker.remote.tier.leadership import Leadership, taken_over
from mpbroker.remote.tier.outage import Outage
from mpbroker.remote.tier.remote_files import RemoteFiles
from mpbroker.remote.tier.store_clock import StoreClock
from shm.clock import wall_ms
from shm.counters import CounterPage
from shm.word import Words

# The longest sleep without a look at the settings.
LOOK_S: Final = 1.0
log = logging.getLogger("mpbroker.remote")


class Stopped(Exception):
    """Raised when the process is to stop."""


class TierStore:
    """The store, what its ledger says, and how threads wait. One thread opens it; the others may read.

    `objects` is None until the store is open, `book` until the ledger is this broker's.
    """

    def __init__(
        self,
        config: BrokerConfig,
        cluster_id: str,
        words: Words,
        counters: CounterPage,
        leadership: Leadership,
        opened: Callable[[str, int], ObjectStore] = open_store,
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._counters = counters
        self._leadership = leadership
        self._opened = opened
        self.outage = Outage(counters)
        self.files = RemoteFiles(words)
        self._pace = Pace(lambda: config.remote_log_manager_copy_max_bytes_per_second)
        self._stops = threading.Event()
        self.objects: ObjectStore | None = None
        self.book: Book | None = None
        self._is_fit = False
        self._clock: StoreClock | None = None
        self._reader: LedgerReader | None = None
        self._ledger: Ledger | None = None

    @property
    def state(self) -> RemoteState | None:
        """Return what the ledger says, as far as it was read."""
        return None if self._reader is None else self._reader.state

    def now_ms(self) -> int:
        """Return the time by the store's clock; before that was read by this host's."""
        return wall_ms() if self._clock is None else self._clock.now_ms()

    # ---- opening

    def begin(self) -> Book:
        """Open and test the store, and read the ledger to its end. A later call skips what is done.

        Raises StoreRefused, StoreUnfit, OwnerDamaged, LedgerDamaged, Fenced, StoreError, OSError.
        """
        config, counters, url = self._config, self._counters, self._config.mpbroker_remote_url
        if self.objects is None:
            counters.set_status("opening the object store")
            self.objects = self._opened(url, config.mpbroker_remote_request_timeout_ms)
        if not self._is_fit:
            counters.set_status("testing the object store")
            check_store(self.objects)
            self._is_fit = True
        if self._ledger is None:
            file, self._reader = OwnerFile(Path(config.log_dirs[0])), LedgerReader(self.objects)
            file.owner.acks = config.mpbroker_remote_acks
            # An entry that has no answer is tried again before the lease runs out.
            timeout_ms = config.mpbroker_remote_lease_ms // RENEWALS
            self._ledger = Ledger(
                *(self._reader, file, self.now_ms),
                boot_clock_ns=self._leadership.clock_ns,
                store=self._opened(url, min(config.mpbroker_remote_request_timeout_ms, timeout_ms)),
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
            self._clock = StoreClock(self.objects)
            self._leadership.begin(self._ledger, self._started)
            self.book = Book(
                *(self._ledger, self.files, counters, self.outage, self._leadership),
                lambda: config.mpbroker_remote_commit_interval_ms,
            )
            log.info(
                "%s has %d segments; entry %d of its ledger is of this start",
                url,
                sum(map(len, self._ledger.state.segments.values())),
                self._ledger.seq,
            )
        return self.book

    def started(self) -> Started:
        """Return what the ledger is to say of this broker, also after its listeners were changed."""
        listeners = self._config.listeners, self._config.advertised_listeners
        if listeners != self._listeners:
            # The look-up of a name may take long.
            self._started = structs.replace(self._started, listeners=addresses_of(self._config))
            self._listeners = listeners
        return self._started

    def end_if_taken_over(self, fenced: Fenced) -> None:
        """Raise FatalError if another broker leads what this one has led."""
        if fenced.leader is not None:
            log.info("%s", fenced)
            raise taken_over(fenced.leader, self._config.node_id)

    def open_for_reads(self) -> None:
        """Open a store that is another broker's, and read its ledger. Raises Stopped."""
        config = self._config
        while self.objects is None:
            try:
                self.objects = self._opened(
                    config.mpbroker_remote_url, config.mpbroker_remote_request_timeout_ms
                )
            except (StoreError, StoreRefused) as error:
                self.wait(self.outage.failed(error))
        self.outage.succeeded()
        self.read_only()

    def read_only(self, refused: Exception | None = None) -> None:
        """Read the ledger to serve remote segments, if `begin` failed before it. Raises Stopped."""
        if self.objects is None or self.book is not None:
            return
        reader = self._reader = self._reader or LedgerReader(self.objects)
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

    # ---- waiting

    def stop(self) -> None:
        self._stops.set()

    def wait(self, seconds: float) -> None:
        """Wait, or raise Stopped."""
        if self._stops.wait(max(seconds, 0.0)):
            raise Stopped

    def give_way(self) -> None:
        """Raise Stopped if the process is to stop."""
        if self._stops.is_set():
            raise Stopped

    def pace(self, count: int, stints: Stints) -> None:
        """Wait as remote.log.manager.copy.max.bytes.per.second demands. Raises Stopped.

        Threads share the rate. Each has stints of its own.
        """
        stints.rest_if_due()
        mark = self._pace.take(count)
        self.give_way()
        while (left_s := self._pace.left_s(mark)) > 0:
            self.wait(min(left_s, LOOK_S))
