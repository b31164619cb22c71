"""The memory of requests that wait in a handler for records or for other members of a group.

A client may have a request wait for half an hour on each of its connections. The memory of waiting requests
is bounded for each connection, for each principal, and in total. Clients are spread over the handlers, so
each handler applies only its share of the bounds for a principal and in total. (Kafka has no such bounds: its
purgatories grow with the heap.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.requests.request import ReceivedRequest
from shm.clock import monotonic_ms

# An estimate of any request that waits: objects, places in tables, a timer.
REQUEST_BYTES: Final = 2_048
# An estimate of a partition of a fetch that waits.
PARTITION_BYTES: Final = 512
WARNED_EVERY_MS: Final = 60_000

log = logging.getLogger("mpbroker.handlers")


class ParkedMemory:
    """Counts the bytes of waiting requests, as an estimate, and applies the bounds.

    `config` returns the current configuration.
    """

    def __init__(
        self, config: Callable[[], BrokerConfig], clock_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        self._config = config
        self._charged: dict[ReceivedRequest, tuple[str, int]] = {}
        self._by_principal: dict[str, int] = {}
        self._used_bytes = 0
        self._clock_ms = clock_ms
        # No warning before this time: clients choose how often they meet a bound.
        self._silent_until_ms = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def has_room(self, request: ReceivedRequest, size: int) -> bool:
        """Return True if a request that takes `size` bytes may wait. Log at most one refusal a minute."""
        bound = self._exceeded_bound(request.session.principal_name, size)
        now_ms = self._clock_ms()
        if bound and now_ms >= self._silent_until_ms:
            self._silent_until_ms = now_ms + WARNED_EVERY_MS
            log.warning("%s may not wait: %s. Others are not logged for a minute", request, bound)
        return not bound

    def _exceeded_bound(self, principal: str, size: int) -> str:
        """Return the setting that forbids `size` more bytes, with its value; "" if none does."""
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

    def charge(self, request: ReceivedRequest, size: int) -> None:
        """Charge `size` bytes for a request, in place of its earlier charge."""
        self.release(request)
        principal = request.session.principal_name
        self._charged[request] = principal, size
        self._by_principal[principal] = self._by_principal.get(principal, 0) + size
        self._used_bytes += size

    def release(self, request: ReceivedRequest) -> None:
        """Remove the charge of a request, if there is one."""
        principal, size = self._charged.pop(request, ("", 0))
        if not size:
            return
        self._used_bytes -= size
        self._by_principal[principal] -= size
        if not self._by_principal[principal]:
            del self._by_principal[principal]
