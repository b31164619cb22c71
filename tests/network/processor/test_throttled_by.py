"""How many connections each quota keeps muted (Kafka: queue-size of Produce, Fetch, Request, mutations)."""

from __future__ import annotations

import socket
import struct

import pytest

from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.slots import SlotKind, ThrottledBy, pack_reply
from tests.support.processor_rig import Rig, frame

METADATA = 3
COUNTERS = {by: Counter(Counter.COUNT_THROTTLED_PRODUCE + by) for by in ThrottledBy}


def counted(rig: Rig) -> list[int]:
    return [rig.counter(counter) for counter in COUNTERS.values()]


def test_the_names_are_in_the_same_order() -> None:
    for by, counter in COUNTERS.items():
        assert by.name.removeprefix("THROTTLED_BY_") == counter.name.removeprefix("COUNT_THROTTLED_")


@pytest.mark.parametrize("by", list(ThrottledBy))
@pytest.mark.parametrize("ending", ["time", "client"])
def test_a_muted_connection_counts_until_it_is_read_again_or_closed(
    rig: Rig, by: ThrottledBy, ending: str
) -> None:
    client = rig.connect()
    request = rig.ask(client, frame(METADATA, 1, 1) + frame(METADATA, 1, 2))
    expected = [int(by == each) for each in ThrottledBy]
    reply = pack_reply(
        SlotKind.NOOP,
        topology.handler(0),
        request.channel,
        request.connection,
        throttle_ms=40 if ending == "time" else 60_000,
        request=request.request,
        throttled_by=by,
    )
    rig.push(0, reply)
    rig.turn.turn(0)
    assert counted(rig) == expected
    if ending == "client":
        # With a reset: a muted connection that merely ends is noticed when it is read again.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    for _ in range(20):
        rig.turn.turn(100)
        if counted(rig) == [0] * 4:
            break
    assert counted(rig) == [0] * 4
    assert len(rig.requests_taken()) == (1 if ending == "time" else 0)
