"""Serves the calls of handlers: windows of segments that only the object store has, and undeletions.

Everything here but the undeletions themselves runs in the tier's main thread, and waits for nothing.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from mpbroker.ipc import calls, topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.process import PeerOrder, ProcessContext
from mpbroker.ipc.rings import RingPair, any_waits
from mpbroker.ipc.rpc import NO_ANSWER, RpcServer
from mpbroker.ipc.slots import Call, SlotKind, kind_of, unpack_call, unpack_return
from mpbroker.protocol.errors import ErrorCode
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.tier.cache import PartitionKey, RemoteCache
from mpbroker.remote.tier.cutting import Cutting
from mpbroker.remote.tier.download_jobs import DownloadJobs, Totals
from mpbroker.remote.tier.downloads import Downloads
from mpbroker.remote.tier.places import Places
from mpbroker.remote.tier.tier_store import TierStore
from mpbroker.remote.tier.topics import Topics
from mpbroker.remote.tier.undeletion import CannotUndelete, undelete
from mpbroker.remote.tier.window_reads import StoredPartition
from mpbroker.storage.disk_errors import NO_ROOM
from mpbroker.storage.names import REMOTE_CACHE
from shm.clock import monotonic_ms


class HandlerCalls:
    """The rings of all handlers, and the answers to their calls."""

    def __init__(
        self,
        context: ProcessContext,
        tier: TierStore,
        topics: Topics,
        places: Places,
        cutting: Cutting,
    ) -> None:
        self._context = context
        self._tier = tier
        self._topics = topics
        self._places = places
        self._cutting = cutting
        arena = context.memory.arena(context.index)
        arena.reset()
        self._lender = Lender(arena, context.index)
        self._server = RpcServer(
            self._lender, context.memory.arena, lambda handler, slot: self._rings(handler).push(slot)
        )
        self._handlers: dict[int, RingPair] = {}
        # How often each handler has died: its successor gets no answer to a call of its own.
        self._lives = dict.fromkeys(topology.HANDLERS, 0)
        self._fenced: set[int] = set()
        self.downloads: Downloads | None = None
        self._lacks_room = False
        self._undeletions = ThreadPoolExecutor(1, "undeletion")
        # Answers for the main thread to give.
        self._undeleted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def step(self) -> None:
        """Do all that is possible without waiting."""
        if self.downloads is None and self._tier.objects is not None:
            self._begin_downloads(self._tier.objects)
        for rings in self._bound():
            self._receive(rings)
        while not self._undeleted.empty():
            self._undeleted.get()()
        if self.downloads is not None:
            self.downloads.jobs.step()
            self._count(self.downloads.jobs)
        for rings in self._handlers.values():
            rings.flush()

    def obey(self, order: PeerOrder) -> None:
        """Bind the rings of a handler that lives again, or let go of those of a dead one."""
        rings = self._rings(order.role)
        if order.alive:
            rings.rebind()
            self._fenced.discard(order.role)
            return
        self._fenced.add(order.role)
        self._lives[order.role] += 1
        rings.drop()
        self._lender.reclaim(order.role)

    def has_news(self) -> bool:
        """Return whether a handler has sent something."""
        return any_waits(self._bound())

    def next_ms(self) -> int | None:
        """Return in how many ms `step` must be called, if nobody rings before; None: never."""
        return None if self.downloads is None else self.downloads.jobs.next_ms()

    def close(self) -> None:
        if self.downloads is not None:
            self.downloads.jobs.close()

    def _bound(self) -> list[RingPair]:
        there = filter(self._context.is_alive, topology.HANDLERS)
        return [self._rings(handler) for handler in there if handler not in self._fenced]

    def _rings(self, handler: int) -> RingPair:
        if handler not in self._handlers:
            self._handlers[handler] = RingPair(self._context, handler)
        return self._handlers[handler]

    def _begin_downloads(self, store: ObjectStore) -> None:
        config = self._context.config
        cache = RemoteCache(
            Path(config.log_dirs[0]) / REMOTE_CACHE, lambda: config.mpbroker_remote_cache_bytes, monotonic_ms
        )
        try:
            cache.open()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # What is uploaded makes room.
            if not self._lacks_room:
                self._context.log.error("nothing can be read from the object store yet: %s", error)
            self._lacks_room = True
            return
        self.downloads = Downloads(store, cache, self._partition_of, config, self._wake)

    def _partition_of(self, slot: int, generation: int) -> StoredPartition | None:
        """Return a partition; None if it is not open, or not tiered, or the ledger was not read yet."""
        place, state = self._places.find(slot, generation), self._tier.state
        if place is None or state is None:
            return None
        segments = state.segments_of(*place.key)
        return StoredPartition(PartitionKey(*place.key), place.name, place.directory, segments)

    def _count(self, jobs: DownloadJobs) -> None:
        totals, counters = jobs.totals, self._context.counters
        # A predecessor's counts go on.
        counters.add(Counter.COUNT_REMOTE_FETCHES, totals.fetches)
        counters.add(Counter.COUNT_REMOTE_FETCHED_BYTES, totals.fetched_bytes)
        counters.add(Counter.COUNT_REMOTE_FETCH_ERRORS, totals.errors)
        counters.add(Counter.COUNT_REMOTE_CACHE_HITS, totals.hits)
        counters.set(Counter.COUNT_REMOTE_CACHE_BYTES, jobs.cache_bytes)
        jobs.totals = Totals()

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

        if isinstance(message, calls.UndeleteTopic):
            self._undeletions.submit(self._undelete, message, answer)
        elif not isinstance(message, calls.RemoteWindow):
            answer(calls.Failed(NO_ANSWER, f"the tier does not know {type(message).__name__}"))
        elif self.downloads is None:
            answer(calls.Failed(NO_ANSWER, "the tier has not opened the object store yet"))
        else:
            self.downloads.asked(message, answer)

    def _undelete(self, wanted: calls.UndeleteTopic, answer: Callable[[calls.Message], None]) -> None:
        """Do what a handler asks, in a thread of its own; the main thread gives the answer."""
        answered: calls.Message = calls.Acknowledged()
        tier, config = self._tier, self._context.config
        try:
            store, state, there = tier.objects, tier.state, self._topics.now
            if store is None or state is None or there is None or tier.book is None:
                raise CannotUndelete("the tier has not read the ledger: mpbroker remote status says why")
            undelete(store, state, wanted, there, list(map(Path, config.log_dirs)), tier.now_ms())
            if config.ships_rounds:
                # The ledger is about to have the topic, and only a cut has directories without records.
                self._cutting.await_cut()
        except (CannotUndelete, StoreError, OSError) as error:
            answered = calls.Failed(ErrorCode.INVALID_REQUEST, str(error))
        except Exception as error:
            self._context.log.exception("%s failed", wanted)
            answered = calls.Failed(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        self._undeleted.put(partial(answer, answered))
        self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._context.bell.fd, 1)
