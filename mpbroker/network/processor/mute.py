"""Kafka's mute states: a muted channel is not read (KafkaChannel.ChannelMuteState). One table, sans-I/O.

A channel is muted from the moment its one request is queued until the response is written and a throttle,
if the response announces one, has ended. Response and throttle do not wait for each other; the later of them
unmutes the channel.

    unthrottled         NOT_MUTED -MUTE-> MUTED -REQUEST_RECEIVED-> RESPONSE_PENDING -RESPONSE_SENT-> MUTED
                        -UNMUTE-> NOT_MUTED
    response first      RESPONSE_PENDING -THROTTLE_STARTED-> THROTTLED_AND_PENDING -RESPONSE_SENT-> THROTTLED
                        -THROTTLE_ENDED-> MUTED
    timer first         THROTTLED_AND_PENDING -THROTTLE_ENDED-> RESPONSE_PENDING -RESPONSE_SENT-> MUTED

Requests of a window (window_entries.pxd) do not mute the channel. A throttle in the answer to such a request
mutes the channel, which may be muted already for lack of memory. A second throttle extends the first:

    in a window         NOT_MUTED or MUTED -THROTTLE_STARTED-> THROTTLED -THROTTLE_STARTED-> THROTTLED
                        -THROTTLE_ENDED-> MUTED

MUTE and UNMUTE may come at any time. MUTE is ignored if the channel is muted already, UNMUTE if a response or
the end of a throttle is still awaited. An event without an entry in the table is impossible; if one comes,
the processor closes the channel. The native turn follows this table (`native_table`).
"""

from __future__ import annotations

from enum import IntEnum


class MuteState(IntEnum):
    NOT_MUTED = 0
    MUTED = 1  # nothing is awaited: the next UNMUTE succeeds
    RESPONSE_PENDING = 2
    THROTTLED = 3
    THROTTLED_AND_PENDING = 4


class MuteEvent(IntEnum):
    MUTE = 0
    UNMUTE = 1
    REQUEST_RECEIVED = 2
    RESPONSE_SENT = 3
    THROTTLE_STARTED = 4
    THROTTLE_ENDED = 5


IMPOSSIBLE = 255

_N, _M, _R, _T, _TR = MuteState
_X = None
# Columns: MUTE, UNMUTE, REQUEST_RECEIVED, RESPONSE_SENT, THROTTLE_STARTED, THROTTLE_ENDED.
TABLE: dict[MuteState, tuple[MuteState | None, ...]] = {
    _N: (_M, _N, _X, _X, _T, _X),
    _M: (_M, _N, _R, _X, _T, _X),
    _R: (_R, _R, _X, _M, _TR, _X),
    _T: (_T, _T, _X, _X, _T, _M),
    _TR: (_TR, _TR, _X, _T, _X, _R),
}


def native_table() -> bytes:
    """Return TABLE as bytes, row by row: the next state of each (state, event), IMPOSSIBLE for no entry."""
    return bytes(
        IMPOSSIBLE if (following := TABLE[state][event]) is None else following
        for state in MuteState
        for event in MuteEvent
    )
