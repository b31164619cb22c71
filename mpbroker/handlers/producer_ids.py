"""Producer ids, given out singly from durably allocated blocks (Kafka: RPCProducerIdManager, KIP-730)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from mpbroker.handlers.calls import Caller
from mpbroker.ipc.calls import AllocateProducerIds, Message
from mpbroker.ipc.calls import ProducerIds as Block
from mpbroker.protocol.errors import ErrorCode

Then: TypeAlias = Callable[[int | ErrorCode], None]


class ProducerIds:
    """What is left of a block when the process ends is never used."""

    def __init__(self, coordinator: Caller) -> None:
        self._coordinator = coordinator
        self._next = 0
        self._end = 0
        self._waiting: deque[Then] = deque()

    def take(self, then: Then) -> None:
        """Gives an id to `then`, at once or when a block has come; or an error that the client retries."""
        self._waiting.append(then)
        if len(self._waiting) == 1:
            self._serve()

    def _serve(self) -> None:
        while self._waiting and self._next < self._end:
            producer_id, self._next = self._next, self._next + 1
            self._waiting.popleft()(producer_id)
        if self._waiting:
            self._coordinator.call(AllocateProducerIds(), self._allocated)

    def _allocated(self, message: Message) -> None:
        if isinstance(message, Block) and message.count > 0:
            self._next, self._end = message.first, message.first + message.count
            self._serve()
            return
        waiting, self._waiting = self._waiting, deque()
        for then in waiting:
            # Java's idempotent producer retries this; at NOT_COORDINATOR it would look for a coordinator.
            then(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
