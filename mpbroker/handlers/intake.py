"""The intake of a handler: from the descriptor of a request to the call of its API.

The intake gets the requests that native code (`hot_path/turn.pyx`) does not serve.
(Kafka: RequestChannel, KafkaApis.handle.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from mpbroker.handlers.broker import Broker
from mpbroker.handlers.context import RequestContext
from mpbroker.handlers.hot_path.turn import HandlerTurn
from mpbroker.handlers.produce.produce_order import ProduceOrder
from mpbroker.handlers.requests.faults import Faults
from mpbroker.handlers.requests.response import PendingRequest
from mpbroker.handlers.requests.scheduler import Scheduler
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.slots import Request, SlotFlag, unpack_request
from mpbroker.ipc.topology import name_of
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.api_versions import unsupported
from mpbroker.protocol.headers import encode_response_frame
from shm.arena import Arena, ArenaFull

log = logging.getLogger("mpbroker.handlers")


class Intake:
    """The requests of a handler that are under way in Python. `arenas`: the processors' request arenas."""

    def __init__(
        self,
        broker: Broker,
        turn: HandlerTurn,
        arenas: Mapping[int, Arena],
        produces: ProduceOrder,
        faults: Faults,
    ) -> None:
        self._broker = broker
        self._turn = turn
        self._arenas = arenas
        self._produces = produces
        self.faults = faults
        self.open: dict[PendingRequest, None] = {}
        self.scheduler = Scheduler(self.serve, broker.long_work, turn.works)
        broker.ended = self._ended

    def begin(self, slot: Request, *, is_in_order: bool = False) -> None:
        """Serve a request now, or in pieces between other work if it is heavy.

        A produce request waits until earlier produce requests of its connection are passed to log workers.
        `is_in_order`: the request has waited already. If an earlier produce request has closed the
        connection, the request is not served.
        """
        if slot.api_key == ApiKey.PRODUCE and not is_in_order:
            if self._produces.refuses(slot):
                self._broker.responses.close(slot)
                return
            if not self._produces.begin(slot):
                return
        if slot.flags & SlotFlag.HEAVY:
            self.scheduler.heavy.append(slot)
            return
        context = self.serve(slot)
        if context is not None and context.pieces is not None:
            self._broker.long_work.append(context)

    def serve(self, slot: Request) -> RequestContext | None:
        """Serve a request; return its context, if it has one. An error in the API ends only this request."""
        context = None
        try:
            if not self._arenas[slot.processor].check(slot.block, slot.generation):
                self._close_stale(slot)
            elif (api := self._broker.apis.get(slot.api_key)) is None or not api.serves(slot.api_version):
                self._refuse(slot)
            elif (context := self._open(slot)) and not (self.faults and self.faults.meets(context)):
                context.guard(context.handle)
                context.local_ns = time.monotonic_ns()
        except FatalError:
            raise
        except Exception as error:
            log.exception("closing %s: its request failed", self._broker.process.whose(slot))
            self._broker.counters.add(Counter.COUNT_ERRORS)
            self._broker.counters.set_last_error(f"API key {slot.api_key}: {type(error).__name__}: {error}")
            self._broker.responses.close(slot)
            return None
        return context

    def _open(self, slot: Request) -> RequestContext | None:
        """Return the context of a request, or close the connection and return None if it cannot be served."""
        frame = self._arenas[slot.processor].view(slot.block, slot.length)
        context = RequestContext(slot, frame, self._broker.apis[slot.api_key], self._broker)
        if not context.can_be_served():
            return None
        self.open[context] = None
        return context

    def _ended(self, request: PendingRequest) -> None:
        self.open.pop(request, None)
        self._broker.parked_memory.release(request)
        self._broker.fetches.release(request.slot)
        self._produces.end(request.slot)

    def _close_stale(self, slot: Request) -> None:
        whose = name_of(slot.processor)
        log.error("request %d of %s names a stale block; its connection is closed", slot.request, whose)
        self._broker.counters.add(Counter.COUNT_ERRORS)
        self._broker.responses.close(slot)

    def _refuse(self, slot: Request) -> None:
        """Refuse an API or version that is not served: respond to ApiVersions, else close the connection."""
        broker = self._broker
        if slot.api_key == ApiKey.API_VERSIONS:
            frame = encode_response_frame(slot.api_key, 0, slot.correlation, unsupported())
            try:
                broker.responses.send(slot, frame)
            except ArenaFull as error:
                log.error("closing %s: no memory for an answer: %s", broker.process.whose(slot), error)
                broker.responses.close(slot)
            return
        log.warning(
            "closing %s: API key %d version %d is not served",
            broker.process.whose(slot),
            slot.api_key,
            slot.api_version,
        )
        broker.responses.close(slot)

    def take_over_forwarded(self, number: int | None = None) -> None:
        """Take over the native turn's forwarded call `number`, if it has that call; None: all its calls."""
        for call in self._turn.take_forwarded(number):
            slot = unpack_request(call.request)
            is_lost = call.is_dropped or not self._arenas[slot.processor].check(slot.block, slot.generation)
            context = None if is_lost else self._open(slot)
            if context is None:
                self._broker.forwarding.take_over_dropped(call)
            else:
                self._broker.forwarding.take_over(context, call)

    def serve_delayed(self, *, all_of_them: bool = False) -> None:
        """Serve requests that a test's faults delay: those whose delay is over, or `all_of_them`."""
        for context in self.faults.take_due(all_of_them=all_of_them):
            if context.pieces is not None:
                self._broker.long_work.append(context)
            else:
                context.resume(context.handle)
                context.local_ns = time.monotonic_ns()

    def drop_processor(self, processor: int) -> None:
        """End the requests of a dead processor without responses."""
        self.scheduler.take_heavy(lambda slot: slot.processor == processor)
        for request in [one for one in self.open if one.slot.processor == processor]:
            request.end()
        self.scheduler.forget_ended()

    def close_produces(self) -> None:
        """Close the connections of produces that no log worker has got yet, after the death of a log worker.

        After such a death, processors regard as lost every produce that a handler has taken and has not
        answered. So these produces must not be appended later.
        """
        for slot in self._produces.take_waiting():
            self._broker.responses.close(slot)
        for slot in self.scheduler.take_heavy(lambda slot: slot.api_key == ApiKey.PRODUCE):
            self._broker.responses.close(slot)
        for request in list(self.scheduler.begun()):
            if request.slot.api_key == ApiKey.PRODUCE:
                request.close()
        self.faults.close_delayed(ApiKey.PRODUCE)
        self._broker.transactions.close_waiting()
        self.scheduler.forget_ended()

    def close_all(self) -> None:
        """Close the connections of all requests, because the handler stops."""
        for slot in self._produces.take_waiting():
            self._broker.responses.close(slot)
        self.take_over_forwarded()
        for request in list(self.open):
            request.close()
