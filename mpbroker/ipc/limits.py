"""What the coordinator publishes to the acceptors: how fast addresses may connect (quotas of entity `ip`)."""

from __future__ import annotations

from msgspec import Struct


class LimitImage(Struct, array_like=True):
    """Connections per second of a packed address, or of all without a rate of their own (None).

    No rate: the address has the default's, the default is no limit.
    """

    address: bytes | None
    per_second: float | None


class LimitNews(Struct):
    """`everything`: who is not in it has no rate any more."""

    limits: list[LimitImage]
    everything: bool = False
