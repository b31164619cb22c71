"""Who waits for the step of a transaction that is under way.

Kafka answers CONCURRENT_TRANSACTIONS at once and its clients ask again, 20 to 100 ms later. A step takes less
than that, so here they wait for it, in their order, and are refused only when it takes longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mpbroker.coordinator.runtime.answers import Then, Waiter

# As long as a Kafka broker goes on asking for its clients (add.partitions.to.txn.retry.backoff.max.ms).
PATIENCE_MS: Final = 100


@dataclass(eq=False)
class Turn:
    """What a request wants of one transactional id.

    `attempt` does it, once it can be done, and says whether it could; it may raise ApiError, which `refuse`
    is then told. One of them answers the request. `waiter`: whose request it is; None: the coordinator's own.
    """

    transactional_id: str
    attempt: Callable[[], bool]
    refuse: Then
    waiter: Waiter | None
    deadline_ms: int
