"""Meters of clients' use of quotas, for metrics (Kafka: the sensors of ClientQuotaManager)."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from mpbroker.ipc.meters import QuotaKind
from mpbroker.quotas.entities import CONTROLLER_MUTATION_RATE, Limit
from shm.clock import monotonic_ms

if TYPE_CHECKING:
    from mpbroker.ipc.meters import Meters

KEY_BYTES = 8


def key_of(secret: bytes, quota: str, limit: Limit) -> int:
    """Return a hash of quota, user and client id, never 0. `secret` prevents chosen collisions."""
    name = f"{quota}\0{limit.user}\0{limit.client_id}".encode()
    return int.from_bytes(blake2b(name, digest_size=KEY_BYTES, key=secret).digest()) or 1


class MutationMeters:
    """The meters of the quota on controller mutations. The coordinator writes them."""

    def __init__(self, meters: Meters, secret: bytes) -> None:
        self._meters = meters
        self._secret = secret

    def took(self, limit: Limit, count: float, left: float, burst: float) -> None:
        """Record that `count` tokens were taken (negative: refunded) from a bucket, which has `left` now."""
        key, now_ms = key_of(self._secret, CONTROLLER_MUTATION_RATE, limit), monotonic_ms()
        self._meters.name_quota(QuotaKind.QUOTA_MUTATION, key, limit.user, limit.client_id, now_ms)
        self._meters.quota_used(QuotaKind.QUOTA_MUTATION, key, round(count), now_ms)
        self._meters.quota_tokens(key, left, limit.bound, burst)

    def paused(self, limit: Limit, pause_ms: int) -> None:
        key = key_of(self._secret, CONTROLLER_MUTATION_RATE, limit)
        self._meters.quota_pause(QuotaKind.QUOTA_MUTATION, key, pause_ms)
