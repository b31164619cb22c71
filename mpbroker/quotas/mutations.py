"""The quota on controller mutations (created and deleted partitions), with a bucket of tokens per budget.

Only the coordinator decides about topics, so only the coordinator has the buckets. New buckets are full.
(Kafka: ControllerMutationQuotaManager, stats.TokenBucket; KIP-599.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from mpbroker.quotas.entities import CONTROLLER_MUTATION_RATE, Limit, QuotaTable

if TYPE_CHECKING:
    from mpbroker.quotas.meters import MutationMeters

# A full bucket is like a new one, so full ones are dropped at this number of buckets.
BUCKETS_MAX = 1024


class TokenBucket:
    """A bucket that gets `rate` tokens per second, up to `burst`. Its tokens may become negative."""

    def __init__(self, rate: float, burst: float, now_ms: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens = burst
        self._at_ms = now_ms

    def tokens(self, now_ms: int) -> float:
        self._tokens = min(self._burst, self._tokens + self._rate * (now_ms - self._at_ms) / 1000)
        self._at_ms = now_ms
        return self._tokens

    def take(self, count: float, now_ms: int) -> float:
        """Take `count` tokens, even more than the bucket has. Return the remaining tokens, maybe negative."""
        self._tokens = min(self._burst, self.tokens(now_ms) - count)
        return self._tokens

    def change(self, rate: float, burst: float) -> None:
        """Change rate and size. The bucket keeps its tokens, up to the new size."""
        self._rate, self._burst = rate, burst

    def is_full(self, now_ms: int) -> bool:
        return self.tokens(now_ms) >= self._burst


class Mutations:
    """The buckets of all budgets. A full bucket has the tokens of `burst_s` seconds at its quota's rate."""

    def __init__(
        self, burst_s: float, now_ms: Callable[[], int], meters: MutationMeters | None = None
    ) -> None:
        self._burst_s = burst_s
        self._now_ms = now_ms
        self.meters = meters
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def begin(self, quotas: QuotaTable, user: str, client_id: str, *, strict: bool) -> Mutation:
        """Return the Mutation of one request. `strict`: refuse mutations if the budget is exhausted."""
        return Mutation(self, quotas.limit(CONTROLLER_MUTATION_RATE, user, client_id), strict)

    def now_ms(self) -> int:
        return self._now_ms()

    def take(self, limit: Limit, count: float) -> float:
        """Take tokens from the bucket of the limit's budget. Return its remaining tokens, maybe negative."""
        now_ms = self._now_ms()
        left = self._bucket(limit, now_ms).take(count, now_ms)
        if self.meters is not None:
            self.meters.took(limit, count, left, limit.bound * self._burst_s)
        return left

    def _bucket(self, limit: Limit, now_ms: int) -> TokenBucket:
        owner, burst = (limit.user, limit.client_id), limit.bound * self._burst_s
        found = self._buckets.get(owner)
        if found is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets = {o: b for o, b in self._buckets.items() if not b.is_full(now_ms)}
            found = self._buckets[owner] = TokenBucket(limit.bound, burst, now_ms)
        found.change(limit.bound, burst)
        return found


class Mutation:
    """The tokens that one request has taken from its client's bucket."""

    def __init__(self, mutations: Mutations, limit: Limit | None, strict: bool) -> None:
        self._mutations = mutations
        self._limit = limit
        self._strict = strict
        self._taken = 0
        self._throttle_ms = 0
        self._throttled_at_ms = 0

    def allows(self, partitions: int) -> bool:
        """Take `partitions` tokens and return True; if `strict` and the budget is exhausted, return False."""
        if self._limit is None:
            return True
        if self._strict and self._exhausted(self._mutations.take(self._limit, 0)):
            return False
        left = self._mutations.take(self._limit, partitions)
        self._taken += partitions
        if not self._strict:
            self._exhausted(left)
        return True

    def _exhausted(self, tokens: float) -> bool:
        assert self._limit is not None
        if tokens >= 0:
            return False
        self._throttle_ms = math.floor(-tokens * 1000 / self._limit.bound + 0.5)
        self._throttled_at_ms = self._mutations.now_ms()
        return True

    def throttle_ms(self) -> int:
        """Return how long the client must pause from now on, in ms, and record the pause in the meters."""
        pause_ms = max(0, self._throttle_ms - (self._mutations.now_ms() - self._throttled_at_ms))
        if pause_ms and self._limit is not None and self._mutations.meters is not None:
            self._mutations.meters.paused(self._limit, pause_ms)
        return pause_ms

    def refund(self) -> None:
        """Put the taken tokens back, because the request was not carried out."""
        if self._limit is not None and self._taken:
            self._mutations.take(self._limit, -self._taken)
            self._taken = 0
