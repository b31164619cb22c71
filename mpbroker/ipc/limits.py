"""Connection rates of addresses (quotas of entity `ip`), published by the coordinator to the acceptors."""

from __future__ import annotations

from msgspec import Struct


class LimitImage(Struct, array_like=True):
    """Connections per second of a packed address, or of all addresses without a rate of their own (None).

    No rate: an address has the default's, and the default is unlimited.
    """

    address: bytes | None
    per_second: float | None


class LimitNews(Struct):
    """Changed rates. `everything`: an address that is not listed has no rate now."""

    limits: list[LimitImage]
    everything: bool = False
