"""Frames come out as they went in; what is none is named."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.client.errors import InvalidReceive
from mpbroker.client.framing import Receive

FRAME_MAX = 1 << 24


def take(receive: Receive, data: bytes) -> bytearray | None:
    room = receive.room()
    room[: len(data)] = data
    return receive.received(len(data))


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_frames_come_out_as_they_went_in(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)
    receive, position, frames = Receive(100), 0, []
    while position < len(stream):
        count = data.draw(st.integers(1, min(len(receive.room()), len(stream) - position)))
        frame = take(receive, stream[position : position + count])
        position += count
        if frame is not None:
            frames.append(bytes(frame))
            receive = Receive(100)
    assert frames == payloads


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack(">i", -1), "a response of -1 bytes"),
        (struct.pack(">i", FRAME_MAX + 1), "a response of 16777217 bytes, at most 16777216"),
        (b"HTTP", "it speaks HTTP"),
        (b"SSH-", "it speaks SSH"),
        (bytes.fromhex("15030300"), "it speaks TLS: set security.protocol to SSL"),
    ],
)
def test_a_first_frame_that_is_none(sent: bytes, reason: str) -> None:
    with pytest.raises(InvalidReceive, match=reason):
        take(Receive(FRAME_MAX, first=True), sent)


def test_only_a_first_frame_is_taken_for_another_protocol() -> None:
    with pytest.raises(InvalidReceive, match="it does not speak Kafka's protocol"):
        take(Receive(FRAME_MAX), b"HTTP")
