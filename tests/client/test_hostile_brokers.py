"""Whatever a broker sends: the client takes it or ends the connection; no other exception comes out."""

from __future__ import annotations

import random
from contextlib import closing

from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from tests.client.fakes import Rig, api_versions, metadata
from tests.support.forms import rounds

KEYS = (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.LIST_GROUPS)


def spoilt(frame: bytearray, chance: random.Random) -> bytearray:
    """Cut, lengthened, or with other bits."""
    for _ in range(chance.randrange(1, 5)):
        match chance.randrange(3):
            case 0 if frame:
                frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
            case 1:
                del frame[chance.randrange(len(frame) + 1) :]
            case _:
                frame += chance.randbytes(chance.randrange(8))
    return frame


@settings(max_examples=rounds(150), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_spoilt_responses(chance: random.Random, good: int) -> None:
    """ApiVersions, then metadata, then what was asked for; the first of them may be as they should."""
    with closing(Rig()) as rig:
        rig.metadata.track("t")
        rig.poll(10)
        bodies = [api_versions(), metadata(1, leaders={0: 1}), m.ListGroupsResponse()]
        for step, body in enumerate(bodies):
            rig.poll()
            if step == 2:
                if not rig.client.is_ready(rig.node.id):
                    break
                rig.send(timeout_ms=1_000)
            if not rig.peer.is_open or rig.peer.header().api_key != KEYS[step]:
                # What was spoilt made it end the connection, or ask something again.
                break
            change = (lambda frame: spoilt(frame, chance)) if step >= good else bytearray
            rig.answer(body, change=change)
        for _ in range(5):
            rig.poll(2_000)
        assert rig.client.in_flight_count() <= 1


def test_a_broker_without_metadata_is_none(rig: Rig) -> None:
    rig.metadata.track("t")
    rig.poll(10)
    rig.answer(api_versions(metadata=(-1, -1)))
    rig.poll()
    assert rig.failure() == "cannot talk to here:9092: the broker has no METADATA requests"
    assert not rig.peer.is_open
