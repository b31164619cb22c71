"""Exchanges: a request with its one answer, now, later, or as a closed connection; never twice, never none.

(Kafka: RequestChannel.Request, RequestContext, KafkaApis.handle and handleError, RequestHandlerHelper.)
"""

from __future__ import annotations

import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.requests.acted_on import names_in
from mpbroker.handlers.requests.answers import NO_PAUSE, Answers, Pause, Timing
from mpbroker.handlers.requests.audit import act_of, as_refusal, with_result
from mpbroker.handlers.requests.authorization import Authorization
from mpbroker.handlers.requests.limits import (
    DECODED_AT_ONCE,
    ENCODED_AT_ONCE,
    KEPT_BYTES,
    LOOKUPS_PER_PIECE,
    RESPONSE_BYTES_MAX,
    SEARCHES_PER_PIECE,
    UNCOUNTED_BODY_BYTES,
)
from mpbroker.handlers.requests.permissions import ADMINISTRATION, Need
from mpbroker.handlers.requests.request_log import describe
from mpbroker.ipc.calls import Account
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.listeners import AddedListener
from mpbroker.ipc.meters import Meters
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.session import Session
from mpbroker.ipc.slots import Request, SlotFlag, ThrottledBy
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import decode_request, decode_request_in_pieces, decode_response
from mpbroker.protocol.element_program import count_elements, has_many_elements
from mpbroker.protocol.error_counts import error_counts
from mpbroker.protocol.error_messages import explain
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.headers import encode_response_frame, encode_response_frame_in_pieces, frame_response
from mpbroker.protocol.messages import Message
from mpbroker.protocol.version_rules import in_version
from mpbroker.protocol.wire import REPLACED, Buffer, MalformedMessage, RecordsSlice
from mpbroker.security.audit import Audit, Event
from mpbroker.security.authorizer import Client
from shm.arena import ArenaFull
from shm.clock import monotonic_ms
from shm.counters import CounterPage

log = logging.getLogger("mpbroker.handlers")

CLIENT_ID_AT = 12
LENGTH = struct.Struct(">h")

T = TypeVar("T")
Named = TypeVar("Named")

# What an API returns: the response; nothing, if it answers later; or pieces of work whose value is either.
Outcome: TypeAlias = "Message | Generator[None, None, Message | None] | None"


def client_id_of(frame: memoryview) -> str:
    """Return the client id in the header of a request. Raises MalformedMessage if it is too long."""
    (length,) = LENGTH.unpack_from(frame, CLIENT_ID_AT)
    at = CLIENT_ID_AT + LENGTH.size
    return str(frame[at : at + length], "utf-8", REPLACED) if length > 0 else ""


class UnreadableBody(Exception):
    """The bytes of a request do not fit its API and version."""


class ServedApi(Protocol):
    """What an exchange and the handler process need of an API; see `apis.Api`."""

    @property
    def name(self) -> str: ...
    @property
    def is_forwarded(self) -> bool: ...
    @property
    def elements_max(self) -> int: ...
    @property
    def handle(self) -> Callable[[Any], Outcome]: ...
    @property
    def refusal(self) -> Callable[[Any], Message | None]: ...
    @property
    def failed(self) -> Callable[[Any, ErrorCode], Message | None]: ...
    def serves(self, version: int, /) -> bool: ...


class Quotas(Protocol):
    """What a request costs its client. `on` is True if any client has a quota."""

    @property
    def on(self) -> bool: ...
    def charge(self, exchange: Exchange, /) -> Pause: ...
    def charge_fetch(self, exchange: Exchange, response_bytes: int, /) -> Pause: ...


