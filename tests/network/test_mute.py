"""The mute states against a model that is not a table: three facts about a channel, and what they allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.network import mute
from mpbroker.network.mute import IllegalMuteEvent, MuteEvent, MuteState, Muting


class Model:
    """A channel as prose has it: muted or not; a response is awaited or not; a throttle lasts or not."""

    def __init__(self) -> None:
        self.muted = self.pending = self.throttled = False

    def allows(self, event: MuteEvent) -> bool:
        awaited = self.pending or self.throttled
        return {
            MuteEvent.MUTE: True,
            MuteEvent.UNMUTE: True,
            MuteEvent.REQUEST_RECEIVED: self.muted and not awaited,
            MuteEvent.RESPONSE_SENT: self.pending,
            # At most once per request, and before its response.
            MuteEvent.THROTTLE_STARTED: self.pending and not self.throttled,
            MuteEvent.THROTTLE_ENDED: self.throttled,
        }[event]

    def handle(self, event: MuteEvent) -> None:
        if event == MuteEvent.MUTE:
            self.muted = True
        elif event == MuteEvent.UNMUTE:
            self.muted = self.pending or self.throttled
        elif event in (MuteEvent.REQUEST_RECEIVED, MuteEvent.RESPONSE_SENT):
            self.pending = event == MuteEvent.REQUEST_RECEIVED
        else:
            self.throttled = event == MuteEvent.THROTTLE_STARTED


@given(st.lists(st.sampled_from(MuteEvent), max_size=60))
def test_every_history_ends_where_the_model_is(events: list[MuteEvent]) -> None:
    channel, model = Muting(), Model()
    for event in events:
        before = channel.state
        if model.allows(event):
            channel.handle(event)
            model.handle(event)
        else:
            with pytest.raises(IllegalMuteEvent):
                channel.handle(event)
            assert channel.state == before
        assert channel.is_muted == model.muted
        assert ("PENDING" in channel.state.name) == model.pending
        assert ("THROTTLED" in channel.state.name) == model.throttled


@given(st.lists(st.sampled_from(MuteEvent), max_size=30))
def test_a_channel_can_always_be_brought_back(events: list[MuteEvent]) -> None:
    channel = Muting()
    for event in events:
        if mute.TABLE[channel.state][event] is not None:
            channel.handle(event)
    if "PENDING" in channel.state.name:
        channel.handle(MuteEvent.RESPONSE_SENT)
    if channel.state == MuteState.THROTTLED:
        assert not channel.maybe_unmute()
        channel.handle(MuteEvent.THROTTLE_ENDED)
    assert channel.maybe_unmute()
    assert channel.state == MuteState.NOT_MUTED


def test_the_native_table_is_this_one() -> None:
    table = mute.native_table()
    for state in MuteState:
        for event in MuteEvent:
            there = table[state * len(MuteEvent) + event]
            following = mute.TABLE[state][event]
            assert there == (mute.IMPOSSIBLE if following is None else following)
