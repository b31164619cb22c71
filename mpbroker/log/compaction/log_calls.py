"""What the cleaner asks a log worker, over the rings between the two."""

from __future__ import annotations

from mpbroker.ipc import calls
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.slots import Call, SlotKind, pack_call, pack_return, unpack_call
from mpbroker.ipc.topology import CLEANER, log_worker


class LogCalls:
    """Questions to a log worker, one at a time. `lender`: of our arena, for all of them."""

    def __init__(self, context: ProcessContext, worker: int, lender: Lender) -> None:
        self._context = context
        memory, self._role = context.memory, log_worker(worker)
        self._inbox, self._outbox = memory.ring(self._role, CLEANER), memory.ring(CLEANER, self._role)
        self._lender, self._theirs = lender, memory.arena(self._role)
        self._numbers = context.call_numbers()
        # The block of each question, and its generation.
        self._lent: dict[int, tuple[int, int]] = {}
        self.is_up = context.is_alive(self._role)

    def has_answer(self) -> bool:
        return bool(self._inbox.waiting())

    def ask(self, message: calls.Message) -> int:
        """-> the number of the question. With one at a time there is always room."""
        data = calls.encode(message)
        block, generation = self._lender.lend(data, self._role)
        number = next(self._numbers)
        self._lent[number] = block, generation
        call = pack_call(SlotKind.CALL, CLEANER, number, block, generation, len(data))
        self._outbox.push_batch(call)
        self._context.ring(self._role)
        return number

    def take(self, request: int) -> calls.Message | None:
        """The answer to that question, if it is there; what we did not ask is dropped."""
        slots, producer_waits = self._inbox.take(1)
        if producer_waits:
            self._context.ring(self._role)
        if not slots:
            return None
        answer = unpack_call(slots)
        message = self._message(answer)
        self._end(answer.request)
        return message if answer.request == request else None

    def _message(self, answer: Call) -> calls.Message:
        if not answer.length:
            return calls.Failed(-1, "the log worker has no memory for an answer")
        message = calls.decode(bytes(self._theirs.view(answer.block, answer.length)))
        self._outbox.push_batch(pack_return(answer.owner, answer.block, answer.generation))
        self._context.ring(self._role)
        return message

    def _end(self, request: int) -> None:
        """The log worker is done with the question."""
        self._lender.end(*self._lent.pop(request))

    def drop(self) -> None:
        """Behind the fence of the log worker."""
        self.is_up = False
        self._inbox.take(self._inbox.size)
        for request in list(self._lent):
            self._end(request)

    def rebind(self) -> None:
        self._inbox.rebind()
        self._outbox.rebind()
        self.is_up = True
