"""The native mute states against a model that is no table: three facts and what they allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpbroker.network.processor import mute
from mpbroker.network.processor.mute import MuteEvent, MuteState
from mpbroker.network.processor.muting import Muting


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
            # At most once for the one request, before its response; again and again by answers of a window.
            MuteEvent.THROTTLE_STARTED: not (self.pending and self.throttled),
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
            self.muted = True


@given(st.lists(st.sampled_from(MuteEvent), max_size=60))
def test_every_history_ends_where_the_model_is(events: list[MuteEvent]) -> None:
    channel, model = Muting(), Model()
    for event in events:
        before = channel.state
        assert channel.handle(event) == model.allows(event)
        if model.allows(event):
            model.handle(event)
        else:
            assert channel.state == before
        state = MuteState(channel.state)
        assert (state is not MuteState.NOT_MUTED) == model.muted
        assert ("PENDING" in state.name) == model.pending
        assert ("THROTTLED" in state.name) == model.throttled


@given(st.lists(st.sampled_from(MuteEvent), max_size=30))
def test_a_channel_can_always_be_brought_back(events: list[MuteEvent]) -> None:
    channel = Muting()
    for event in events:
        channel.handle(event)
    if "PENDING" in MuteState(channel.state).name:
        assert channel.handle(MuteEvent.RESPONSE_SENT)
    if channel.state == MuteState.THROTTLED:
        assert channel.handle(MuteEvent.UNMUTE)
        assert channel.state != MuteState.NOT_MUTED
        assert channel.handle(MuteEvent.THROTTLE_ENDED)
    assert channel.handle(MuteEvent.UNMUTE)
    assert channel.state == MuteState.NOT_MUTED


def test_the_native_table_is_this_one() -> None:
    table = mute.native_table()
    for state in MuteState:
        for event in MuteEvent:
            there = table[state * len(MuteEvent) + event]
            following = mute.TABLE[state][event]
            assert there == (mute.IMPOSSIBLE if following is None else following)
