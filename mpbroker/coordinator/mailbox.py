"""The coordinator's side of its rings: descriptors that wait for room.

Nothing here blocks: what does not fit into a ring waits in a queue of its own, and the consumer is asked to
ring when it has taken some. `mpbroker/ipc/slots.pxd` says what the descriptors mean.
"""

from __future__ import annotations

from collections import deque

from mpbroker.ipc.calls import Message, decode
from mpbroker.ipc.lending import Lender
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.slots import Call, SlotKind, pack_call, pack_return
from mpbroker.ipc.topology import COORDINATOR, name_of
from shm.arena import Arena, ArenaFull
from shm.ring import BYTES_PER_SLOT, Ring


class Peer:
    """Both rings between the coordinator and another process."""

    def __init__(self, context: ProcessContext, index: int) -> None:
        self.index = index
        self.arena: Arena = context.memory.arena(index)
        self._inbox: Ring = context.memory.ring(index, COORDINATOR)
        self._outbox: Ring = context.memory.ring(COORDINATOR, index)
        self._unsent: deque[bytes] = deque()
        self._context = context

    def waiting(self) -> bool:
        """Whether there is something to take, or room for what waits to be sent."""
        return bool(self._inbox.waiting() or (self._unsent and self._outbox.room()))

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def take(self) -> list[bytes]:
        """The descriptors that came, oldest first."""
        slots, producer_waits = self._inbox.take()
        if producer_waits:
            self._context.ring(self.index)
        return [slots[at : at + BYTES_PER_SLOT] for at in range(0, len(slots), BYTES_PER_SLOT)]

    def send(self, slot: bytes) -> None:
        self._unsent.append(slot)

    def answer(self, lender: Lender, answer: Message, request: int) -> bool:
        """Without a block if there is no memory for one: what was asked ends all the same. -> Whether there
        was.
        """
        try:
            self.send(lender.message(SlotKind.ANSWER, answer, self.index, request))
        except ArenaFull as error:
            self._context.log.error("no memory for an answer to %s: %s", name_of(self.index), error)
            self.send(pack_call(SlotKind.ANSWER, COORDINATOR, request))
            return False
        return True

    def flush(self) -> None:
        """Sends what there is room for and rings once."""
        if not self._unsent:
            return
        sent = self._outbox.push_batch(b"".join(self._unsent))
        for _ in range(sent):
            self._unsent.popleft()
        if sent:
            self._context.ring(self.index)
        # Before the look that precedes sleeping: room that comes meanwhile is seen there or rung for.
        self._outbox.want_space(bool(self._unsent))

    def drop(self) -> None:
        """The peer is dead: what came from it and what was meant for it is void."""
        self._inbox.take(self._inbox.size)
        self._unsent.clear()

    def rebind(self) -> None:
        """Its successor is there, with empty rings."""
        self._inbox.rebind()
        self._outbox.rebind()
        self._unsent.clear()

    def read(self, call: Call) -> Message:
        """The message in the peer's block, copied. Raises ValueError if the block is another by now."""
        if not self.arena.check(call.block, call.generation):
            raise ValueError(
                f"block {call.block} of {name_of(self.index)} is not of generation {call.generation}"
            )
        return decode(bytes(self.arena.view(call.block, call.length)))


def returned(answer: Call) -> bytes:
    """The descriptor that gives the block of an ANSWER back to the log process."""
    return pack_return(answer.owner, answer.block, answer.generation)
