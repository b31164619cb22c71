"""Requests that wait for their responses, per node and in order (Kafka: InFlightRequests). Sans-I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpbroker.client.versions import ApiVersionsTalk
from mpbroker.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from mpbroker.client.network_client import ClientRequest


@dataclass(slots=True)
class InFlight:
    """One request on its way. Either the user's, or the client's own: `talk` or `of_metadata`."""

    key: ApiKey
    version: int
    correlation_id: int
    expects_response: bool
    sent_ms: float
    timeout_ms: float
    request: ClientRequest | None = None
    talk: ApiVersionsTalk | None = None
    of_metadata: bool = False
    send_completed: bool = False
    # Time during which the node was not to be asked: the broker held the answer back by right.
    throttled_ms: float = 0.0

    def expires_ms(self) -> float:
        return self.sent_ms + self.timeout_ms + self.throttled_ms


class InFlightRequests:
    """Oldest first; a node answers in the order in which it was asked."""

    def __init__(self, per_node_max: int) -> None:
        self._per_node_max = per_node_max
        self._queues: dict[int, deque[InFlight]] = {}

    def add(self, node: int, entry: InFlight) -> None:
        self._queues.setdefault(node, deque()).append(entry)

    def can_send_more(self, node: int) -> bool:
        """One send at a time, and not too many questions without an answer."""
        queue = self._queues.get(node)
        return not queue or (queue[-1].send_completed and len(queue) < self._per_node_max)

    def send_completed(self, node: int) -> InFlight | None:
        """The newest request is written; it is over with that, and returned, if no response will come."""
        queue = self._queues[node]
        queue[-1].send_completed = True
        return None if queue[-1].expects_response else queue.pop()

    def complete_next(self, node: int) -> InFlight | None:
        """The oldest one, which a response that just came must be for."""
        queue = self._queues.get(node)
        return queue.popleft() if queue else None

    def clear(self, node: int) -> list[InFlight]:
        """All of a node that is gone, oldest first."""
        return [*self._queues.pop(node, ())]

    def throttled(self, node: int, throttle_ms: float) -> None:
        for entry in self._queues.get(node, ()):
            entry.throttled_ms += throttle_ms

    def expired(self, now_ms: float) -> list[int]:
        """Nodes of which a request has waited too long."""
        return [
            node
            for node, queue in self._queues.items()
            if any(now_ms >= entry.expires_ms() for entry in queue)
        ]

    def next_expiry_ms(self) -> float | None:
        """When the first of all will have waited too long."""
        return min((entry.expires_ms() for entry in self._all()), default=None)

    def count(self, node: int | None = None) -> int:
        """Of one node, or of all."""
        if node is None:
            return sum(map(len, self._queues.values()))
        return len(self._queues.get(node, ()))

    def _all(self) -> Iterator[InFlight]:
        for queue in self._queues.values():
            yield from queue
