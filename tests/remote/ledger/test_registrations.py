"""Standbys announce themselves in the object store, and the owner reads them."""

from __future__ import annotations

from msgspec.structs import replace

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.remote.ledger.registrations import (
    STANDBYS,
    Registration,
    addresses_of,
    read_registrations,
    register,
)
from tests.support.fault_store import MemoryStore


def registration(broker_id: int, beat: int = 0) -> Registration:
    return Registration(broker_id, "host", "", {"PLAINTEXT": ("host", 9092)}, 5, beat)


def test_the_owner_reads_what_standbys_have_written_last() -> None:
    store = MemoryStore()
    for one in (registration(2), registration(3), registration(2, beat=1)):
        register(store, one)
    assert read_registrations(store) == [registration(2, beat=1), registration(3)]


def test_a_replica_and_a_standby_of_the_same_number_are_two() -> None:
    store, replica = MemoryStore(), replace(registration(2), is_replica=True, generation=3, readable_ms=7)
    for one in (registration(2), replica):
        register(store, one)
    assert read_registrations(store) == [registration(2), replica]


def test_what_is_no_registration_is_passed_over() -> None:
    store = MemoryStore()
    register(store, registration(2))
    store.put(f"{STANDBYS}7", [b"{"], 1)
    store.put(f"{STANDBYS}8", [store.get(f"{STANDBYS}2")], store.size(f"{STANDBYS}2") or 0)
    assert read_registrations(store) == [registration(2)]


def test_clients_are_told_what_is_advertised_else_where_the_broker_listens() -> None:
    own = Listener("PLAINTEXT", "PLAINTEXT", "10.0.0.7", 9092)
    config = BrokerConfig(
        listeners=(own, Listener("SSL", "SSL", "", 9093), Listener("LOCAL", "PLAINTEXT", "", 0, "/x")),
        advertised_listeners=(Listener("SSL", "SSL", "b.example", 443),),
    )
    assert addresses_of(config) == {"PLAINTEXT": ("10.0.0.7", 9092), "SSL": ("b.example", 443)}
