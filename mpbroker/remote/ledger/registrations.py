"""The objects `mpbroker/standby/<broker id>`: the standbys that follow a ledger.

A standby writes its object again each lease; the owner reads them all, and names them in the ledger. By its
`beat` the owner sees that a standby is there: no clock of one is compared with the other's.

A standby that serves reads, a *replica*, writes `mpbroker/standby/<broker id>.replica` three times in a
lease. No ledger names it: it never leads, and nobody waits for it.
"""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from mpbroker.config.broker import BrokerConfig
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore

STANDBYS: Final = "mpbroker/standby/"

Addresses = dict[str, tuple[str, int]]
"""Host and port that clients are told, by the name of the listener."""


class Registration(msgspec.Struct, frozen=True):
    """A standby. `beat` is another number in each object that it writes, `time_ms` is for people.

    A replica has what the owner of `generation` had written before `readable_ms`, by that owner's clock.
    """

    broker_id: int
    host: str
    rack: str
    listeners: Addresses
    time_ms: int
    beat: int
    is_replica: bool = False
    generation: int = 0
    readable_ms: int = 0

    @property
    def name(self) -> str:
        """Return the name of its object."""
        return registration_name(self.broker_id) + (".replica" if self.is_replica else "")


def registration_name(broker_id: int) -> str:
    return f"{STANDBYS}{broker_id}"


def register(store: ObjectStore, registration: Registration) -> None:
    """Write a standby's object. Raises StoreError."""
    body = msgspec.json.encode(registration)
    store.put(registration.name, [body], len(body))


def read_registrations(store: ObjectStore) -> list[Registration]:
    """Return the standbys that have an object; one that cannot be read is passed over. Raises StoreError."""
    found = []
    for one in store.list(STANDBYS):
        try:
            read = msgspec.json.decode(store.get(one.name), type=Registration)
        except (ObjectMissing, msgspec.DecodeError):
            continue
        if one.name == read.name:
            found.append(read)
    return found


def addresses_of(config: BrokerConfig) -> Addresses:
    """Return the addresses that other brokers tell clients about this one. `listeners` have their real ports.

    A listener on all addresses, which nothing is advertised for, is on those of the host's name.
    """
    advertised = {one.name: one for one in config.advertised_listeners or ()}
    found = (advertised.get(one.name, one) for one in config.listeners)
    host = socket.getfqdn()
    return {one.name: (host if one.is_wildcard else one.host, one.port) for one in found if not one.path}
