"""Limits on the number of connections and on their rate (Kafka: ConnectionQuotas; sans-I/O).

An acceptor calls `delay_ms` when it has accepted a connection. It waits until this delay is over and
`has_slot` returns True, and then calls `admit`. Meanwhile it serves its other listeners. An admitted
connection counts until `remove` is called.

The inter-broker listener is protected if there is another listener: only its own limits delay its
connections, not the limits of all listeners together. `surplus` counts the connections above the limits
of all listeners together; processors close the least recently active connections of the other listeners.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from mpbroker.network.acceptor.connection_rate import UNLIMITED, WindowedRate

# Expired rates to remove with each connection: more than one can add.
FORGOTTEN_AT_ONCE = 2
# A client by a Unix-domain socket has no address; its listener limits it.
NO_ADDRESS = b""

K = TypeVar("K", int, bytes)


@dataclass(frozen=True)
class Limits:
    """The limits of one listener, or of all listeners together."""

    connections: int = UNLIMITED
    per_second: int = UNLIMITED


class Admission(Enum):
    COUNTED = 1
    TOO_MANY = 2  # max.connections.per.ip: close it
    THROTTLED = 3  # the address's rate: keep it and close it after `throttle_ms`


@dataclass
class _Listener:
    limits: Limits
    rate: WindowedRate


class ConnectionQuotas:
    """The connection limits of one broker. Listeners are given by number, addresses as 4 or 16 bytes."""

    def __init__(
        self,
        broker: Limits,
        per_ip: int = UNLIMITED,
        per_ip_overrides: Mapping[bytes, int] | None = None,
        windows: int = 11,
        window_ms: int = 1000,
    ) -> None:
        self.broker = broker
        self.per_ip = per_ip
        self.per_ip_overrides = dict(per_ip_overrides or {})
        self._windows, self._window_ms = windows, window_ms
        self._broker_rate = self._new_rate(broker.per_second)
        self._listeners: dict[int, _Listener] = {}
        self._inter_broker: int | None = None
        self._ip_rate_default: float = UNLIMITED
        self._ip_rate_of: dict[bytes, float] = {}
        self._ip_rates: OrderedDict[bytes, WindowedRate] = OrderedDict()  # the latest is last
        self.total = 0
        self.by_listener: Counter[int] = Counter()
        self.by_ip: Counter[bytes] = Counter()

    def _new_rate(self, bound: float) -> WindowedRate:
        return WindowedRate(bound, self._windows, self._window_ms)

    # ---- listeners and changes while running

    def add_listener(self, listener: int, limits: Limits, *, inter_broker: bool = False) -> None:
        self._listeners[listener] = _Listener(limits, self._new_rate(limits.per_second))
        if inter_broker:
            self._inter_broker = listener

    def remove_listener(self, listener: int) -> None:
        """Forget a listener. Its connections stay counted until they are closed."""
        self._listeners.pop(listener, None)
        if self._inter_broker == listener:
            self._inter_broker = None

    def is_protected(self, listener: int) -> bool:
        return listener == self._inter_broker and len(self._listeners) > 1

    def change_broker(self, limits: Limits) -> None:
        self.broker = limits
        self._broker_rate.bound = limits.per_second

    def change_per_ip(self, most: int, overrides: Mapping[bytes, int]) -> None:
        self.per_ip = most
        self.per_ip_overrides = dict(overrides)

    def change_listener(self, listener: int, limits: Limits) -> None:
        self._listeners[listener].limits = limits
        self._listeners[listener].rate.bound = limits.per_second

    def change_ip_rates(self, rates: Mapping[bytes | None, float | None], *, replace: bool = False) -> None:
        """Change the rates of addresses, in connections a second. The key None sets the default rate.

        The value None removes a rate. With `replace`, all rates that are not in `rates` are removed.
        """
        if replace:
            self._ip_rate_default = UNLIMITED
            self._ip_rate_of.clear()
        for address, per_second in rates.items():
            if address is None:
                self._ip_rate_default = UNLIMITED if per_second is None else per_second
            elif per_second is None:
                self._ip_rate_of.pop(address, None)
            else:
                self._ip_rate_of[address] = per_second
        for known, rate in self._ip_rates.items():
            rate.bound = self.ip_rate(known)

    def ip_rate(self, address: bytes) -> float:
        return self._ip_rate_of.get(address, self._ip_rate_default)

    # ---- the way in

    def delay_ms(self, listener: int, now_ms: float) -> int:
        """Record a new connection. Return the ms that it must wait so that the rates are not exceeded."""
        there = self._listeners[listener]
        delay = 0
        if not self.is_protected(listener):
            self._broker_rate.record(1.0, now_ms)
            delay = self._broker_rate.throttle_ms(now_ms)
        there.rate.record(1.0, now_ms)
        return max(delay, there.rate.throttle_ms(now_ms))

    def unasked(self, listener: int) -> int:
        """Return how many connections of a listener may be admitted without calling `admit`. Report each of
        them to `let_in` afterwards. The number is 0 while a rate or the connections per address are limited.
        """
        there = self._listeners[listener]
        rates = (self._broker_rate.bound, there.rate.bound, self._ip_rate_default, self.per_ip)
        if min(rates) < UNLIMITED or self.per_ip_overrides or self._ip_rate_of:
            return 0
        free = there.limits.connections - self.by_listener[listener]
        if not self.is_protected(listener):
            # The listeners share what the broker may still take, since the turn does not count their total.
            free = min(free, (self.broker.connections - self.total) // len(self._listeners))
        return max(0, free)

    def let_in(self, listener: int, address: bytes, now_ms: float) -> None:
        """Count a connection that was admitted without `admit`, as `unasked` has allowed."""
        if not self.is_protected(listener):
            self._broker_rate.record(1.0, now_ms)
        self._listeners[listener].rate.record(1.0, now_ms)
        self.add(listener, address)

    def exceeded_rate(self, listener: int, now_ms: float) -> tuple[float, bool]:
        """Return the limit per second that delays a connection, and whether the limit is the listener's."""
        own = self._listeners[listener].rate
        if self.is_protected(listener) or own.throttle_ms(now_ms) >= self._broker_rate.throttle_ms(now_ms):
            return own.bound, True
        return self._broker_rate.bound, False

    def has_slot(self, listener: int) -> bool:
        if self.is_full(listener):
            return False
        return self.is_protected(listener) or self.total < self.broker.connections

    def is_full(self, listener: int) -> bool:
        return self.by_listener[listener] >= self._listeners[listener].limits.connections

    def admit(self, listener: int, address: bytes, now_ms: float) -> tuple[Admission, int]:
        """Decide on a connection, and count an admitted one. Return the decision and the throttle in ms."""
        throttle_ms = self._ip_throttle_ms(listener, address, now_ms)
        if throttle_ms:
            return Admission.THROTTLED, throttle_ms
        if self.has_too_many(address):
            return Admission.TOO_MANY, 0
        self.add(listener, address)
        return Admission.COUNTED, 0

    def has_too_many(self, address: bytes) -> bool:
        """Return whether an address already has as many connections as it may have."""
        if address == NO_ADDRESS:
            return False
        return self.by_ip[address] >= self.per_ip_overrides.get(address, self.per_ip)

    def _ip_throttle_ms(self, listener: int, address: bytes, now_ms: float) -> int:
        """Count a connection in its address's rate; return its throttle in ms, 0 for none.

        A throttled connection is removed from all rates again.
        """
        bound = self.ip_rate(address)
        if address == NO_ADDRESS or bound >= UNLIMITED:
            return 0
        rate = self._ip_rates.get(address)
        if rate is None:
            rate = self._ip_rates[address] = self._new_rate(bound)
        else:
            self._ip_rates.move_to_end(address)
        rate.record(1.0, now_ms)
        self._forget_old_rates(now_ms)
        throttle_ms = rate.throttle_ms(now_ms)
        if throttle_ms:
            rate.record(-1.0, now_ms)
            there = self._listeners[listener]
            there.rate.record(-1.0, now_ms)
            if not self.is_protected(listener):
                self._broker_rate.record(-1.0, now_ms)
        return throttle_ms

    def _forget_old_rates(self, now_ms: float) -> None:
        """Drop rates of addresses that have no connection in any window. (Kafka does so after an hour.)"""
        for _ in range(FORGOTTEN_AT_ONCE):
            oldest = next(iter(self._ip_rates))
            if not self._ip_rates[oldest].is_over(now_ms):
                break
            del self._ip_rates[oldest]

    # ---- counts

    def add(self, listener: int, address: bytes) -> None:
        self.total += 1
        self.by_listener[listener] += 1
        if address != NO_ADDRESS:
            self.by_ip[address] += 1

    def remove(self, listener: int, address: bytes) -> None:
        """Stop counting a connection. Raise KeyError if it was not counted."""
        if self.by_listener[listener] <= 0 or (address != NO_ADDRESS and self.by_ip[address] <= 0):
            raise KeyError((listener, address))
        self.total -= 1
        _less(self.by_listener, listener)
        if address != NO_ADDRESS:
            _less(self.by_ip, address)

    def surplus(self) -> int:
        """Return how many connections of unprotected listeners must be closed (maxConnectionsExceeded)."""
        unprotected = self.total
        if self._inter_broker is not None and self.is_protected(self._inter_broker):
            unprotected -= self.by_listener[self._inter_broker]
        return max(0, min(self.total - self.broker.connections, unprotected))

    # ---- what metrics show

    def rates(self, now_ms: float) -> tuple[float, dict[int, float]]:
        return self._broker_rate.per_second(now_ms), {
            number: there.rate.per_second(now_ms) for number, there in self._listeners.items()
        }


def _less(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
