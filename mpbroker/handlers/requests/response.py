"""Pending requests: each gets exactly one response, now or later, or its connection is closed.

(Kafka: RequestChannel.sendResponse, KafkaApis.handle and handleError, RequestHandlerHelper.)
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from mpbroker.handlers.requests.admission import Admission
from mpbroker.handlers.requests.leadership import ANSWERS_UNKNOWN_TOPIC
from mpbroker.handlers.requests.limits import ENCODED_AT_ONCE, RESPONSE_BYTES_MAX
from mpbroker.handlers.requests.request import Api, Outcome, ReceivedRequest, UnreadableBody
from mpbroker.handlers.requests.request_log import describe
from mpbroker.handlers.requests.responses import NO_PAUSE, Pause, ResponseInfo, Responses
from mpbroker.ipc.calls import ForwardedResponse
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.meters import Meters
from mpbroker.ipc.process import FatalError, ProcessContext
from mpbroker.ipc.slots import Request, ThrottledBy
from mpbroker.protocol.codec import decode_response
from mpbroker.protocol.element_program import has_many_elements
from mpbroker.protocol.error_counts import error_counts
from mpbroker.protocol.error_messages import explain
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.headers import encode_response_frame, encode_response_frame_in_pieces, frame_response
from mpbroker.protocol.messages import Message
from mpbroker.protocol.version_rules import in_version
from mpbroker.protocol.wire import Buffer, RecordsSlice
from shm.arena import ArenaFull
from shm.counters import CounterPage

log = logging.getLogger("mpbroker.handlers")

T = TypeVar("T")


@dataclass(kw_only=True)
class Services:
    """The parts of a handler that pending requests use. `logs_requests()`: whether the request log is on."""

    process: ProcessContext
    responses: Responses
    admission: Admission
    counters: CounterPage
    meters: Meters
    logs_requests: Callable[[], bool]
    # Called with each request that ends.
    ended: Callable[[PendingRequest], object] = lambda _request: None
    # Requests that came as light and turned out to take long.
    long_work: deque[PendingRequest] = field(default_factory=deque)


class PendingRequest(ReceivedRequest):
    """A request without a response yet, and the methods that end it."""

    def __init__(self, slot: Request, frame: memoryview, api: Api, broker: Services) -> None:
        super().__init__(slot, frame, api, broker.process)
        self.broker: Services = broker
        self.done = False
        # Work that the scheduler does between other requests.
        self.pieces: Generator[None, None, Message | None] | None = None
        # Work that waits for an answer or an event.
        self._waiting: Generator[None, None, Message | None] | None = None
        self._must_wait = False
        # True while its response is encoded in pieces.
        self._is_responding = False
        self._response_bytes = 0
        # Whether its connection is closed after the response.
        self.is_last = False

    @property
    def has_response(self) -> bool:
        """Return True if the request has ended, or its response is being encoded: its API must do no more."""
        return self.done or self._is_responding

    def can_be_served(self) -> bool:
        """Call `read`. If the request is malformed or too large, close its connection and return False."""
        try:
            if self.read():
                return True
        except UnreadableBody as error:
            self.refuse(str(error))
            return False
        log.warning(
            "%s has more than %d elements in its arrays: its connection is closed. Ask for fewer at once",
            self,
            self.api.elements_max,
        )
        self.close()
        return False

    def handle(self) -> None:
        """Call the API, unless the request is refused. A long request is first decoded, in pieces."""
        if (response := self.api.refusal(self)) is not None:
            self.respond(response)
        elif self.is_long and not self.is_decoded:
            self.takes_long = True
            self.pieces = self._decode_and_handle()
        elif (refusal := self.broker.admission.refusal(self)) is not None:
            if refusal.code is None:
                self.close()
            else:
                self.is_last = refusal.is_last
                self.fail(refusal.code, refusal.message)
        else:
            self.finish(self.api.handle(self))

    def _decode_and_handle(self) -> Generator[None]:
        yield from self.decode_in_pieces()
        self.handle()

    # ---- work, and its errors

    def guard(self, do: Callable[..., object], *values: object) -> None:
        """Call `do` with these values. An error ends the request; only a FatalError is raised."""
        is_outermost = not self._started_ns
        if is_outermost:
            self._started_ns = time.monotonic_ns()
        try:
            do(*values)
        except FatalError:
            raise  # the broker stops
        except Exception as error:  # noqa: BLE001 - a bug ends the request, not the handler
            self._end_with(error)
        finally:
            if is_outermost:
                self._worked_ns, self._started_ns = self.worked_ns, 0

    def _end_with(self, error: Exception) -> None:
        match error:
            case UnreadableBody():
                self.refuse(str(error))
            case ApiError():
                self.fail(error.code)
            case ArenaFull():
                log.error("%s: no memory to serve it, the connection is closed: %s", self, error)
                self.close()
            case _:
                log.error("%s failed", self, exc_info=error)
                self.broker.counters.add(Counter.COUNT_ERRORS)
                self.broker.counters.set_last_error(f"{self}: {type(error).__name__}: {error}")
                self.fail(ErrorCode.UNKNOWN_SERVER_ERROR)

    def resume(self, do: Callable[..., object], *values: object) -> None:
        """Call `do` with these values after an event; an error ends this request.

        If pieces of work are left, queue the request, unless it is queued already, or this call is made
        within a `guard` of the same request. (The caller of that `guard` queues the request.)
        """
        is_queued = self.pieces is not None or bool(self._started_ns)
        self.guard(do, *values)
        if self.pieces is not None and not is_queued:
            self.broker.long_work.append(self)

    def later(self, then: Callable[[T], None]) -> Callable[[T], None]:
        """Wrap the callback `then`: an error in `then` ends this request like an error in the API."""
        return partial(self.resume, then)

    def finish(self, outcome: Outcome) -> None:
        """Respond with the outcome of an API: a response, or a generator of pieces that returns one.

        Pieces of work run at once while the request is light. Once the request `takes_long` (a piece may
        set this), the scheduler does one piece at a time and serves other requests in between. Most requests
        have one piece, even those announced as heavy.
        """
        response: Message | None
        if isinstance(outcome, Generator):
            try:
                next(outcome)
                while not (self._must_wait or self.takes_long or self.has_response):
                    next(outcome)
                self._leave(outcome)
                return
            except StopIteration as end:
                response = end.value
        else:
            response = outcome
        if response is not None:
            self.respond(response)

    def _leave(self, work: Generator[None, None, Message | None]) -> None:
        """Keep unfinished work for the scheduler, or until the event for which the work waits."""
        waits, self._must_wait = self._must_wait, False
        if self.done or self.pieces is not None:
            # It has ended, or has other work: the encoding of its response.
            return
        if waits:
            self._waiting = work
        else:
            self.pieces = work

    def wait(self, ask: Callable[[Callable[[T], None]], object]) -> Generator[None, None, T]:
        """Pass a callback to `ask`, wait, and return the value that the callback gets.

        Other requests are served meanwhile. Use this in the generator that an API returns, and in generators
        to which it delegates. If the request ends meanwhile, the generator is not continued.
        """
        values: list[T] = []

        def arrived(value: T) -> None:
            values.append(value)
            waiting, self._waiting = self._waiting, None
            self.finish(waiting)

        ask(self.later(arrived))
        if not values:
            self._must_wait = True
            yield
        return values[0]

    def work(self) -> bool:
        """Do the next piece; return False when none is left.

        A request that has ended meanwhile gets no more pieces: its frame may belong to another request.
        """
        pieces, self.pieces = self.pieces, None
        if pieces is not None and not self.done:
            self.guard(self.finish, pieces)
            self.local_ns = time.monotonic_ns()
        if self.done:
            self.pieces = None
        return self.pieces is not None

    # ---- the response

    def respond(self, response: Message, mutation_ms: int = 0, *, in_pieces: bool = True) -> None:
        """Send the response. Pause the client for `mutation_ms`, or longer if another quota demands it.

        `mutation_ms` is the pause for quota controller_mutation_rate. With `in_pieces`, a long response is
        encoded in pieces after this call, and the request is `done` only then.
        """
        if self.has_response:
            return
        pause = self.broker.admission.charge(self)
        if mutation_ms > pause.ms:
            pause = Pause(mutation_ms, ThrottledBy.THROTTLED_BY_MUTATION)
        if pause.ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = pause.ms
        slot = self.slot
        if in_pieces and has_many_elements(response, ENCODED_AT_ONCE):
            self._is_responding = self.takes_long = True
            self.pieces = self._respond_in_pieces(response, pause)
            if not self._started_ns:
                # Outside of the request's own work no caller queues the pieces.
                self.broker.long_work.append(self)
            return
        frame = encode_response_frame(slot.api_key, self.version, slot.correlation, response)
        self._send(frame, response, error_counts(response), pause)

    def _respond_in_pieces(self, response: Message, pause: Pause) -> Generator[None]:
        slot = self.slot
        try:
            frame = yield from encode_response_frame_in_pieces(
                slot.api_key, self.version, slot.correlation, response
            )
        finally:
            self._is_responding = False
        self._send(frame, response, error_counts(response), pause)

    def respond_forwarded(self, answer: ForwardedResponse) -> None:
        """Send a response that the coordinator has encoded."""
        if self.done:
            return
        pause, slot = self.broker.admission.charge(self), self.slot
        frame = frame_response(slot.api_key, self.version, slot.correlation, answer.body, pause.ms)
        sent = bytes(frame[-len(answer.body) :]) if self.broker.logs_requests() else b""
        self._send([frame], sent, answer.errors, pause)

    def _send(
        self,
        frame: Sequence[Buffer | RecordsSlice],
        response: Message | bytes,
        errors: dict[int, int],
        pause: Pause,
    ) -> None:
        """Send a frame, and then end the request. If sending raises, `fail` can still send an error.

        If another broker may know more, close the connection, with the response or without.
        If the frame is too long, send an error response instead. If that is too long as well, close the
        connection.
        """
        if self.broker.admission.knows_less_than_leader(self, errors):
            if not ANSWERS_UNKNOWN_TOPIC[self.slot.api_key]:
                self.close()
                return
            self.is_last = True
        size = sum(len(segment) for segment in frame if not isinstance(segment, RecordsSlice))
        if size > RESPONSE_BYTES_MAX:
            if self._response_bytes > RESPONSE_BYTES_MAX:
                self.close()
            else:
                self._response_bytes = 0
                self.exceeds_response_limit(size)
            return
        self.broker.responses.send(self.slot, frame, self._info(response, pause))
        self.count_errors(errors)
        self.end(errors)

    def exceeds_response_limit(self, more_bytes: int) -> bool:
        """Add `more_bytes` to the response's size. If it is too long, fail the request and return True."""
        self._response_bytes += more_bytes
        if self._response_bytes <= RESPONSE_BYTES_MAX:
            return False
        log.warning(
            "%s: its answer would have more than %d bytes. Ask for fewer at once", self, RESPONSE_BYTES_MAX
        )
        self.fail(ErrorCode.INVALID_REQUEST)
        return True

    def _info(self, response: Message | bytes | None = None, pause: Pause = NO_PAUSE) -> ResponseInfo:
        entry = self._log_entry(response) if self.broker.logs_requests() else b""
        return ResponseInfo(pause, self.taken_ns, self.local_ns, entry, self.is_last)

    def _log_entry(self, response: Message | bytes | None) -> bytes:
        """Return the request's entry in the request log; b"" if describing the request fails.

        `response` may be the encoded body of a response.
        """
        try:
            if isinstance(response, bytes):
                decoded: Message = decode_response(self.slot.api_key, self.version, response)[0]
                return describe(self, self.listener_name, decoded)
            return describe(self, self.listener_name, response)
        except Exception:
            log.exception("%s cannot be described for the request log", self)
            return b""

    def count_errors(self, errors: dict[int, int]) -> None:
        """Count the error codes that the client gets or, with acks=0, would get."""
        for code, times in errors.items():
            self.broker.meters.error(self.slot.api_key, code, times)

    # ---- ends without a response

    def respond_nothing(self) -> None:
        """End a request with acks=0: the client expects no bytes."""
        if self.done:
            return
        # Charged before it ends: an error in that still becomes a closed connection.
        pause = self.broker.admission.charge(self)
        self.end()
        self.broker.responses.nothing(self.slot, self._info(pause=pause))

    def close(self) -> None:
        """End the request by closing its connection."""
        if self.end():
            self.broker.responses.close(self.slot, self._info())

    def refuse(self, why: str) -> None:
        """Close the connection because the request does not fit its API and version."""
        if self.end():
            log.warning("closing %s: malformed %s v%d: %s", self.client, self.api.name, self.version, why)
            self.broker.responses.close(self.slot)

    def cancel(self) -> None:
        """End the request, whose client has disconnected, and give its block back to the processor."""
        if self.end():
            self.broker.responses.nothing(self.slot, self._info())

    def fail(self, code: ErrorCode, message: str = "") -> None:
        """Respond with the API's error response, or close the connection if the API has none.

        `message`, if any, replaces the error's text in the response.
        """
        if self.done:
            return
        try:
            response = self.api.failed(self, code)
            if response is not None:
                if message:
                    explain(response, code, message)
                self.respond(in_version(self.slot.api_key, self.version, response))
        except FatalError:
            raise
        except UnreadableBody as error:
            self.refuse(str(error))
        except Exception:
            log.exception("%s: its error response cannot be sent, the connection is closed", self)
        if not self._is_responding:
            self.close()

    def end(self, errors: dict[int, int] | None = None) -> bool:
        """Mark the request as done. Return False if it was done before.

        `errors` has the count of each error code in the response; None if there is no response.
        """
        if self.done:
            return False
        self.done = True
        # Without a cycle all memory of a request is free when it has ended.
        self._waiting = None
        if self.act is not None:
            self.broker.admission.end_act(self, errors)
        self.broker.ended(self)
        return True
