"""Calls of a handler to the coordinator or a log worker, and their deadlines.

A call whose client states a timeout has a deadline. After the deadline the client gets an error, and the call
may still succeed. (Kafka: the deadline of a controller event.)

While the coordinator is restarted, calls wait for the new process, for some tens of milliseconds. Clients
soon give up after an error about a missing coordinator, but wait long for a response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpbroker.handlers.requests.purgatory import NEVER_MS, Operation, Purgatory, Watch
from mpbroker.ipc.calls import Abandon, Failed, Message
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.rpc import RpcClient, Then
from mpbroker.ipc.slots import Call
from mpbroker.protocol.errors import ErrorCode
from shm.arena import ArenaFull
from shm.clock import monotonic_ms
from shm.counters import CounterPage

# How long a call waits for a coordinator's successor. Only one that dies again and again takes longer.
SUCCESSOR_MS = 5_000


def nothing() -> None:
    """Do nothing."""


def none() -> int:
    """Return 0: the default of `others` in PatientClient."""
    return 0


class _Deadline:
    """A call under way whose client waits until a deadline. `then` gets the answer or a timeout error."""

    __slots__ = ("_expired", "_then", "answer")

    def __init__(self, then: Then, expired: Callable[[], None]) -> None:
        self._then: Then | None = then
        self._expired = expired
        self.answer: Message | None = None

    def try_complete(self) -> bool:
        if self.answer is None:
            return False
        self._end(self.answer)
        return True

    def expire(self) -> None:
        self._expired()
        self._end(Failed(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT.message))

    def _end(self, answer: Message) -> None:
        """Call `then` and drop it, since it would keep the request in memory until the server answers."""
        then, self._then = self._then, None
        assert then is not None
        then(answer)


@dataclass(frozen=True)
class _Unsent:
    """A call that waits for the server's successor. `dropped` is called if the call waits too long."""

    message: Message
    then: Then
    connection: int
    deadline_ms: int
    dropped: Callable[[], None]

    def try_complete(self) -> bool:
        return False

    def expire(self) -> None:
        self.dropped()


class PatientClient:
    """Calls to a server over an RpcClient. Each gets one answer, `Failed` if the server dies before that.

    While there is no server, a call waits for up to `successor_ms`; if that is 0, the call fails at once. The
    owner must call `expire` in time to end such waits. `clear` drops the calls that wait to be sent to a dead
    server, `rebind` connects to its successor. `counters`, unless it is None, gets the number of waiting
    calls: those made here and `others()`, the number of calls that the turn has made.
    """

    def __init__(
        self,
        client: RpcClient,
        clear: Callable[[], None] = nothing,
        rebind: Callable[[], None] = nothing,
        counters: CounterPage | None = None,
        successor_ms: int = 0,
        others: Callable[[], int] = none,
    ) -> None:
        self.client = client
        self._clear = clear
        self._rebind = rebind
        self._counters = counters
        self._successor_ms = successor_ms
        self._others = others
        self._purgatory: Purgatory[int, Operation] = Purgatory()
        self._unsent: dict[int, tuple[_Unsent, Watch[int, Operation]]] = {}
        # Calls under way whose clients have got a timeout error.
        self._too_late = 0
        self.server_is_up = True
        self._count()

    def __len__(self) -> int:
        """Return the number of calls under way."""
        return len(self.client)

    def call(self, message: Message, then: Then, connection: int = 0, deadline_ms: int = NEVER_MS) -> int:
        """Call the server; return the number of the call, 0 if it has failed already.

        `then` gets the answer, or an error after `deadline_ms` (monotonic).
        """
        if self.server_is_up:
            return self._send(message, then, connection, deadline_ms)
        if not self._successor_ms:
            then(self._absent())
            return 0
        return self._wait(message, then, connection, deadline_ms)

    def abandon(self, number: int) -> None:
        """Drop a call that is not sent yet, or notify the server that no answer to the call is needed."""
        found = self._unsent.pop(number, None)
        if found is None and self.server_is_up:
            self.call(Abandon(number), lambda _answer: None)
        elif found is not None:
            self._purgatory.cancel(found[1])
            self._count()

    def _absent(self) -> Failed:
        return Failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the {self.client.name} is being restarted")

    def _wait(self, message: Message, then: Then, connection: int, deadline_ms: int) -> int:
        number = self.client.new_number()

        def dropped() -> None:
            del self._unsent[number]
            then(self._absent())

        call = _Unsent(message, then, connection, deadline_ms, dropped)
        until_ms = min(deadline_ms, monotonic_ms() + self._successor_ms)
        watch = self._purgatory.watch(call, (number,), until_ms)
        self._unsent[number] = call, watch
        self._count()
        return number

    def _send(
        self, message: Message, then: Then, connection: int, deadline_ms: int, number: int | None = None
    ) -> int:
        number = self.client.new_number() if number is None else number
        ends = then if deadline_ms == NEVER_MS else self._with_deadline(number, then, deadline_ms)
        try:
            self.client.call(message, ends, connection, number)
        except ArenaFull as error:
            ends(Failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no memory for the call: {error}"))
            number = 0
        self._count()
        return number

    def _with_deadline(self, number: int, then: Then, deadline_ms: int) -> Then:
        def expired() -> None:
            self._too_late += 1

        call = _Deadline(then, expired)
        self._purgatory.watch(call, (number,), deadline_ms)

        def ends(answer: Message) -> None:
            call.answer = answer
            if not self._purgatory.check(number):
                self._too_late -= 1

        return ends

    def adopt(self, number: int, block: int, generation: int, size: int, then: Then) -> None:
        """Take over a call that the turn has made: `then` gets its answer, or `Failed` if the server dies."""
        self.client.adopt(number, block, generation, size, then)
        self._count()

    def answered(self, answer: Call) -> None:
        """End the call that this ANSWER belongs to."""
        self.client.answered(answer)
        self._count()

    def taken(self, number: int) -> None:
        """End the lease of a call's block: the server has read the call, and answers later."""
        self.client.taken(number)

    def server_died(self) -> None:
        """Fail all calls under way, because the server has died."""
        self.server_is_up = False
        self._clear()
        for then in self.client.server_died():
            then(Failed(ErrorCode.NOT_COORDINATOR, f"the {self.client.name} died before it answered"))
        self._count()

    def welcome(self) -> None:
        """Connect to the server's successor, whose rings are empty, and send the calls that waited."""
        self._rebind()
        self.arrived()

    def arrived(self) -> None:
        """Send all calls that waited for a server, in their order."""
        self.server_is_up = True
        unsent, self._unsent = self._unsent, {}
        for number, (call, watch) in unsent.items():
            self._purgatory.cancel(watch)
            self._send(call.message, call.then, call.connection, call.deadline_ms, number)

    def expire(self, now_ms: int) -> None:
        """Fail calls whose time is over. The server still completes those that were sent."""
        if self._purgatory.expire(now_ms):
            self._count()

    def next_deadline_ms(self) -> int | None:
        return self._purgatory.next_deadline_ms()

    def _count(self) -> None:
        """Set the counter of waiting calls."""
        if self._counters is not None:
            waiting = len(self.client) - self._too_late + len(self._unsent)
            self._counters.set(Counter.COUNT_CALLS_DELAYED, waiting + self._others())
