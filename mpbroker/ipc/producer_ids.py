"""Producer ids, taken one by one from durably allocated blocks (Kafka: RPCProducerIdManager, KIP-730)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from mpbroker.ipc.calls import AllocateProducerIds, Message
from mpbroker.ipc.calls import ProducerIds as Block

Then: TypeAlias = Callable[[int | None], None]


class ProducerIds:
    """A source of producer ids. `ask(message, callback)` sends a message to the coordinator.

    When the process ends, the unused ids of its block are lost: no process uses them later.
    """

    def __init__(self, ask: Callable[[Message, Callable[[Message], None]], object]) -> None:
        self._ask = ask
        self._next = 0
        self._end = 0
        self._waiting: deque[Then] = deque()

    def take_now(self) -> int | None:
        """Return an id of the current block, or None if the block is used up and `take` must be called."""
        if self._next == self._end:
            return None
        self._next += 1
        return self._next - 1

    def take(self, then: Then) -> None:
        """Call `then` with an id, at once or when a new block has come; with None if the request failed."""
        self._waiting.append(then)
        if len(self._waiting) == 1:
            self._serve()

    def _serve(self) -> None:
        while self._waiting and self._next < self._end:
            producer_id, self._next = self._next, self._next + 1
            self._waiting.popleft()(producer_id)
        if self._waiting:
            self._ask(AllocateProducerIds(), self._allocated)

    def _allocated(self, message: Message) -> None:
        if isinstance(message, Block) and message.count > 0:
            self._next, self._end = message.first, message.first + message.count
            self._serve()
            return
        waiting, self._waiting = self._waiting, deque()
        for then in waiting:
            then(None)
