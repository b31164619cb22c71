"""Pauses before logins of addresses and users that have failed often, to slow down guessing of passwords.

Right and wrong passwords are answered after the same pause, so that the time of an answer tells a guessing
client nothing. A client with the right password waits for the longest pause at most. Failures of an
address or a user do not delay others. (Kafka delays only failures, each by the same time; OpenSSH has
PerSourcePenalties.)
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass
from typing import Final

ENTRIES_MAX: Final = 10_000
"""How many addresses, and how many users, are kept. A new one replaces the one that failed longest ago."""
ADDRESS_FREE: Final = 20
ADDRESS_FORGET_NS: Final = 1_000_000_000
USER_FREE: Final = 5
USER_FORGET_NS: Final = 10_000_000_000
"""How many failures of an address or a user cause no pause, and the time in which one is forgotten."""
NETWORK_BYTES: Final = 8
"""How many bytes of an IPv6 address are its key, since a customer of a provider has a /64 at least."""
DOUBLINGS_MAX: Final = 16
"""How many failures count beyond the free ones at most, so that all are forgotten in bounded time."""


@dataclass
class _Failures:
    """The failures of one key: `count` at the time `at_ns`. The count decays from then on."""

    count: float
    at_ns: int


class FailureTable:
    """Recent failures by key. The first `free` do not count; one is forgotten every `forget_ns`."""

    def __init__(self, free: int, forget_ns: int, entries_max: int = ENTRIES_MAX) -> None:
        self._free = free
        self._forget_ns = forget_ns
        self._entries_max = entries_max
        self._entries: dict[bytes, _Failures] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def excess(self, key: bytes, now_ns: int) -> int:
        """Return how many failures of the key count now, without the free ones."""
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
    """Computes the pauses of one processor's logins.

    A pause is `first_ns` * 2 ** (failures beyond the free ones), `longest_ns` at most. There are no pauses if
    `longest_ns` <= `first_ns`. An address may have many clients, so it has more free failures than a user.
    """

    def __init__(self) -> None:
        self.first_ns = self.longest_ns = 0
        self.addresses = FailureTable(ADDRESS_FREE, ADDRESS_FORGET_NS)
        self.users = FailureTable(USER_FREE, USER_FORGET_NS)

    def failed(self, address: str, user: str, now_ns: int) -> None:
        """Note a failed login. `user` is "" if the login named no user."""
        if key := _address_key(address):
            self.addresses.add(key, now_ns)
        if user:
            self.users.add(_user_key(user), now_ns)

    def pause_ns(self, address: str, user: str, now_ns: int) -> int:
        """Return the ns to wait before a login is answered."""
        if self.longest_ns <= self.first_ns:
            return 0
        key = _address_key(address)
        excess = self.addresses.excess(key, now_ns) if key else 0
        if user:
            excess = max(excess, self.users.excess(_user_key(user), now_ns))
        return min(self.longest_ns, self.first_ns << excess) if excess else 0


def _address_key(address: str) -> bytes:
    """Return the key of an address: IPv4's bytes, IPv6's network (/64), b"" for Unix-domain clients."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return b""
    if isinstance(known, ipaddress.IPv6Address):
        return known.ipv4_mapped.packed if known.ipv4_mapped else known.packed[:NETWORK_BYTES]
    return known.packed


def _user_key(user: str) -> bytes:
    """Return a key of 16 bytes for a user name, which may be long since clients choose it."""
    return hashlib.blake2b(user.encode(errors="surrogatepass"), digest_size=16).digest()
