"""Connection rates of addresses (quotas of entity `ip`), published by the coordinator to the acceptors."""

from __future__ import annotations

from msgspec import Struct


class LimitImage(Struct, array_like=True):
    """Connections per second of a packed address, or of all addresses without a rate of their own (None).

    Without a rate an address has the default rate; without a default rate it is unlimited.
    """

    address: bytes | None
    per_second: float | None


class LimitNews(Struct):
    """Changed rates. `everything`: the list is complete, and any other address has lost its rate."""

    limits: list[LimitImage]
    everything: bool = False
