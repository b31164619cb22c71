"""One request and its one answer: now, later, or a closed connection; never twice and never nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from mpbroker.handlers.answers import Timing
from mpbroker.ipc.calls import Account
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.session import Session
from mpbroker.ipc.slots import Request
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.headers import encode_response_frame
from mpbroker.protocol.messages import Message
from shm.arena import ArenaFull

if TYPE_CHECKING:
    from mpbroker.handlers.apis import Api
    from mpbroker.handlers.broker import Broker

log = logging.getLogger("mpbroker")

T = TypeVar("T")


class Exchange:
    """What an API gets: the decoded request, the broker around it, and the ways to end it."""

    __slots__ = (
        "_at_work_since_ns",
        "_throttle_ms",
        "_worked_ns",
        "api",
        "body",
        "broker",
        "client_id",
        "done",
        "local_ns",
        "on_end",
        "slot",
        "taken_ns",
    )

    def __init__(self, slot: Request, client_id: str, body: Any, api: Api, broker: Broker) -> None:
        self.slot = slot
        self.client_id = client_id
        self.body = body
        self.api = api
        self.broker = broker
        self.done = False
        self.taken_ns = time.monotonic_ns()
        self.local_ns = 0
        self.on_end: Callable[[], object] | None = None
        self._at_work_since_ns = self._worked_ns = 0
        self._throttle_ms: int | None = None

    @property
    def version(self) -> int:
        return self.slot.api_version

    @property
    def timing(self) -> Timing:
        return Timing(self.taken_ns, self.local_ns)

    @property
    def session(self) -> Session:
        """Who sent the request. Only while it is not answered: then the connection may be gone."""
        return self.broker.session(self.slot)

    def account(self, *, strict: bool) -> Account:
        """Whose quota pays for topics that this request makes and deletes."""
        return Account(self.session.principal_name, self.client_id, strict)

    def __str__(self) -> str:
        who = f"client '{self.client_id}' (connection {self.session.connection_id})"
        return f"{self.api.name} v{self.version} of {who}"

    def run(self) -> None:
        """Calls the API. Whatever goes wrong in it, the exchange ends or will end."""
        self.guard(self._run)
        self.local_ns = time.monotonic_ns()

    def _run(self) -> None:
        response = self.api.handle(self)
        if response is not None:
            self.reply(response)

    def later(self, then: Callable[[T], None]) -> Callable[[T], None]:
        """`then`, for a callback: what it raises ends this exchange as if it had been raised in the API."""

        def guarded(value: T) -> None:
            self.guard(lambda: then(value))

        return guarded

    @property
    def worked_ns(self) -> int:
        """How long this handler has been at work on the request."""
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

    def charge(self, response_bytes: int | None = None) -> int:
        """The pause in ms that the request costs its client, charged once; a Fetch says what it answers."""
        throttling = self.broker.throttling
        if not throttling.on:
            return 0
        if self._throttle_ms is None:
            if response_bytes is None:
                self._throttle_ms = throttling.charge(self)
            else:
                self._throttle_ms = throttling.charge_fetch(self, response_bytes)
        return self._throttle_ms

    def reply(self, response: Message, throttle_ms: int = 0) -> None:
        """`throttle_ms`: a pause for reasons of its own; the longer one counts."""
        if self.done:
            return
        throttle_ms = max(throttle_ms, self.charge())
        if throttle_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = throttle_ms
        # Not ended before it is sent: a response that cannot be encoded still becomes an error.
        frame = encode_response_frame(self.slot.api_key, self.version, self.slot.correlation, response)
        self.broker.answers.send(self.slot, frame, throttle_ms, self.timing)
        self._end()

    def reply_nothing(self) -> None:
        """For acks=0: the client expects no bytes."""
        if self._end():
            self.broker.answers.nothing(self.slot, self.charge(), self.timing)

    def close(self) -> None:
        if self._end():
            self.broker.answers.close(self.slot, self.timing)

    def cancel(self) -> None:
        """The connection is closed: nothing is sent, but the processor gets its request's block back."""
        if self._end():
            self.broker.answers.nothing(self.slot, timing=self.timing)

    def drop(self) -> None:
        """The connection or its processor is gone: there is nobody to answer."""
        self._end()

    def fail(self, code: ErrorCode) -> None:
        """Answers with an error in the form that this API has for it; without one, closes the connection."""
        if self.done:
            return
        try:
            response = self.api.failed(self, code)
            if response is not None:
                self.reply(response)
        except Exception:
            log.exception("%s: its error response cannot be sent, the connection is closed", self)
        self.close()

    def _end(self) -> bool:
        if self.done:
            return False
        self.done = True
        if self.on_end is not None:
            self.on_end()
        return True
