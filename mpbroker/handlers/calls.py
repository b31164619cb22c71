"""Calls to the coordinator: a message in a block of this handler's arena; the ANSWER ends its lease."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

from mpbroker.handlers.outbox import Outbox
from mpbroker.ipc import calls
from mpbroker.ipc.calls import Failed, Message
from mpbroker.ipc.slots import Call, SlotKind, pack_call, pack_return
from mpbroker.protocol.errors import ErrorCode
from shm.arena import Arena, ArenaFull

Then: TypeAlias = Callable[[Message], None]


class Caller:
    """Every call is answered exactly once, with `Failed` if the coordinator dies before it answers."""

    def __init__(self, index: int, peer: int, own: Arena, theirs: Arena, outbox: Outbox) -> None:
        self._index = index
        self._peer = peer
        self._own = own
        self._theirs = theirs
        self._outbox = outbox
        self._numbers = itertools.count(1)
        self._pending: dict[int, tuple[int, int, Then]] = {}
        self.peer_is_up = True

    def __len__(self) -> int:
        return len(self._pending)

    def call(self, message: Message, then: Then, connection: int = 0) -> int:
        """-> the number of the call, 0 if it has failed already."""
        if not self.peer_is_up:
            then(Failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is being restarted"))
            return 0
        payload = calls.encode(message)
        try:
            block = self._own.allocate(len(payload))
        except ArenaFull as error:
            then(Failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no memory for the call: {error}"))
            return 0
        self._own.view(block, len(payload))[:] = payload
        generation = self._own.lend(block, self._peer)
        number = next(self._numbers) & 0xFFFFFFFF
        self._pending[number] = block, len(payload), then
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
        block, size, then = pending
        self._end_lease(block, size)
        then(message or Failed(ErrorCode.UNKNOWN_SERVER_ERROR, "the coordinator's answer was stale"))

    def fenced(self) -> None:
        """The coordinator is dead: nothing that was asked will be answered."""
        self.peer_is_up = False
        self._outbox.clear()
        pending, self._pending = self._pending, {}
        for block, size, then in pending.values():
            self._end_lease(block, size)
            then(Failed(ErrorCode.NOT_COORDINATOR, "the coordinator died before it answered"))

    def welcomed(self) -> None:
        self._outbox.rebind()
        self.peer_is_up = True

    def _end_lease(self, block: int, size: int) -> None:
        self._own.take_back(block, self._own.generation(block))
        self._own.free(block, size)
