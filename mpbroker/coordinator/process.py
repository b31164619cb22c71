"""The coordinator process: its loop and the rings of handlers.

The loop sleeps in one place. No other code in this process waits.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from mpbroker.coordinator.metadata_controller import MetadataController, Phase
from mpbroker.coordinator.runtime.requests import Caller
from mpbroker.coordinator.services import Services
from mpbroker.ipc import calls, topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.process import IDLE_SLEEP_MS, MAX_SLEEP_MS, ExitCode, PeerOrder, ProcessContext
from mpbroker.ipc.rings import RingPair, any_waits
from mpbroker.ipc.rpc import RpcServer
from mpbroker.ipc.slots import Call, SlotKind, kind_of, unpack_call, unpack_return
from mpbroker.protocol.numbers import WAIT_FOR_OTHERS
from shm.clock import wall_ms

# How often to read words of other processes that ring no doorbell.
POLL_MS = 5
STOP_SECONDS = 5.0


class Coordinator:
    """The coordinator without its loop. `now_ms` is the clock for records, `new_id` makes random ids."""

    def __init__(
        self, context: ProcessContext, cluster_id: str, now_ms: Callable[[], int], new_id: Callable[[], bytes]
    ) -> None:
        memory = context.memory
        self._context = context
        arena = memory.arena(topology.COORDINATOR)
        arena.reset()
        self._lender = Lender(arena, topology.COORDINATOR)
        self._server = RpcServer(
            self._lender, memory.arena, lambda handler, slot: self._rings(handler).push(slot)
        )
        self._handlers: dict[int, RingPair] = {}
        self._lives = dict.fromkeys(topology.HANDLERS, 0)
        # Handlers that died and whose successors are not up: `roles` may name one whose rings are not bound.
        self._fenced: set[int] = set()
        self._bound: tuple[tuple[int, ...] | None, list[RingPair]] = (None, [])
        self.metadata = metadata = MetadataController(
            context, self._lender, cluster_id, now_ms, new_id, self._answer
        )
        self._services = Services(
            context.config,
            metadata.table,
            metadata.link,
            metadata.announcer,
            lambda: metadata.state,
            metadata.permissions.is_allowed,
            metadata.ask,
            self._answer,
            filter(context.is_alive, topology.HANDLERS),
        )
        metadata.topics_deleted = self._services.groups.shard.topics_deleted
        metadata.topics_changed = self._services.groups.shard.topics_changed

    # --- the loop's view

    def step(self) -> None:
        """Receive messages, do all work that is possible without waiting, and send messages."""
        while (order := self._context.pending_order()) is not None:
            self._obey_order(order)
            self._context.acknowledge_order()
        self.metadata.link.receive()
        # Durable changes are answered before anything new is begun.
        self._flush_to_handlers()
        for rings in self._bound_handlers():
            self._receive(rings)
        self.metadata.step()
        self._services.step(self.metadata.is_serving and not self.metadata.following.is_face)
        self.metadata.link.flush()
        self._flush_to_handlers()
        groups, counters = self._services.groups.shard, self._context.counters
        counters.set(Counter.COUNT_ARENA_BYTES, self._lender.in_use_bytes)
        counters.set(
            Counter.COUNT_REBALANCES_DELAYED, groups.timers.count("join") + groups.timers.count("sync")
        )
        counters.set(Counter.COUNT_HEARTBEATS_DELAYED, groups.timers.count("member"))
        groups.counts.publish(counters)

    def _flush_to_handlers(self) -> None:
        for rings in self._handlers.values():
            rings.flush()

    def something_waits(self) -> bool:
        """Return whether work is pending. The loop calls this method last before it sleeps."""
        if self._context.pending_order() is not None or self.metadata.has_work:
            return True
        return self.metadata.link.waiting() or any_waits(self._bound_handlers())

    @property
    def sleep_ms(self) -> int:
        most_ms = POLL_MS if self.metadata.polls else IDLE_SLEEP_MS if self.idle else MAX_SLEEP_MS
        return self._services.sleep_ms(most_ms)

    @property
    def idle(self) -> bool:
        """Return whether no caller waits for anything, so that the process may stop."""
        is_idle = self.metadata.is_idle and self._services.is_idle
        return is_idle and not any(rings.has_unsent for rings in self._handlers.values())

    # --- handlers

    def _bound_handlers(self) -> list[RingPair]:
        """Return the rings of the live handlers. The list is cached until a handler starts or dies."""
        incarnations = self._context.incarnations(topology.HANDLERS[0], len(topology.HANDLERS))
        if incarnations != self._bound[0]:
            there = [index for index, one in zip(topology.HANDLERS, incarnations, strict=True) if one]
            self._bound = incarnations, [self._rings(one) for one in there if one not in self._fenced]
        return self._bound[1]

    def _rings(self, index: int) -> RingPair:
        if index not in self._handlers:
            self._handlers[index] = RingPair(self._context, index)
        return self._handlers[index]

    def _receive(self, rings: RingPair) -> None:
        for slot in rings.take():
            match kind_of(slot):
                case SlotKind.CALL:
                    self._received_call(rings.other, unpack_call(slot))
                case SlotKind.RETURN:
                    returned = unpack_return(slot)
                    self._lender.end(returned.block, returned.generation)
                case kind:
                    raise ValueError(f"{topology.name_of(rings.other)} sent a descriptor of kind {kind}")

    def _received_call(self, handler: int, call: Call) -> None:
        data = self._server.bytes_of(call)
        if data is None:
            return
        if (answer := self._services.repeats.find(data)) is not None:
            self._server.answer_encoded(handler, call.request, answer)
            return
        message = calls.decode(data)
        if isinstance(message, calls.ForwardedRequest) and message.api_key in WAIT_FOR_OTHERS:
            # It may wait for minutes: the bytes are kept neither here nor by the handler.
            self._server.give_back(call)
            data = b""
        self._called(Caller(handler, self._lives[handler], call.request, encoded=data), message)

    def _called(self, caller: Caller, call: calls.Message) -> None:
        match call:
            case (
                calls.ForwardedRequest()
                | calls.CheckTransaction()
                | calls.EndHold()
                | calls.HoldsEnded()
                | calls.Abandon()
            ):
                self._services.receive(caller, call)
            case _:
                self.metadata.call(caller, call)

    def _answer(self, caller: Caller, answer: calls.Message) -> bool:
        """Send an answer to a handler. Return False if the handler has died or the arena is full."""
        if caller.life != self._lives[caller.handler]:
            return False
        return self._server.answer(caller.handler, caller.request, answer)

    # --- deaths and successors

    def _obey_order(self, order: PeerOrder) -> None:
        if order.settings_changed:
            self._context.follow_settings()
            self._services.repeats.forget()
        elif topology.is_log_worker(order.role):
            worker = topology.log_worker_number(order.role)
            if order.alive:
                self.metadata.log_worker_up(worker)
            else:
                self.metadata.log_worker_died(worker)
                self._services.log_died()
        elif topology.is_handler(order.role):
            rings = self._rings(order.role)
            if order.alive:
                rings.rebind()
                self._fenced.discard(order.role)
                self._bound = (None, [])
                return
            self._fenced.add(order.role)
            self._bound = (None, [])
            self._lives[order.role] += 1
            self.metadata.drop_calls_of(order.role)
            rings.drop()
            self._lender.reclaim(order.role)
            self._services.handler_died(order.role)


def run(context: ProcessContext, cluster_id: str) -> int:
    """Run the coordinator until it must stop. Return the exit code."""
    coordinator = Coordinator(context, cluster_id, wall_ms, lambda: uuid.uuid4().bytes)
    stop_by: float | None = None
    while True:
        coordinator.step()
        if context.must_stop():
            stop_by = stop_by or time.monotonic() + STOP_SECONDS
            alone = context.orphaned or coordinator.metadata.phase is Phase.LOG_AWAY
            if coordinator.idle or alone or time.monotonic() > stop_by:
                context.stopped()
                return ExitCode.STOPPED
        context.wait(coordinator.something_waits, coordinator.sleep_ms if stop_by is None else POLL_MS)
