"""Calls to coordinator and log process: a message in a block of our arena; the ANSWER ends its lease.

One that says how long its client waits is parked in a purgatory of calls, keyed by their numbers: after that
time the client is told so, whatever becomes of the call. (Kafka: the deadline of a controller event.)

Calls to a coordinator that is being replaced wait for its successor, which takes some tens of milliseconds:
clients give up soon when they are told that there is none, and try for long when they are not answered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from mpbroker.handlers.purgatory import Purgatory, Watch
from mpbroker.ipc import calls
from mpbroker.ipc.calls import Abandon, Failed, Message
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.slots import Call, SlotKind, pack_call, pack_return
from mpbroker.ipc.topology import name_of
from mpbroker.protocol.errors import ErrorCode
from shm.arena import Arena, ArenaFull
from shm.clock import monotonic_ms
from shm.counters import CounterPage

Then: TypeAlias = Callable[[Message], None]

# For what only an answer or a death can end.
NEVER_MS = 1 << 62
# So long a call waits for the successor of a coordinator; only one that dies again and again takes longer.
SUCCESSOR_MS = 5_000


class CallOutbox(Protocol):
    """Where slots for the peer go."""

    def push(self, slot: bytes) -> None: ...
    def clear(self) -> None: ...
    def rebind(self) -> None: ...


class LogOutbox:
    """The turn's: behind all jobs that were sent before. It minds the log process's deaths itself."""

    def __init__(self, push: Callable[[bytes], None]) -> None:
        self.push = push

    def clear(self) -> None:
        pass

    def rebind(self) -> None:
        pass


class DelayedCall:
    """A call that is under way: `then` is called once, with the answer or with what came in its place."""

    __slots__ = ("answer", "block", "generation", "then")

    def __init__(self, block: int, generation: int, then: Then) -> None:
        self.block = block
        self.generation = generation
        self.then = then
        self.answer: Message | None = None

    def try_complete(self) -> bool:
        if self.answer is None:
            return False
        self.then(self.answer)
        return True

    def expire(self) -> None:
        self.then(Failed(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT.message))


@dataclass(frozen=True)
class UnsentCall:
    """One that waits for the peer's successor; `dropped` is called when it has waited long enough."""

    message: Message
    then: Then
    connection: int
    deadline_ms: int
    dropped: Callable[[], None]

    def try_complete(self) -> bool:
        return False

    def expire(self) -> None:
        self.dropped()


class Caller:
    """Every call is answered exactly once, with `Failed` if the peer dies before it answers.

    `counters` say how many wait; None: they are not counted. While there is no peer a call waits for
    `successor_ms`, as long as `expire` is called in time, or fails at once if that is 0.
    """

    def __init__(
        self,
        index: int,
        peer: int,
        own: Arena,
        theirs: Arena,
        outbox: CallOutbox,
        counters: CounterPage | None,
        successor_ms: int = 0,
    ) -> None:
        self._index = index
        self._peer = peer
        self._name = name_of(peer)
        self._lender = Lender(own, index)
        self._theirs = theirs
        self._outbox = outbox
        self._counters = counters
        self._numbers = itertools.count(1)
        self._pending: dict[int, DelayedCall] = {}
        self._unsent: dict[int, tuple[UnsentCall, Watch[int]]] = {}
        self._successor_ms = successor_ms
        self._purgatory: Purgatory[int] = Purgatory()
        self.peer_is_up = True
        self._count()

    def __len__(self) -> int:
        return len(self._pending)

    def call(self, message: Message, then: Then, connection: int = 0, deadline_ms: int = NEVER_MS) -> int:
        """-> the number of the call, 0 if it has failed already. `deadline_ms` (monotonic): from then on
        nobody waits for the answer.
        """
        number = next(self._numbers) & 0xFFFFFFFF
        if self.peer_is_up:
            return self._send(number, message, then, connection, deadline_ms)
        if not self._successor_ms:
            then(self._absent())
            return 0
        return self._wait(number, message, then, connection, deadline_ms)

    def abandon(self, number: int) -> None:
        """Nobody waits for that answer any more: the peer is told, if it has been asked."""
        found = self._unsent.pop(number, None)
        if found is None and self.peer_is_up:
            self.call(Abandon(number), lambda _answer: None)
        elif found is not None:
            self._purgatory.cancel(found[1])
            self._count()

    def _absent(self) -> Failed:
        return Failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the {self._name} is being restarted")

    def _wait(self, number: int, message: Message, then: Then, connection: int, deadline_ms: int) -> int:
        def dropped() -> None:
            del self._unsent[number]
            then(self._absent())

        call = UnsentCall(message, then, connection, deadline_ms, dropped)
        until_ms = min(deadline_ms, monotonic_ms() + self._successor_ms)
        watch = self._purgatory.watch(call, (number,), until_ms)
        assert watch is not None, "nothing but an arrival completes it"
        self._unsent[number] = call, watch
        self._count()
        return number

    def _send(self, number: int, message: Message, then: Then, connection: int, deadline_ms: int) -> int:
        payload = calls.encode(message)
        try:
            block, generation = self._lender.lend(payload, self._peer)
        except ArenaFull as error:
            then(Failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no memory for the call: {error}"))
            return 0
        self._pending[number] = call = DelayedCall(block, generation, then)
        self._purgatory.watch(call, (number,), deadline_ms)
        self._count()
        self._outbox.push(
            pack_call(SlotKind.CALL, self._index, number, block, generation, len(payload), connection)
        )
        return number

    def answered(self, answer: Call) -> None:
        """An ANSWER has come; its block goes back to its owner."""
        pending = self._pending.pop(answer.request, None)
        message: Message | None = None
        if answer.block:
            if self._theirs.check(answer.block, answer.generation):
                message = calls.decode(bytes(self._theirs.view(answer.block, answer.length)))
            self._outbox.push(pack_return(answer.owner, answer.block, answer.generation))
        if pending is None:
            return
        why = "was stale" if answer.block else "found no memory"
        none = Failed(ErrorCode.UNKNOWN_SERVER_ERROR, f"the {self._name}'s answer {why}")
        self._end(answer.request, pending, message or none)

    def fenced(self) -> None:
        """The peer is dead: nothing that was asked will be answered."""
        self.peer_is_up = False
        self._outbox.clear()
        pending, self._pending = self._pending, {}
        for number, call in pending.items():
            died = Failed(ErrorCode.NOT_COORDINATOR, f"the {self._name} died before it answered")
            self._end(number, call, died)

    def welcomed(self) -> None:
        self._outbox.rebind()
        self.arrived()

    def arrived(self) -> None:
        """There is a peer: all that waited for one is sent, in its order."""
        self.peer_is_up = True
        unsent, self._unsent = self._unsent, {}
        for number, (call, watch) in unsent.items():
            self._purgatory.cancel(watch)
            self._send(number, call.message, call.then, call.connection, call.deadline_ms)

    def expire(self, now_ms: int) -> None:
        """Tells who has waited long enough; what they asked for goes on."""
        if self._purgatory.expire(now_ms):
            self._count()

    def next_deadline_ms(self) -> int | None:
        return self._purgatory.next_deadline_ms()

    def _end(self, number: int, call: DelayedCall, answer: Message) -> None:
        self._lender.end(call.block, call.generation)
        call.answer = answer
        self._purgatory.check(number)
        self._count()

    def _count(self) -> None:
        """What waits now, for whoever looks at the counters."""
        if self._counters is not None:
            self._counters.set(Counter.COUNT_CALLS_DELAYED, len(self._purgatory))
