"""Pauses before logins of addresses and users that have failed often, to slow down guessing of passwords.

A login is answered after its pause, whether the password is right or not: who guesses learns nothing earlier,
and who knows the password gets in after at most the longest pause. Failures of one address or one user do not
slow others down. (Kafka delays only failures, each by the same time; OpenSSH has PerSourcePenalties.)
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass
from typing import Final

ENTRIES_MAX: Final = 10_000
"""How many addresses, and users, are remembered. A new one replaces the one that failed longest ago."""
ADDRESS_FREE: Final = 20
ADDRESS_FORGET_NS: Final = 1_000_000_000
USER_FREE: Final = 5
USER_FORGET_NS: Final = 10_000_000_000
"""How many failures of an address and of a user cost nothing, and how soon one is forgotten."""
NETWORK_BYTES: Final = 8
"""The part of an IPv6 address that counts: a customer of a provider has a /64 at least."""
DOUBLINGS_MAX: Final = 16
"""The most failures that count beyond the free ones, so that they are forgotten in bounded time."""


@dataclass
class _Failures:
    """The failures of one key: `count` at the time `at_ns`, decaying since."""

    count: float
    at_ns: int


class FailureTable:
    """Recent failures by key. The first `free` cost nothing; one is forgotten every `forget_ns`."""

    def __init__(self, free: int, forget_ns: int, entries_max: int = ENTRIES_MAX) -> None:
        self._free = free
        self._forget_ns = forget_ns
        self._entries_max = entries_max
        self._entries: dict[bytes, _Failures] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def excess(self, key: bytes, now_ns: int) -> int:
        """Return how many failures beyond the free ones count now."""
        known = self._entries.get(key)
        return 0 if known is None else max(0, int(self._left(known, now_ns)) - self._free)

    def add(self, key: bytes, now_ns: int) -> None:
        known = self._entries.pop(key, None)
        count = 1.0 if known is None else self._left(known, now_ns) + 1
        if len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]
        # After all others: they are in the order of their last failures.
        self._entries[key] = _Failures(min(count, self._free + DOUBLINGS_MAX), now_ns)

    def _left(self, known: _Failures, now_ns: int) -> float:
        return max(0.0, known.count - (now_ns - known.at_ns) / self._forget_ns)


class LoginPauses:
    """The pauses of one processor: `first_ns` for the first failure beyond the free ones, doubled for each.

    `longest_ns` limits all pauses; unless it is above `first_ns` there are none. An address may have
    many clients, so more failures of it are free, and they are forgotten sooner.
    """

    def __init__(self) -> None:
        self.first_ns = self.longest_ns = 0
        self.addresses = FailureTable(ADDRESS_FREE, ADDRESS_FORGET_NS)
        self.users = FailureTable(USER_FREE, USER_FORGET_NS)

    def failed(self, address: str, user: str, now_ns: int) -> None:
        """Note a failed login. `user` is "" if it named none."""
        if key := _address_key(address):
            self.addresses.add(key, now_ns)
        if user:
            self.users.add(_user_key(user), now_ns)

    def pause_ns(self, address: str, user: str, now_ns: int) -> int:
        """Return how long to wait with the answer to a login."""
        if self.longest_ns <= self.first_ns:
            return 0
        key = _address_key(address)
        excess = self.addresses.excess(key, now_ns) if key else 0
        if user:
            excess = max(excess, self.users.excess(_user_key(user), now_ns))
        return min(self.longest_ns, self.first_ns << excess) if excess else 0


def _address_key(address: str) -> bytes:
    """Return the key of an address, of IPv6 that of its network (/64); b"" for clients on this host."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return b""
    if isinstance(known, ipaddress.IPv6Address):
        return known.ipv4_mapped.packed if known.ipv4_mapped else known.packed[:NETWORK_BYTES]
    return known.packed


def _user_key(user: str) -> bytes:
    """Return a short key for a user name, whose length the client chooses."""
    return hashlib.blake2b(user.encode(errors="surrogatepass"), digest_size=16).digest()
