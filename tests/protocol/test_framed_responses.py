"""Responses that somebody else has encoded: the frame is the same, and says how long the client pauses."""

from __future__ import annotations

import pytest

from mpbroker.handlers.apis import all_apis
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.codec import encode_bytes, encode_response
from mpbroker.protocol.headers import encode_response_frame, frame_response
from mpbroker.protocol.messages import RESPONSES

PAUSE_MS = 0x01020304
EVERY = [
    (key, version)
    for key, api in all_apis().items()
    if api.is_forwarded
    for version in range(api.oldest, api.latest + 1)
]


@pytest.mark.parametrize("pause_ms", [0, PAUSE_MS])
@pytest.mark.parametrize(("key", "version"), EVERY)
def test_a_framed_response_is_one_that_was_encoded_with_its_frame(
    key: ApiKey, version: int, pause_ms: int
) -> None:
    response = RESPONSES[key]()
    body = encode_bytes(encode_response(key, version, response))
    if hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = pause_ms
    whole = encode_bytes(encode_response_frame(key, version, 77, response))
    assert frame_response(key, version, 77, body, pause_ms) == whole


def test_some_of_them_pause_and_some_versions_cannot_say_so() -> None:
    told = {
        (key, version): PAUSE_MS.to_bytes(4)
        in frame_response(
            key, version, 77, encode_bytes(encode_response(key, version, RESPONSES[key]())), PAUSE_MS
        )
        for key, version in EVERY
    }
    assert told[ApiKey.HEARTBEAT, 4]
    assert not told[ApiKey.HEARTBEAT, 0]
    # An error code stands in front of it.
    assert told[ApiKey.OFFSET_DELETE, 0]
