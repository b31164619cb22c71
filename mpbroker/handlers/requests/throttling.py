"""Quotas applied to requests: what a request costs its client, and how long the client must pause.

The native turn charges common produces itself, by budgets that it gets from here. All other requests are
charged when they get their response. All handlers add to the same rates. Nothing is charged until a first
quota is set. (Kafka: ClientQuotaManager, ClientRequestQuotaManager, KafkaApis; KIP-13, KIP-124, KIP-219.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.requests.metadata import Metadata
from mpbroker.handlers.requests.request import ReceivedRequest
from mpbroker.handlers.requests.responses import NO_PAUSE, Pause
from mpbroker.ipc.meters import Meters, QuotaKind
from mpbroker.ipc.slots import SlotFlag, ThrottledBy
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.quotas.clients import Clients
from mpbroker.quotas.entities import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from mpbroker.quotas.meters import key_of
from shm.clock import monotonic_ms

log = logging.getLogger("mpbroker.handlers")

KINDS = {
    PRODUCER_BYTE_RATE: QuotaKind.QUOTA_PRODUCE,
    CONSUMER_BYTE_RATE: QuotaKind.QUOTA_FETCH,
    REQUEST_PERCENTAGE: QuotaKind.QUOTA_REQUEST,
}
MEASURED = tuple(KINDS)
NS_PER_PERCENT = 10_000_000  # of a second
# Forget the known clients when there are more.
CLIENTS_MAX = 65536
Budget: TypeAlias = tuple[int, float]
SIZE_FIELD_BYTES = 4


class Budgets(NamedTuple):
    """A client's budget for each quota: (key in the rates, bound per second), or None without a quota."""

    produce: Budget | None
    fetch: Budget | None
    request: Budget | None


