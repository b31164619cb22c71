"""Standbys of a tier's world, and brokers that take its ledger over."""

from __future__ import annotations

from mpbroker.remote.ledger.entries import Writer, encode_entry, entry_name
from mpbroker.remote.ledger.events import Event, TakenOver
from mpbroker.remote.ledger.registrations import Registration, register
from tests.support.fault_store import FaultStore
from tests.support.ledger_parts import read
from tests.support.tier_world import CLUSTER, TierWorld

STANDBY = 2


def stand_by(world: TierWorld, broker_id: int = STANDBY, beat: int = 1) -> None:
    addresses = {"PLAINTEXT": ("there", 9092)}
    register(world.memory_store, Registration(broker_id, "there", "", addresses, 0, beat))
    world.renewing.look()


def serve_reads(world: TierWorld, broker_id: int, beat: int, generation: int, readable_ms: int) -> None:
    addresses = {"PLAINTEXT": ("there", 9092)}
    replica = True, generation, readable_ms
    register(world.memory_store, Registration(broker_id, "there", "a", addresses, 0, beat, *replica))
    world.renewing.look()


def faults(world: TierWorld) -> FaultStore:
    assert isinstance(world.store, FaultStore)
    return world.store


def take_over(world: TierWorld, broker_id: int) -> None:
    reader = read(world.memory_store)
    event: Event = TakenOver(CLUSTER, broker_id, "there", cut_id=bytes(16), by_standby=broker_id != 1)
    body = encode_entry(Writer(2, "other", "start"), reader.seq + 1, reader.digest, 0, [event])
    assert world.memory_store.create(entry_name(reader.seq + 1), body)
