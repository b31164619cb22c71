"""Calls from one process to another over their rings, and the answers.

    client -> server    CALL     the call's message is in a block of the client's arena
    server -> client    TAKEN    ends the lease of the call's block early, if the answer may take long
    server -> client    ANSWER   ends the lease of the call's block; the answer is in a block of the server
    client -> server    RETURN   ends the lease of the answer's block; need not wake the server

A server that has no memory for an answer sends an ANSWER without a block. A client does not block: its
callback `then` is called with the answer, or with `Failed`. The supervisor reports the death of a server to
the process of the client, which decides what happens to its calls (`RpcClient.server_died`).
`mpbroker/ipc/slots.pxd` has the layout of descriptors, `mpbroker/ipc/calls.py` has the messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from mpbroker.ipc.calls import Failed, Message, decode, encode
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.slots import Call, SlotKind, pack_call, pack_return
from mpbroker.ipc.topology import name_of
from shm.arena import Arena, ArenaFull

# Kafka's UNKNOWN_SERVER_ERROR: the result at the server is unknown.
NO_ANSWER = -1

Then: TypeAlias = Callable[[Message], None]

log = logging.getLogger("mpbroker.ipc")


class _Pending(NamedTuple):
    """A call without an answer yet: the block that was lent for it, and the callback for the answer."""

    block: int
    generation: int
    then: Then


class RpcClient:
    """Calls to one process. `lender` puts calls into this process's arena; `theirs` is the server's arena.

    `push` sends a descriptor to the server. `give_back` sends the descriptor that ends an answer's lease, and
    need not wake the server; by default it is `push`. `numbers`: see `ProcessContext.call_numbers`.
    """

    def __init__(
        self,
        lender: Lender,
        server: int,
        theirs: Arena,
        push: Callable[[bytes], object],
        numbers: Iterator[int],
        give_back: Callable[[bytes], object] | None = None,
    ) -> None:
        self.name = name_of(server)
        self._lender = lender
        self._server = server
        self._theirs = theirs
        self._push = push
        self._give_back = give_back or push
        self._numbers = numbers
        self._pending: dict[int, _Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def new_number(self) -> int:
        """Return a number for a call that will be sent later."""
        return next(self._numbers)

    def call(self, message: Message, then: Then, connection: int = 0, number: int | None = None) -> int:
        """Send a call and return its number. Raises ArenaFull without having sent anything.

        `connection` is the client connection on whose behalf the call is made, or 0.
        """
        number = next(self._numbers) if number is None else number
        data = encode(message)
        block, generation = self._lender.lend(data, self._server)
        self._pending[number] = _Pending(block, generation, then)
        owner = self._lender.owner
        self._push(pack_call(SlotKind.CALL, owner, number, block, generation, len(data), connection))
        return number

    def adopt(self, number: int, block: int, generation: int, size: int, then: Then) -> None:
        """Take over a call that native code has sent, so that `then` gets the answer."""
        self._lender.adopt(block, size)
        self._pending[number] = _Pending(block, generation, then)

    def answered(self, answer: Call) -> None:
        """Give this ANSWER to the callback of its call, and give the answer's block back to the server.

        An answer to an unknown call is logged and ignored. (A process that had this role before may have made
        the call, but fences should stop the answer.)
        """
        message = self._read(answer)
        pending = self._pending.pop(answer.request, None)
        if pending is None:
            log.error("the %s answered unknown call %d", self.name, answer.request)
            return
        self._lender.end(pending.block, pending.generation)
        pending.then(message)

    def taken(self, number: int) -> None:
        """End the lease of a call's block: the server has read the message and will answer later."""
        pending = self._pending.get(number)
        if pending is not None:
            self._lender.end(pending.block, pending.generation)

    def _read(self, answer: Call) -> Message:
        if not answer.block:
            return self._no_answer("found no memory")
        is_there = self._theirs.check(answer.block, answer.generation)
        message = decode(bytes(self._theirs.view(answer.block, answer.length))) if is_there else None
        self._give_back(pack_return(answer.owner, answer.block, answer.generation))
        return message or self._no_answer("was stale")

    def _no_answer(self, why: str) -> Failed:
        return Failed(NO_ANSWER, f"the {self.name}'s answer {why}")

    def server_died(self) -> list[Then]:
        """End the leases of all calls without an answer; return the callbacks of the calls, oldest first."""
        pending, self._pending = self._pending, {}
        for call in pending.values():
            self._lender.end(call.block, call.generation)
        return [call.then for call in pending.values()]


class RpcServer:
    """The server's side of calls. `arena_of(index)` returns the arena of a client process.

    `push(index, descriptor)` sends a descriptor to a client process.
    """

    def __init__(
        self, lender: Lender, arena_of: Callable[[int], Arena], push: Callable[[int, bytes], object]
    ) -> None:
        self._lender = lender
        self._arena_of = arena_of
        self._push = push

    def message_of(self, call: Call) -> Message | None:
        """Return the message of a CALL. If its block was reused meanwhile, fail the call and return None."""
        data = self.bytes_of(call)
        return None if data is None else decode(data)

    def bytes_of(self, call: Call) -> bytes | None:
        """Return the encoded message of a CALL. If its block was reused, fail the call and return None."""
        arena = self._arena_of(call.owner)
        if arena.check(call.block, call.generation):
            return bytes(arena.view(call.block, call.length))
        log.error("call %d of %s names a stale block", call.request, name_of(call.owner))
        self.answer(
            call.owner, call.request, Failed(NO_ANSWER, "the call's block was stale"), call.connection
        )
        return None

    def give_back(self, call: Call) -> None:
        """Give back the block of a CALL whose message was read, before an answer that may take long."""
        self._push(
            call.owner, pack_call(SlotKind.TAKEN, self._lender.owner, call.request, 0, 0, 0, call.connection)
        )

    def answer(self, client: int, number: int, answer: Message, connection: int = 0) -> bool:
        """Answer the client's call with this number. Return False if there was no memory for the answer.

        The client then gets an ANSWER without a block, which ends the call as `Failed`.
        """
        return self.answer_encoded(client, number, encode(answer), connection)

    def answer_encoded(self, client: int, number: int, data: bytes, connection: int = 0) -> bool:
        """Answer as `answer` does, by a message that is encoded already."""
        try:
            block, generation = self._lender.lend(data, client)
        except ArenaFull as error:
            log.error("no memory for an answer to %s: %s", name_of(client), error)
            self._push(client, pack_call(SlotKind.ANSWER, self._lender.owner, number))
            return False
        slot = pack_call(
            SlotKind.ANSWER, self._lender.owner, number, block, generation, len(data), connection
        )
        self._push(client, slot)
        return True
