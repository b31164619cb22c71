"""The memory of requests that wait in a handler for records or for other members of a group.

A client may have a request wait for half an hour, and open a connection for each. What they take is bounded
by connection, by principal and in all. A handler has its share of the last two, as clients are spread over
the handlers. (Kafka has no such bounds: its purgatories grow with the heap.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.requests.exchange import Exchange

# What any request takes that waits: objects, places in tables, a timer; and a partition of a fetch.
REQUEST_BYTES: Final = 2_048
PARTITION_BYTES: Final = 512

log = logging.getLogger("mpbroker")


class ParkedMemory:
    """Bytes are an estimate. `config` returns the current configuration."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config
        self._charged: dict[Exchange, tuple[str, int]] = {}
        self._by_principal: dict[str, int] = {}
        self._used_bytes = 0
        # Whether the log says that there was no room; once until there is some again.
        self._is_told = False

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def has_room(self, exchange: Exchange, size: int) -> bool:
        """Return whether a request that takes so many bytes may wait. Log the first that may not."""
        principal = exchange.session.principal_name
        bound = self._bound_that_is_met(principal, size)
        if bound and not self._is_told:
            log.warning("%s may not wait: %s. More such requests are not logged", exchange, bound)
        self._is_told = bool(bound)
        return not bound

    def _bound_that_is_met(self, principal: str, size: int) -> str:
        config = self._config()
        handlers = config.num_io_threads
        if size > config.max_parked_bytes_per_connection:
            return f"max.parked.bytes.per.connection={config.max_parked_bytes_per_connection}"
        of_principal = self._by_principal.get(principal, 0) + size
        if of_principal * handlers > config.max_parked_bytes_per_principal:
            return f"max.parked.bytes.per.principal={config.max_parked_bytes_per_principal} of {principal}"
        if (self._used_bytes + size) * handlers > config.max_parked_bytes:
            return f"max.parked.bytes={config.max_parked_bytes}"
        return ""

    def charge(self, exchange: Exchange, size: int) -> None:
        """Charge what a request takes, in place of what it was charged before."""
        self.release(exchange)
        principal = exchange.session.principal_name
        self._charged[exchange] = principal, size
        self._by_principal[principal] = self._by_principal.get(principal, 0) + size
        self._used_bytes += size

    def release(self, exchange: Exchange) -> None:
        """Give back what a request was charged, if anything."""
        principal, size = self._charged.pop(exchange, ("", 0))
        if not size:
            return
        self._used_bytes -= size
        self._by_principal[principal] -= size
        if not self._by_principal[principal]:
            del self._by_principal[principal]
