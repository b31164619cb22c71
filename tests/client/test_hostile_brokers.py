"""Whatever a broker sends: the client takes it or ends the connection; no other exception comes out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.client.build import resolve
from mpbroker.client.errors import AuthenticationFailed
from mpbroker.client.mechanisms import mechanism
from mpbroker.client.network_client import ClientRequest
from mpbroker.client.sasl import SaslAuthenticator
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from tests.client.fakes import Rig, api_versions
from tests.client.test_network_client import metadata

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


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 3))
def test_spoilt_responses(chance: random.Random, good: int) -> None:
    """ApiVersions, then metadata, then what was asked for; the first of them may be as they should."""
    rig = Rig()
    rig.metadata.track("t")
    rig.poll(10)
    rig.selector.accepts(rig.node.id)
    bodies = [api_versions(), metadata(1, leaders={0: 1}), m.ListGroupsResponse()]
    for step, body in enumerate(bodies):
        rig.poll()
        rig.poll()
        if rig.node.id not in rig.selector.open:
            break
        if step == 2:
            if not rig.client.is_ready(rig.node.id):
                break
            rig.client.send(ClientRequest(rig.node.id, m.ListGroupsRequest(), 1_000))
            rig.poll()
        if rig.selector.header(rig.node.id).api_key != KEYS[step]:
            # What was spoilt made it ask something again.
            break
        rig.selector.answers(rig.node.id, body)
        if step >= good:
            rig.selector.spoil(rig.node.id, lambda frame: spoilt(frame, chance))
        rig.poll()
    for _ in range(5):
        rig.poll(2_000)
    assert rig.client.in_flight_count() <= 1


def test_a_broker_without_metadata_is_none() -> None:
    rig = Rig()
    rig.metadata.track("t")
    rig.poll(10)
    rig.selector.accepts(rig.node.id)
    rig.poll()
    rig.poll()
    rig.selector.answers(rig.node.id, api_versions(metadata=(-1, -1)))
    rig.poll()
    rig.poll()
    failure = rig.client.failure(rig.node.id)
    assert failure is not None
    assert failure.reason == "the broker has no METADATA requests"


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("127.0.0.1", 70_000),
        ("127.0.0.1", -1),
        ("a\0b", 1),
        ("x" * 300, 1),
        ("", 0),
        (".", 1),
        ("unix:/run/a.sock", 0),
    ],
)
def test_places_that_are_none(host: str, port: int) -> None:
    with pytest.raises(OSError, match=r"."):
        resolve(host, port)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.sampled_from(["PLAIN", "SCRAM-SHA-256"]))
def test_frames_of_sasl(frames: list[bytes], name: str) -> None:
    client = SaslAuthenticator(mechanism(name, "user", "password"), "test")
    for frame in frames:
        client.next_request()
        with pytest.raises(AuthenticationFailed):
            client.receive(bytearray(frame))
        assert not client.complete
        client = SaslAuthenticator(mechanism(name, "user", "password"), "test")
