"""What processors are told of quotas: whether anybody's request time is limited."""

from __future__ import annotations

from mpbroker.coordinator.bulletins.announcer import Announcer
from mpbroker.coordinator.metadata.state import MetadataState
from mpbroker.ipc.bulletin import BulletinPublisher
from mpbroker.ipc.topology import SharedMemory
from mpbroker.quotas.entities import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, entity_of

ANN, BOB = entity_of([("user", "ann")]), entity_of([("user", "bob")])


def announcer(memory: SharedMemory) -> Announcer:
    publisher = BulletinPublisher(memory.private.block("bulletin"), memory.words("bulletin_acks"), list)
    return Announcer(publisher, memory.words("request_quotas"), "cluster", 1)


def test_processors_hear_of_the_first_and_the_last_quota_on_time(memory: SharedMemory) -> None:
    state, told = MetadataState(), announcer(memory)

    def after(entity: tuple[tuple[str, str | None], ...], key: str, value: float | None) -> int:
        state.quotas.change(entity, key, value)
        told.quotas_changed([entity])
        assert told.publish(state)
        return memory.words("request_quotas").load(0)

    assert told.publish(state)
    assert memory.words("request_quotas").load(0) == 0
    assert after(ANN, PRODUCER_BYTE_RATE, 5.0) == 0
    assert after(ANN, REQUEST_PERCENTAGE, 5.0) == 1
    assert after(BOB, REQUEST_PERCENTAGE, 5.0) == 1
    assert after(ANN, REQUEST_PERCENTAGE, None) == 1
    assert after(BOB, REQUEST_PERCENTAGE, None) == 0


def test_a_successor_tells_it_anew(memory: SharedMemory) -> None:
    """Check that a successor announces everything, whatever its predecessor had announced."""
    state = MetadataState()
    state.quotas.change(ANN, REQUEST_PERCENTAGE, 5.0)
    for before, after in ((0, 1), (1, 0)):
        memory.words("request_quotas").store(0, before)
        assert announcer(memory).publish(state)
        assert memory.words("request_quotas").load(0) == after
        state.quotas.change(ANN, REQUEST_PERCENTAGE, None)
