"""A request's wish to change a transactional id, which waits for the change that is under way.

Kafka answers CONCURRENT_TRANSACTIONS at once and its clients ask again, 20 to 100 ms later. A change takes
less than that, so here requests wait for it, in their order, and are refused only when it takes longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from mpbroker.coordinator.runtime.requests import Then, Waiter

# As long as a Kafka broker goes on asking for its clients (add.partitions.to.txn.retry.backoff.max.ms).
PATIENCE_MS: Final = 100

Action: TypeAlias = Callable[[], None]


@dataclass(eq=False)
class PendingStep:
    """`attempt` looks at the transactional id and returns what to do about it, or None if the step has to
    wait.

    It may raise ApiError, which `refuse` is told then. One of the two answers the request. `waiter` is None
    for a step of the coordinator's own.
    """

    transactional_id: str
    attempt: Callable[[], Action | None]
    refuse: Then
    waiter: Waiter | None
    deadline_ms: int | None = None