class Throttling:
    """Charges requests to quotas. `on` is True if a client has had a quota since this handler started."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        clients: Clients,
        meters: Meters,
        secret: bytes,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.on = False
        self.now_ms = now_ms
        self._metadata = metadata
        self._clients = clients
        self._meters = meters
        self._secret = secret
        self._window_ms = config.quota_window_size_seconds * 1000
        # Seconds of its rate that a client may get in one answer: all windows but the one just begun.
        self._burst_s = (config.quota_window_num - 1) * config.quota_window_size_seconds
        self._version = metadata.quotas_version
        self._known: dict[tuple[str, str], Budgets] = {}
        self._unmeasured = 0

    def refresh(self) -> None:
        """Forget all budgets if the quotas have changed."""
        if self._version == self._metadata.quotas_version:
            return
        self._version = self._metadata.quotas_version
        self._known.clear()
        self._clients.clear()
        self.on = self.on or any(self._metadata.quotas.has(key) for key in MEASURED)
        self._clients.on = self.on

    def budgets(self, request: ReceivedRequest) -> Budgets:
        user, client_id = request.session.principal_name, request.client_id
        found = self._known.get((user, client_id))
        if found is None:
            if len(self._known) >= CLIENTS_MAX:
                self._known.clear()
            produce, fetch, time = (self._budget(key, user, client_id) for key in MEASURED)
            if time is not None:
                time = time[0], time[1] * NS_PER_PERCENT
            found = self._known[user, client_id] = Budgets(produce, fetch, time)
        return found

    def _budget(self, key: str, user: str, client_id: str) -> Budget | None:
        limit = self._metadata.quotas.limit(key, user, client_id)
        if limit is None:
            return None
        number = key_of(self._secret, key, limit)
        self._meters.name_quota(KINDS[key], number, limit.user, limit.client_id, self.now_ms())
        return number, limit.bound

    def charge(self, request: ReceivedRequest) -> Pause:
        """Charge a request when it is answered; return the client's pause."""
        budgets = self.budgets(request)
        if request.slot.api_key != ApiKey.PRODUCE:
            return self._noted(budgets, self._charge_time(request, budgets.request))
        self._introduce(request, budgets)
        size = request.slot.length - SIZE_FIELD_BYTES
        of_bytes = Pause(
            self._charge(QuotaKind.QUOTA_PRODUCE, budgets.produce, size), ThrottledBy.THROTTLED_BY_PRODUCE
        )
        if request.body.acks == 0:
            self._meters.quota_exempt(QuotaKind.QUOTA_REQUEST, _spent_ns(request))
            return self._noted(budgets, of_bytes)
        return self._noted(budgets, _longer(of_bytes, self._charge_time(request, budgets.request)))

    def charge_fetch(self, request: ReceivedRequest, response_bytes: int) -> Pause:
        """Charge a Fetch's time, and its response's size unless the client must pause; return the pause."""
        if request.slot.flags & SlotFlag.AGAIN:
            return NO_PAUSE  # charged before its response turned out to be unsendable
        budgets = self.budgets(request)
        self._introduce(request, budgets)
        of_bytes = Pause(
            self._charge(QuotaKind.QUOTA_FETCH, budgets.fetch, response_bytes), ThrottledBy.THROTTLED_BY_FETCH
        )
        pause = _longer(of_bytes, self._charge_time(request, budgets.request))
        if pause.ms and budgets.fetch is not None:
            self._clients.take_back(QuotaKind.QUOTA_FETCH, budgets.fetch[0], response_bytes, self.now_ms())
        return self._noted(budgets, pause)

    def fetch_bytes_max(self, request: ReceivedRequest) -> int | None:
        """Return the largest size of a response that the client's quota allows, in bytes; None: no quota."""
        fetch = self.budgets(request).fetch
        return None if fetch is None else int(fetch[1] * self._burst_s)

    def _charge_time(self, request: ReceivedRequest, budget: Budget | None) -> Pause:
        """Charge the time that the request took; return the pause, which is at most one quota window."""
        pause_ms = min(self._charge(QuotaKind.QUOTA_REQUEST, budget, _spent_ns(request)), self._window_ms)
        return Pause(pause_ms, ThrottledBy.THROTTLED_BY_REQUEST)

    def _noted(self, budgets: Budgets, pause: Pause) -> Pause:
        """Count a pause for the quota that causes it, and return the pause."""
        if pause.ms:
            kind, budget = {
                ThrottledBy.THROTTLED_BY_PRODUCE: (QuotaKind.QUOTA_PRODUCE, budgets.produce),
                ThrottledBy.THROTTLED_BY_FETCH: (QuotaKind.QUOTA_FETCH, budgets.fetch),
                ThrottledBy.THROTTLED_BY_REQUEST: (QuotaKind.QUOTA_REQUEST, budgets.request),
            }[pause.by]
            assert budget is not None
            self._meters.quota_pause(kind, budget[0], pause.ms)
        return pause

    def _charge(self, kind: QuotaKind, budget: Budget | None, value: int) -> int:
        if budget is None:
            return 0
        pause_ms = self._clients.charge(kind, *budget, value, self.now_ms())
        if self._clients.unmeasured > self._unmeasured:
            if not self._unmeasured:
                log.error("too many clients with quotas are active at once: some are not limited")
            self._unmeasured = self._clients.unmeasured
        return pause_ms

    def _introduce(self, request: ReceivedRequest, budgets: Budgets) -> None:
        """Give the turn the connection's budgets. The turn serves fetches only if no quota limits them."""
        session, client_id = request.session, request.client_id.encode()
        who = request.slot.connection, session.revision, client_id
        if not self._clients.knows(*who):
            fetch_limited = budgets.fetch is not None or budgets.request is not None
            self._clients.put(*who, budgets.produce, budgets.request, fetch_limited)


def _spent_ns(request: ReceivedRequest) -> int:
    """Return the handler's time for the request, plus the processor's time for the connection.

    The processor's time is counted from the connection's previous request on.
    """
    return request.worked_ns + request.slot.network_ns


def _longer(of_bytes: Pause, of_time: Pause) -> Pause:
    """Return the longer pause; `of_time` if both are equal."""
    return of_bytes if of_bytes.ms > of_time.ms else of_time
