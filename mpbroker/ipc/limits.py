"""Connection rates of addresses (quotas of entity `ip`), published by the coordinator to the acceptors."""

from __future__ import annotations

from msgspec import Struct


class LimitImage(Struct, array_like=True):
    """The limit of connections per second for an address (packed), or the default limit (`address` None).

    The default limit applies to each address without a limit of its own. `per_second` None removes a limit.
    """

    address: bytes | None
    per_second: float | None


class LimitNews(Struct):
    """Changed limits. With `everything`, `limits` is complete: limits that are not in it no longer apply."""

    limits: list[LimitImage]
    everything: bool = False
