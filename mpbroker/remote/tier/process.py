"""The tier process: uploads sealed segments to the object store, and downloads what handlers ask for.

The main thread follows orders, learns of topics and serves the handlers' calls (`handler_calls`). It never
waits for the store. A second thread uploads and deletes segments (`remote_writer`), on CPUs that no other
thread wants. Other threads make cuts (`cutting`), renew the lease (`renewing`), ship commit rounds
(`shipper`) and download (`download_jobs`). The supervisor starts the process only if
remote.log.storage.system.enable is set. While the process is away, local data is served for as long as the
lease lasts, and stays where it is. Commit rounds wait for it only with mpbroker.remote.acks=ledger.

(Kafka: RemoteLogManager.)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from mpbroker.ipc import topology
from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.control_client import ControlClient
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.leading import NEVER, lease_left_ms
from mpbroker.ipc.process import IDLE_SLEEP_MS, ExitCode, PeerOrder, ProcessContext
from mpbroker.log.io.pace import only_when_idle
from mpbroker.remote.cuts.cutter import Cutter
from mpbroker.remote.cuts.files import Look
from mpbroker.remote.cuts.instant import Broker, Instant, Rows, instant_at_rest, take_instant
from mpbroker.remote.cuts.manifest import CutFile
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.restore.offline import bring_forward
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.remote.tier.cutting import Cutting
from mpbroker.remote.tier.hand_over import HandOver
from mpbroker.remote.tier.handler_calls import HandlerCalls
from mpbroker.remote.tier.leadership import Leadership
from mpbroker.remote.tier.places import Places
from mpbroker.remote.tier.ranges import Ranges
from mpbroker.remote.tier.remote_writer import RemoteWriter
from mpbroker.remote.tier.renewing import Renewing
from mpbroker.remote.tier.shipper import Shipper
from mpbroker.remote.tier.tier_store import TierStore
from mpbroker.remote.tier.topics import Topics

# A request to the store may hold the thread up for longer: then it ends with the process.
STOP_S = 5.0
# The supervisor may be busy: then a cut is skipped.
CONTROL_TIMEOUT_S = 2.0


def run(context: ProcessContext, cluster_id: str) -> int:
    """Serve until ordered to stop."""
    return TierProcess(context, cluster_id).serve()


class TierProcess:
    """The main thread, and the threads that it begins."""

    def __init__(self, context: ProcessContext, cluster_id: str) -> None:
        memory, config = context.memory, context.config
        self.context = context
        self._topics = Topics()
        self._news = BulletinReader(
            memory.private.block("bulletin"), memory.words("bulletin_acks"), context.index
        )
        places = Places(
            *(memory.table(), memory.sizes.log_workers, config.log_dirs, self._topics),
            lambda topic_id: (state := self.tier.state) is not None and topic_id in state.topics,
        )
        asked = memory.words("remote_asked")
        self._leading = memory.leading()
        self._leads = self._leading.leads()
        if not self._leads:
            # There may be standbys.
            context.log.info("clients are served when the ledger has an entry of this start")
        leadership = Leadership(
            *(self._leading, context.counters, self._ring_processors),
            replicated=lambda ms: memory.words("readable").store(0, ms),
        )
        self.tier = TierStore(config, cluster_id, memory.words("remote"), context.counters, leadership)
        self.writer = RemoteWriter(
            *(config, self.tier, self._topics, places, context.counters, leadership),
            collections_asked=lambda: asked.load(0),
            bundles=self._nameless,
            cut_needs=lambda key: self._cutting.needs(key),
            step_back=self._step_back,
        )
        self._cluster_id = cluster_id
        # A thread of usual priority: all processes wait for it.
        self._instants = ThreadPoolExecutor(1, "instant of a cut")
        self._instants.submit(int).result()
        self._first_cut = memory.words("first_cut") if config.ships_rounds else None
        self._cutting = Cutting(
            *(config, self.tier, context.counters, self._cutter, self._step_back, self._first_cut),
            are_open=lambda: self._topics.now is not None,
        )
        self._shipper = self._make_shipper()
        self._renewing = Renewing(self.tier, leadership, config.mpbroker_remote_lease_ms)
        self._calls = HandlerCalls(context, self.tier, self._topics, places, self._cutting)
        self._bug: Exception | None = None

    def serve(self) -> int:
        self._begin("lease", self._renewing.renew)
        cuts = self._begin("cuts", self._cutting.run)
        threads = [
            cuts,
            self._begin("standbys", self._renewing.follow_standbys),
            self._begin("remote writer", self.writer.run),
            *((self._begin("shipper", self._shipper.run),) if self._shipper is not None else ()),
        ]
        self.context.ready()
        while not self.context.must_stop():
            self.step()
            self.context.wait(self._something_waits, self._sleep_ms())
        self.tier.stop()
        self._calls.close()
        until = time.monotonic() + STOP_S
        if self.tier.book is not None and not self.context.orphaned:
            # The supervisor stops this process when all others that write have ended.
            last = HandOver(self.tier, self._cutting, self._renewing, cuts)
            if not self._await(self._begin("hand-over", last.run), time.monotonic() + last.limit_s):
                last.give_up(f"it has taken {last.limit_s:.0f} s")
        # A thread may wait for the store. It dies with the process, as it would by a kill.
        for thread in threads:
            self._await(thread, until)
        self.context.stopped()
        return ExitCode.STOPPED

    def _begin(self, name: str, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
        thread.start()
        return thread

    def _await(self, thread: threading.Thread, until: float) -> bool:
        """Return whether the thread ends in time."""
        while thread.is_alive() and time.monotonic() < until:
            self.context.counters.beat()
            thread.join(0.1)
        return not thread.is_alive()

    def step(self) -> None:
        """Do all that is possible without waiting."""
        while (order := self.context.pending_order()) is not None:
            self._obey_order(order)
            self.context.acknowledge_order()
        if self._bug is not None:
            raise self._bug
        self._watch_lease()
        if news := self._news.poll():
            self._topics.apply(news)
        if self._shipper is not None:
            self._shipper.follow()
        self._calls.step()

    def _watch_lease(self) -> None:
        """Tell when the lease has run out, and when it is in force again."""
        leads = self._leading.leads()
        if leads == self._leads:
            return
        self._leads = leads
        if leads:
            self.context.log.info("the lease is in force: clients are served")
        elif self._leading.until_ns != NEVER:
            self._ring_processors()
            self.context.log.error(
                "the lease has run out: the object store has not taken an entry in time. Clients are refused "
                "until it does; a standby may take over. mpbroker remote status has the last error"
            )

    def _ring_processors(self) -> None:
        for role in topology.PROCESSORS:
            self.context.ring(role)

    def _something_waits(self) -> bool:
        if self._shipper is not None and self._shipper.has_news:
            return True
        return self.context.pending_order() is not None or self._calls.has_news()

    def _sleep_ms(self) -> int:
        next_ms = self._calls.next_ms()
        sleep_ms = IDLE_SLEEP_MS if next_ms is None else next_ms
        left_ms = lease_left_ms(self.context.counters.get(Counter.COUNT_REMOTE_LEASE_UNTIL_MS))
        # Processors are told at once when the lease has run out.
        return min(sleep_ms, left_ms + 1) if left_ms else sleep_ms

    # ---- threads

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001
            # The main thread dies of it, so that a successor begins anew.
            self._bug = error
            os.eventfd_write(self.context.bell.fd, 1)

    def _step_back(self) -> None:
        try:
            only_when_idle()
        except OSError as error:
            self.context.log.warning(
                "the tier cannot lower its priority (%s): sched_setscheduler and ioprio_set are forbidden to "
                "this process; uploads will slow down clients more",
                error,
            )

    def _cutter(self, store: ObjectStore, paced: Callable[[int], None]) -> Cutter:
        config, memory = self.context.config, self.context.memory
        rows = Rows(
            memory.table(),
            memory.sizes.log_workers,
            lambda: {one.topic_id: one.name for one in (self._topics.now or {}).values()},
        )
        broker = Broker(list(map(Path, config.log_dirs)), rows, memory.failed_dirs)
        control = ControlClient(memory.public_path.parent, CONTROL_TIMEOUT_S)

        def instant(state: RemoteState, known: Mapping[str, CutFile], former: Look) -> Instant:
            is_first = self._first_cut is not None and not self._first_cut.load(0)
            if is_first or self._cutting.is_at_rest:
                is_closed = self._cutting.is_at_rest
                return instant_at_rest(broker, state, known, self._mark, is_closed=is_closed)
            take = partial(take_instant, control, broker, state, known, former, self._mark)
            return self._instants.submit(take).result()

        return Cutter(store, broker, (self._cluster_id, config.node_id), instant, paced, bring_forward)

    def _make_shipper(self) -> Shipper | None:
        """Return the shipper with mpbroker.remote.acks=ledger, else None."""
        memory, first_cut = self.context.memory, self._first_cut
        if first_cut is None:
            return None
        bells = [memory.doorbell(role) for role in topology.LOG_WORKERS[: memory.sizes.log_workers]]
        return Shipper(
            self.tier,
            Ranges(memory.table(), self.context.config.log_dirs),
            [memory.unshipped_block(number) for number in range(memory.sizes.log_workers)],
            memory.words("shipped"),
            first_cut,
            lambda worker: bells[worker].ring(),
            self.context.counters,
        )

    def _mark(self) -> tuple[int, int]:
        """Return `Instant.shipped` and `Instant.since` as of now."""
        if self._shipper is not None:
            return self._shipper.mark()
        book = self.tier.book
        assert book is not None
        return book.state.last_shipped, book.ledger.seq

    def _nameless(self) -> set[bytes]:
        """Return what the ledger is about to name of a cut that is being made, and of rounds on their way."""
        return self._cutting.bundles() | (set() if self._shipper is None else self._shipper.objects())

    def _obey_order(self, order: PeerOrder) -> None:
        if order.settings_changed:
            self.context.follow_settings()
        elif topology.is_handler(order.role) and not order.leaving:
            self._calls.obey(order)