class ExchangeBroker(Protocol):
    """What an exchange needs of the broker. `tells_all()` is True while there is a request log."""

    @property
    def answers(self) -> Answers: ...
    @property
    def counters(self) -> CounterPage: ...
    @property
    def meters(self) -> Meters: ...
    @property
    def throttling(self) -> Quotas: ...
    @property
    def tells_all(self) -> Callable[[], bool]: ...
    @property
    def session(self) -> Callable[[Request], Session]: ...
    @property
    def listener(self) -> Callable[[int], AddedListener]: ...
    @property
    def whose(self) -> Callable[[Request, Session | None], str]: ...
    @property
    def authorization(self) -> Authorization: ...
    @property
    def audit(self) -> Audit: ...
    @property
    def config(self) -> BrokerConfig: ...
    @property
    def long_work(self) -> deque[Exchange]: ...


class Exchange:
    """A request, the broker around it, and the ways to end it. APIs get it as `broker.ApiExchange`."""

    __slots__ = (
        "_act",
        "_answer_bytes",
        "_at_work_since_ns",
        "_body",
        "_frame",
        "_is_answering",
        "_pause",
        "_raw",
        "_session",
        "_worked_ns",
        "api",
        "broker",
        "client_id",
        "conversion_ns",
        "done",
        "elements",
        "local_ns",
        "on_end",
        "pieces",
        "slot",
        "taken_ns",
        "takes_long",
        "temporary_bytes",
    )

    def __init__(self, slot: Request, frame: memoryview, api: ServedApi, broker: ExchangeBroker) -> None:
        """`frame` is the request's frame with its size and header."""
        self.slot = slot
        self.client_id = ""
        self._frame: memoryview | None = frame
        self._raw: bytes | None = None
        self._body: Any = None
        self.api = api
        self.broker: ExchangeBroker = broker
        self.done = False
        self.taken_ns = time.monotonic_ns()
        self.local_ns = 0
        self.on_end: Callable[[], object] | None = None
        self.pieces: Iterator[None] | None = None
        self.takes_long = bool(slot.flags & SlotFlag.HEAVY)
        # Cost of decompressing its records and compressing them again.
        self.temporary_bytes = self.conversion_ns = 0
        self._session: Session | None = None
        self._at_work_since_ns = self._worked_ns = 0
        self._pause: Pause | None = None
        # Elements of the request's arrays, 0 if it is too short for many.
        self.elements = 0
        self._answer_bytes = 0
        # An act of administration, which the audit log is told with its result.
        self._act: Event | None = None
        # True while its response is encoded in pieces.
        self._is_answering = False

    @property
    def version(self) -> int:
        return self.slot.api_version

    @property
    def body_bytes(self) -> int:
        return self.slot.length - self.slot.body

    @property
    def body(self) -> Any:
        """The request, decoded on first use. Raises UnreadableBody if it is malformed."""
        if self._body is None:
            self._read()
        return self._body

    def _read(self) -> None:
        frame = self._raw if self._frame is None else self._frame
        assert frame is not None
        try:
            at = self.slot.body if frame is self._frame else 0
            self._body, _ = decode_request(self.slot.api_key, self.version, frame, at)
        except MalformedMessage as error:
            raise UnreadableBody(str(error)) from error
        self._frame = None

    def raw_body(self) -> bytes:
        """Return the request as its client sent it, copied out of the processor's memory.

        Call it before `body`.
        """
        if self._raw is None:
            assert self._frame is not None, "it was decoded where it lay"
            self._raw, self._frame = bytes(self._frame[self.slot.body :]), None
        return self._raw

    def shed(self, long_field: str) -> None:
        """Let go of all but the short fields of a request that waits. Its error response needs only these.

        The request log has all of it.
        """
        if self.body_bytes <= KEPT_BYTES or self.broker.tells_all():
            return
        try:
            getattr(self.body, long_field).clear()
        except UnreadableBody:
            return  # the coordinator finds it out, too
        self._raw = None

    def can_be_served(self) -> bool:
        """Read what every request needs. If that is malformed, or too much, close and return False."""
        assert self._frame is not None
        try:
            self.client_id = client_id_of(self._frame)
            if self.body_bytes > UNCOUNTED_BODY_BYTES:
                key, at, most = self.slot.api_key, self.slot.body, self.api.elements_max
                self.elements = count_elements(key, self.version, self._frame, at, most)
                if self._names_too_many():
                    return False
            return self.api.is_forwarded or self.is_long or self.body is not None
        except (UnreadableBody, MalformedMessage) as error:
            self.refuse(str(error))
            return False

    @property
    def is_long(self) -> bool:
        """True if decoding the request would keep others waiting."""
        return self.elements > DECODED_AT_ONCE

    @property
    def timing(self) -> Timing:
        return Timing(self.taken_ns, self.local_ns)

    @property
    def session(self) -> Session:
        """The session of the client that sent the request: user, address and software, as of the first use.

        Raises SessionGone on a first use after the answer, when the connection may be gone.
        """
        if self._session is None:
            self._session = self.broker.session(self.slot)
        return self._session

    def allows(self, need: Need, name: str) -> bool:
        """Return True if the client may do that to the resource of this name."""
        return self.broker.authorization.allows(self, need, name)

    def account(self, *, strict: bool) -> Account:
        """Return whose quota pays for topics that this request makes and deletes."""
        return Account(self.session.principal_name, self.client_id, strict)

    def __str__(self) -> str:
        whose = self.broker.whose(self.slot, self._session)
        return f"{self.api.name} v{self.version} of client '{self.client_id}' ({whose})"

    def was_passed_on(self, taken_ns: int, passed_on_ns: int) -> None:
        """Note when the turn took the request, and when it had passed it on."""
        self.taken_ns, self.local_ns = taken_ns, passed_on_ns

    def run(self) -> None:
        """Call the API. An error in it ends the exchange; only a FatalError is raised."""
        self.guard(self._run)
        self.local_ns = time.monotonic_ns()

    def _run(self) -> None:
        if (refusal := self.api.refusal(self)) is not None:
            self.reply(refusal)
        elif self.is_long:
            self.takes_long = True
            self.work_off(self._read_and_handle())
        else:
            self._handle()

    def _read_and_handle(self) -> Generator[None]:
        frame, at = self._frame, self.slot.body
        if self.api.is_forwarded:
            frame, at = memoryview(self.raw_body()), 0
        assert frame is not None
        try:
            pieces = decode_request_in_pieces(self.slot.api_key, self.version, frame, at)
            self._body, _ = yield from pieces
        except MalformedMessage as error:
            raise UnreadableBody(str(error)) from error
        self._frame = None
        self._handle()

    def _handle(self) -> None:
        if self.api.is_forwarded and (self.broker.authorization.is_on or self.is_admin):
            # Kept, because it is passed on as it came.
            self.raw_body()
        if self.is_admin and not self._begin_act():
            return
        is_on = self.broker.authorization.is_on
        if is_on and (refusal := self.broker.authorization.refusal(self, self.body)):
            # Told as a refusal already.
            self._act = None
            self.fail(refusal)
            return
        self.finish(self.api.handle(self))

    def finish(self, outcome: Outcome, mutation_ms: int = 0) -> None:
        """Answer with the outcome of an API, or work it off and then answer; see `reply`."""
        if isinstance(outcome, Generator):
            pieces = self._follow(outcome, mutation_ms)
            # Most have one piece, also of requests that are announced as heavy.
            if next(pieces, self) is not self and not self.done:
                self.work_off(pieces)
        elif outcome is not None:
            self.reply(outcome, mutation_ms)

    def _follow(self, pieces: Generator[None, None, Message | None], mutation_ms: int) -> Generator[None]:
        response = yield from pieces
        if response is not None:
            self.reply(response, mutation_ms)

    @property
    def is_admin(self) -> bool:
        """Return True if this is administration; admin.listener.names confines that to some listeners."""
        return self.slot.api_key in ADMINISTRATION

    def _begin_act(self) -> bool:
        """Note what is going to be done. If this listener is not for it, fail and return False."""
        key = ApiKey(self.slot.api_key)
        client = Client(self.session.principal, self.session.client_host)
        listener, config = self._listener_name, self.broker.config
        begun = act_of(client, listener, key, names_in(key, self.body))
        if config.may_administer(listener):
            self._act = begun
            return True
        why = (
            f"listener {listener} is for clients alone: the broker is administered on "
            f"{', '.join(config.admin_listener_names)} (admin.listener.names)"
        )
        self.broker.audit.tell(monotonic_ms(), as_refusal(begun, why))
        self.fail(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{self.api.name} is refused: {why}")
        return False

    @property
    def has_answer(self) -> bool:
        """Return True if it has ended, or its answer is being encoded: nothing more may be done for it."""
        return self.done or self._is_answering

    def _names_too_many(self) -> bool:
        """Return True, and close the connection, if the request has more elements than its API allows."""
        most = self.api.elements_max
        if self.elements <= most:
            return False
        log.warning(
            "%s has more than %d elements in its arrays: its connection is closed. Ask for fewer at once",
            self,
            most,
        )
        self.close()
        return True

    def answers_too_much(self, more_bytes: int) -> bool:
        """Return True, and fail the request, if its answer has grown too long with so many bytes more."""
        self._answer_bytes += more_bytes
        if self._answer_bytes <= RESPONSE_BYTES_MAX:
            return False
        log.warning(
            "%s: its answer would have more than %d bytes. Ask for fewer at once", self, RESPONSE_BYTES_MAX
        )
        self.fail(ErrorCode.INVALID_REQUEST)
        return True

    def work_off(self, pieces: Iterator[None]) -> None:
        """Do work that may be long.

        The pieces run at once while the request is light. Once it `takes_long`, which the pieces may find out
        themselves, the handler does one piece at a time and looks at everything else in between.
        """
        while not self.takes_long:
            if next(pieces, self) is self or self.has_answer:
                return
        self.pieces = pieces

    def has_had_its_share(self, done: int, at_once: int | None = None) -> bool:
        """Return True, and take long from now on, if other requests must get their turn now.

        `at_once` is how many are done without a pause; as a rule those that may need a disk read.
        """
        if done % (SEARCHES_PER_PIECE if at_once is None else at_once):
            return False
        self.takes_long = True
        return True

    def pausing(self, pieces: Generator[None, None, T]) -> Generator[None, None, T]:
        """Do work in pieces, and take long if there is more than one."""
        try:
            while True:
                next(pieces)
                self.takes_long = True
                yield
        except StopIteration as end:
            result: T = end.value
            return result

    def split(
        self, need: Need, named: Iterable[Named], name_of: Callable[[Named], str | None]
    ) -> Generator[None, None, tuple[list[Named], list[Named]]]:
        """Find the things that the client may use, and those that it may not, in pieces.

        A thing without a name counts as allowed: it does not exist, and its API says so.
        """
        allowed: list[Named] = []
        denied: list[Named] = []
        for looked_up, one in enumerate(named, start=1):
            name = name_of(one)
            may = name is None or self.allows(need, name)
            (allowed if may else denied).append(one)
            if self.has_had_its_share(looked_up, LOOKUPS_PER_PIECE):
                yield
        return allowed, denied

    def work(self) -> bool:
        """Do the next piece of a heavy request; return False when none is left.

        A request that has ended meanwhile gets no more pieces: it may lie in memory that has another owner by
        now.
        """
        if self.pieces is not None and not self.done:
            self.guard(self._work)
            self.local_ns = time.monotonic_ns()
        if self.done:
            self.pieces = None
        return self.pieces is not None

    def _work(self) -> None:
        pieces = self.pieces
        assert pieces is not None
        # The last piece of the decoding begins what the API does in pieces.
        if next(pieces, self) is self and self.pieces is pieces:
            self.pieces = None

    def later(self, then: Callable[[T], None]) -> Callable[[T], None]:
        """Wrap a callback so that an error in it ends this exchange like an error in the API.

        It may leave work that is to be done in pieces.
        """

        def guarded(value: T) -> None:
            is_worked_on = self.pieces is not None
            self.guard(lambda: then(value))
            if self.pieces is not None and not is_worked_on:
                self.broker.long_work.append(self)

        return guarded

    @property
    def worked_ns(self) -> int:
        """Time that this handler has worked on the request, in ns."""
        now_ns = time.monotonic_ns()
        return self._worked_ns + (now_ns - self._at_work_since_ns if self._at_work_since_ns else 0)

    def guard(self, do: Callable[[], None]) -> None:
        outermost = not self._at_work_since_ns
        if outermost:
            self._at_work_since_ns = time.monotonic_ns()
        try:
            self._guard(do)
        finally:
            if outermost:
                self._worked_ns, self._at_work_since_ns = self.worked_ns, 0

    def _guard(self, do: Callable[[], None]) -> None:
        try:
            do()
        except FatalError:
            raise  # the broker stops
        except UnreadableBody as error:
            self.refuse(str(error))
        except ApiError as error:
            self.fail(error.code)
        except ArenaFull as error:
            log.error("%s: no memory to serve it, the connection is closed: %s", self, error)
            self.close()
        except Exception as error:
            log.exception("%s failed", self)
            self.broker.counters.add(Counter.COUNT_ERRORS)
            self.broker.counters.set_last_error(f"{self}: {type(error).__name__}: {error}")
            self.fail(ErrorCode.UNKNOWN_SERVER_ERROR)

    def charge(self, response_bytes: int | None = None) -> Pause:
        """Charge the client once and return its pause. A Fetch passes the size of its response."""
        throttling = self.broker.throttling
        if not throttling.on:
            return NO_PAUSE
        if self._pause is None:
            if response_bytes is None:
                self._pause = throttling.charge(self)
            else:
                self._pause = throttling.charge_fetch(self, response_bytes)
        return self._pause

    def reply(self, response: Message, mutation_ms: int = 0, *, in_pieces: bool = True) -> None:
        """Answer the request, and pause the client for the longer of `mutation_ms` and its own quota's pause.

        `mutation_ms` is the pause that the coordinator wants. A long response is encoded `in_pieces` behind
        this call: until then it is not `done`.
        """
        if self.has_answer:
            return
        pause = self.charge()
        if mutation_ms > pause.ms:
            pause = Pause(mutation_ms, ThrottledBy.THROTTLED_BY_MUTATION)
        if pause.ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = pause.ms
        if in_pieces and has_many_elements(response, ENCODED_AT_ONCE):
            self._is_answering = self.takes_long = True
            self.pieces = self._reply_in_pieces(response, pause)
            if not self._at_work_since_ns:
                # Nobody else sees the pieces: the answer was given outside of the exchange's own work.
                self.broker.long_work.append(self)
            return
        self._send(
            encode_response_frame(self.slot.api_key, self.version, self.slot.correlation, response),
            response,
            pause,
        )

    def _reply_in_pieces(self, response: Message, pause: Pause) -> Generator[None]:
        slot = self.slot
        try:
            frame = yield from encode_response_frame_in_pieces(
                slot.api_key, self.version, slot.correlation, response
            )
        finally:
            self._is_answering = False
        self._send(frame, response, pause)

    def _send(self, frame: Sequence[Buffer | RecordsSlice], response: Message, pause: Pause) -> None:
        # Ended only when it is sent: a response that cannot be encoded still becomes an error.
        if self._is_too_long(frame):
            return
        self.broker.answers.send(self.slot, frame, pause, self.timing, self.told(response))
        errors = error_counts(response)
        self.count_errors(errors)
        self._end(errors)

    def reply_encoded(self, body: bytes, errors: dict[int, int]) -> None:
        """Answer with a response that is already encoded. `errors` counts its error codes."""
        if self.done:
            return
        pause = self.charge()
        slot = self.slot
        frame = frame_response(slot.api_key, self.version, slot.correlation, body, pause.ms)
        if self._is_too_long([frame]):
            return
        told = self.told(bytes(frame[-len(body) :]) if self.broker.tells_all() else b"")
        self.broker.answers.send(slot, [frame], pause, self.timing, told)
        self.count_errors(errors)
        self._end(errors)

    def _is_too_long(self, frame: Sequence[Buffer | RecordsSlice]) -> bool:
        """Return True, having failed the request, if its response is longer than any may be.

        The response that says so is short, or the connection is closed.
        """
        size = sum(len(segment) for segment in frame if not isinstance(segment, RecordsSlice))
        if size <= RESPONSE_BYTES_MAX:
            return False
        if self._answer_bytes > RESPONSE_BYTES_MAX:
            self.close()
            return True
        self._answer_bytes = 0
        return self.answers_too_much(size)

    def told(self, response: Message | bytes | None) -> bytes:
        """Describe the exchange for the request log while that is on. A failure to do so harms no request.

        `response` may be its encoded body.
        """
        if not self.broker.tells_all():
            return b""
        try:
            if isinstance(response, bytes):
                sent: Message = decode_response(self.slot.api_key, self.version, response)[0]
                return describe(self, self._listener_name, sent)
            return describe(self, self._listener_name, response)
        except Exception:
            log.exception("%s cannot be described for the request log", self)
            return b""

    @property
    def _listener_name(self) -> str:
        return self.broker.listener(self.slot.listener).listener.name

    def count_errors(self, errors: dict[int, int]) -> None:
        """Count the error codes that the client is told or, with acks=0, would be."""
        for code, times in errors.items():
            self.broker.meters.error(self.slot.api_key, code, times)

    def reply_nothing(self) -> None:
        """End a request with acks=0: the client expects no bytes."""
        if self.done:
            return
        # Charged before it ends: an error in that still becomes a closed connection.
        pause = self.charge()
        self._end()
        self.broker.answers.nothing(self.slot, pause, self.timing, self.told(None))

    def close(self) -> None:
        if self._end():
            self.broker.answers.close(self.slot, self.timing, self.told(None))

    def refuse(self, why: str) -> None:
        """Close the connection because the request does not fit its API and version."""
        if self._end():
            whose = self.broker.whose(self.slot, self._session)
            log.warning("closing %s: malformed %s v%d: %s", whose, self.api.name, self.version, why)
            self.broker.answers.close(self.slot)

    def cancel(self) -> None:
        """End without an answer because the connection is closed; the processor gets its block back."""
        if self._end():
            self.broker.answers.nothing(self.slot, timing=self.timing, told=self.told(None))

    def drop(self) -> None:
        """End without an answer because the connection or its processor is gone."""
        self._end()

    def fail(self, code: ErrorCode, message: str = "") -> None:
        """Answer with the API's form of the error, or close the connection if it has none.

        `message` replaces the text of the error where the response has one.
        """
        if self.done:
            return
        try:
            response = self.api.failed(self, code)
            if response is not None:
                if message:
                    explain(response, code, message)
                self.reply(in_version(self.slot.api_key, self.version, response))
        except FatalError:
            raise
        except UnreadableBody as error:
            self.refuse(str(error))
        except Exception:
            log.exception("%s: its error response cannot be sent, the connection is closed", self)
        if not self._is_answering:
            self.close()

    def _tell_act(self, event: Event) -> None:
        """Tell the audit log. Whatever goes wrong with that, the request ends."""
        try:
            self.broker.audit.tell(monotonic_ms(), event)
        except Exception:
            log.exception("%s: the audit log has not got its line", self)

    def _end(self, errors: dict[int, int] | None = None) -> bool:
        """Note that the request has its answer, with these error codes, or that it gets none."""
        if self.done:
            return False
        self.done = True
        if self._act is not None:
            self._tell_act(with_result(self._act, errors))
            self._act = None
        # Forgotten, as it knows the exchange: without a cycle all memory of a request ends with its answer.
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()
        return True
