"""The tier process: uploads sealed segments to the object store, and downloads what handlers ask for.

The main thread follows orders, learns of topics and serves the handlers' calls. It never waits for the store.
A second thread does all work on the store that changes it (`work`), on CPUs that no other thread wants. Other
threads download (`downloads`). The supervisor starts the process only if remote.log.storage.system.enable is
set. No process waits for it: while it is away, local data is served and stays where it is.

(Kafka: RemoteLogManager.)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mpbroker.ipc import calls, topology
from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.control_client import ControlClient
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.process import IDLE_SLEEP_MS, ExitCode, PeerOrder, ProcessContext
from mpbroker.ipc.rings import RingPair, any_waits
from mpbroker.ipc.rpc import NO_ANSWER, RpcServer
from mpbroker.ipc.slots import Call, SlotKind, kind_of, unpack_call, unpack_return
from mpbroker.log.io.pace import only_when_idle
from mpbroker.remote.cuts.cutter import Cutter
from mpbroker.remote.cuts.files import Look
from mpbroker.remote.cuts.instant import Broker, Instant, Rows, take_instant
from mpbroker.remote.cuts.manifest import CutFile
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.remote.tier.cache import RemoteCache
from mpbroker.remote.tier.cutting import Cutting
from mpbroker.remote.tier.downloads import Downloads, Totals
from mpbroker.remote.tier.places import Places
from mpbroker.remote.tier.stored import StoredPartitions
from mpbroker.remote.tier.topics import Topics
from mpbroker.remote.tier.work import TierWork
from mpbroker.storage.names import REMOTE_CACHE
from shm.clock import monotonic_ms

# A request to the store may hold the thread up for longer: then it ends with the process.
STOP_S = 5.0
# The supervisor may be busy: then a cut is skipped.
CONTROL_TIMEOUT_S = 2.0


def run(context: ProcessContext, cluster_id: str) -> int:
    """Serve until ordered to stop."""
    return TierProcess(context, cluster_id).serve()


class TierProcess:
    """The main thread: orders, topics, calls."""

    def __init__(self, context: ProcessContext, cluster_id: str) -> None:
        memory, config = context.memory, context.config
        self.context = context
        arena = memory.arena(context.index)
        arena.reset()
        self._lender = Lender(arena, context.index)
        self._server = RpcServer(
            self._lender, memory.arena, lambda handler, slot: self._rings(handler).push(slot)
        )
        self._handlers: dict[int, RingPair] = {}
        # How often each handler has died: its successor gets no answer to a call of its own.
        self._lives = dict.fromkeys(topology.HANDLERS, 0)
        self._fenced: set[int] = set()
        self._topics = Topics()
        self._news = BulletinReader(
            memory.private.block("bulletin"), memory.words("bulletin_acks"), context.index
        )
        places = Places(
            *(memory.table(), memory.sizes.log_workers, config.log_dirs, self._topics),
            lambda topic_id: (state := self.work.state) is not None and topic_id in state.topics,
        )
        asked = memory.words("remote_asked")
        self.work = TierWork(
            *(config, cluster_id, self._topics, places, memory.words("remote"), context.counters),
            collections_asked=lambda: asked.load(0),
            bundles=lambda: self._cutting.bundles(),
            step_back=self._step_back,
        )
        self._cluster_id = cluster_id
        # A thread of usual priority: all processes wait for it.
        self._instants = ThreadPoolExecutor(1, "instant of a cut")
        self._instants.submit(int).result()
        self._cutting = Cutting(config, self.work, context.counters, self._cutter, self._step_back)
        self._stored = StoredPartitions(places.find, lambda: self.work.state)
        self._downloads: Downloads | None = None
        self._bug: Exception | None = None

    def serve(self) -> int:
        threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for name, run in (("remote writer", self.work.run), ("cuts", self._cutting.run))
        ]
        for thread in threads:
            thread.start()
        self.context.ready()
        while not self.context.must_stop():
            self.step()
            self.context.wait(self._something_waits, self._sleep_ms())
        self.work.stop()
        if self._downloads is not None:
            self._downloads.close()
        # A thread may wait for the store. It dies with the process, as it would by a kill.
        for _ in range(round(STOP_S / 0.1)):
            self.context.counters.beat()
            alive = [thread for thread in threads if thread.is_alive()]
            if not alive:
                break
            alive[0].join(0.1)
        self.context.stopped()
        return ExitCode.STOPPED

    def step(self) -> None:
        """Do all that is possible without waiting."""
        while (order := self.context.pending_order()) is not None:
            self._obey_order(order)
            self.context.acknowledge_order()
        if self._bug is not None:
            raise self._bug
        if news := self._news.poll():
            self._topics.apply(news)
        if self._downloads is None and self.work.store is not None:
            self._downloads = self._begin_downloads()
        for rings in self._bound_handlers():
            self._receive(rings)
        if self._downloads is not None:
            self._downloads.step()
            self._count(self._downloads)
        for rings in self._handlers.values():
            rings.flush()

    def _something_waits(self) -> bool:
        return self.context.pending_order() is not None or any_waits(self._bound_handlers())

    def _sleep_ms(self) -> int:
        next_ms = None if self._downloads is None else self._downloads.next_ms()
        return IDLE_SLEEP_MS if next_ms is None else next_ms

    # ---- threads

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001
            # The main thread dies of it, so that a successor begins anew.
            self._bug = error
            self._wake()

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
        broker = Broker(list(map(Path, config.log_dirs)), rows)
        control = ControlClient(memory.public_path.parent, CONTROL_TIMEOUT_S)

        def instant(state: RemoteState, known: Mapping[str, CutFile], former: Look) -> Instant:
            return self._instants.submit(take_instant, control, broker, state, known, former).result()

        return Cutter(store, broker, (self._cluster_id, config.node_id), instant, paced)

    def _wake(self) -> None:
        os.eventfd_write(self.context.bell.fd, 1)

    def _begin_downloads(self) -> Downloads:
        config = self.context.config
        cache = RemoteCache(
            Path(config.log_dirs[0]) / REMOTE_CACHE, lambda: config.mpbroker_remote_cache_bytes, monotonic_ms
        )
        cache.open()
        assert self.work.store is not None
        return Downloads(self.work.store, cache, self._stored.find, config, self._wake)

    def _count(self, downloads: Downloads) -> None:
        totals, counters = downloads.totals, self.context.counters
        # A predecessor's counts go on.
        counters.add(Counter.COUNT_REMOTE_FETCHES, totals.fetches)
        counters.add(Counter.COUNT_REMOTE_FETCHED_BYTES, totals.fetched_bytes)
        counters.add(Counter.COUNT_REMOTE_FETCH_ERRORS, totals.errors)
        counters.add(Counter.COUNT_REMOTE_CACHE_HITS, totals.hits)
        counters.set(Counter.COUNT_REMOTE_CACHE_BYTES, downloads.cache_bytes)
        downloads.totals = Totals()

    # ---- handlers

    def _bound_handlers(self) -> list[RingPair]:
        there = filter(self.context.is_alive, topology.HANDLERS)
        return [self._rings(handler) for handler in there if handler not in self._fenced]

    def _rings(self, handler: int) -> RingPair:
        if handler not in self._handlers:
            self._handlers[handler] = RingPair(self.context, handler)
        return self._handlers[handler]

    def _receive(self, rings: RingPair) -> None:
        for slot in rings.take():
            match kind_of(slot):
                case SlotKind.CALL:
                    call = unpack_call(slot)
                    if (message := self._server.message_of(call)) is not None:
                        self._called(call, message)
                case SlotKind.RETURN:
                    returned = unpack_return(slot)
                    self._lender.end(returned.block, returned.generation)
                case kind:
                    raise ValueError(f"{topology.name_of(rings.other)} sent a descriptor of kind {kind}")

    def _called(self, call: Call, message: calls.Message) -> None:
        handler, life = call.owner, self._lives[call.owner]

        def answer(answer: calls.Message) -> None:
            if life == self._lives[handler]:
                self._server.answer(handler, call.request, answer, call.connection)

        if not isinstance(message, calls.RemoteWindow):
            answer(calls.Failed(NO_ANSWER, f"the tier does not know {type(message).__name__}"))
        elif self._downloads is None:
            answer(calls.Failed(NO_ANSWER, "the tier has not opened the object store yet"))
        else:
            self._downloads.asked(message, answer)

    def _obey_order(self, order: PeerOrder) -> None:
        if order.settings_changed:
            self.context.follow_settings()
        elif topology.is_handler(order.role) and not order.leaving:
            rings = self._rings(order.role)
            if order.alive:
                rings.rebind()
                self._fenced.discard(order.role)
                return
            self._fenced.add(order.role)
            self._lives[order.role] += 1
            rings.drop()
            self._lender.reclaim(order.role)
