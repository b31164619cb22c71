"""Whatever happens in whatever order: the client's promises hold (a model of one node, and of framing)."""

from __future__ import annotations

import struct
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.framing import Receive
from mpbroker.client.network_client import ClientRequest, ClientResponse
from mpbroker.client.selector import ChannelState
from mpbroker.protocol import messages as m
from tests.client.fakes import Rig, api_versions, middle

IN_FLIGHT_MAX = 3
TIMEOUT_MS = 5_000.0


class OneNode(RuleBasedStateMachine):
    """Every request ends once; responses come in the order of the requests; never too many at once."""

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(max_in_flight_requests_per_connection=IN_FLIGHT_MAX)
        self.node = self.rig.node.id
        self.outstanding: deque[ClientRequest] = deque()
        self.unanswered: deque[int] = deque()
        self.stalled = False
        self.versions_asked = False

    def poll(self, timeout_ms: float = 0) -> None:
        for response in self.rig.poll(timeout_ms):
            self.ended(response)
        if self.node not in self.rig.selector.open:
            self.unanswered.clear()
            self.stalled = self.versions_asked = False
            self.rig.selector.sent.pop(self.node, None)

    def ended(self, response: ClientResponse) -> None:
        assert response.request is self.outstanding.popleft(), "in order, and once"
        if response.disconnect is None:
            assert isinstance(response.body, m.ListGroupsResponse)
        if response.timed_out:
            assert response.disconnect is not None

    @rule()
    def connect(self) -> None:
        was_open = self.node in self.rig.selector.open
        ready = self.rig.client.ready(self.rig.node)
        assert not ready or was_open
        if not was_open and self.node in self.rig.selector.open:
            self.rig.selector.accepts(self.node, authenticated=False)
            self.poll()

    @precondition(lambda self: self.node in self.rig.selector.open)
    @rule()
    def authenticate(self) -> None:
        self.rig.selector.authenticated.add(self.node)
        self.poll()
        if self.rig.selector.sent.get(self.node) and not self.versions_asked:
            self.versions_asked = True
            self.poll()
            self.rig.selector.answers(self.node, api_versions(), nth=0)
            self.poll()

    @precondition(lambda self: self.rig.client.is_ready(self.node))
    @rule(stalls=st.booleans())
    def send(self, stalls: bool) -> None:
        assert not self.stalled, "one send at a time"
        self.rig.selector.sends_stall = stalls
        request = ClientRequest(self.node, m.ListGroupsRequest(), TIMEOUT_MS)
        self.rig.client.send(request)
        self.outstanding.append(request)
        self.stalled = stalls
        self.unanswered.append(len(self.rig.selector.sent[self.node]) - 1)
        self.poll()

    @precondition(lambda self: self.stalled)
    @rule()
    def the_send_goes_out(self) -> None:
        self.stalled = False
        self.rig.selector.sends(self.node)
        self.poll()

    @precondition(lambda self: len(self.unanswered) > self.stalled)
    @rule(throttle_ms=st.sampled_from([0, 0, 200]))
    def answer(self, throttle_ms: int) -> None:
        nth = self.unanswered.popleft()
        self.rig.selector.answers(self.node, m.ListGroupsResponse(throttle_time_ms=throttle_ms), nth=nth)
        self.poll()
        assert not (throttle_ms and self.rig.client.is_ready(self.node))

    @precondition(lambda self: len(self.unanswered) > self.stalled)
    @rule()
    def answer_something_else(self) -> None:
        nth = self.unanswered.popleft()
        self.rig.selector.answers(self.node, m.ListGroupsResponse(), nth=nth, shift=1)
        self.poll()
        assert self.node not in self.rig.selector.open
        assert not self.outstanding

    @precondition(lambda self: self.node in self.rig.selector.open)
    @rule(state=st.sampled_from([ChannelState.READY, ChannelState.FAILED_SEND, ChannelState.EXPIRED]))
    def hang_up(self, state: ChannelState) -> None:
        self.rig.selector.hangs_up(self.node, state)
        self.poll()
        assert not self.outstanding, "what was in flight has failed"
        assert not self.rig.client.is_ready(self.node)

    @rule(ms=st.sampled_from([1, 40, 300, 6_000]))
    def time_passes(self, ms: int) -> None:
        until = self.rig.clock.now_ms + ms
        while self.rig.clock.now_ms < until:
            before = self.rig.clock.now_ms
            self.poll(until - before)
            assert self.rig.clock.now_ms > before, "a poll without anything to do must not spin"

    @invariant()
    def never_too_many(self) -> None:
        assert self.rig.client.in_flight_count(self.node) <= IN_FLIGHT_MAX
        if len(self.outstanding) >= IN_FLIGHT_MAX or self.stalled:
            assert not self.rig.client.is_ready(self.node)


TestOneNode = OneNode.TestCase
TestOneNode.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_frames_come_out_as_they_went_in(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)
    receive, position, frames = Receive(100), 0, []
    while position < len(stream):
        room = receive.room()
        count = data.draw(st.integers(1, min(len(room), len(stream) - position)))
        room[:count] = stream[position : position + count]
        position += count
        if (frame := receive.received(count)) is not None:
            frames.append(bytes(frame))
            receive = Receive(100)
    assert frames == payloads


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 50), st.floats(0.8, 1.2))
def test_a_rest_is_never_longer_than_allowed(initial: int, most: int, attempts: int, factor: float) -> None:
    backoff = ExponentialBackoff(initial, most, lambda _low, _high: factor)
    assert 0 <= backoff.after(attempts) <= most
    steady = ExponentialBackoff(initial, most, middle)
    assert steady.after(attempts) <= steady.after(attempts + 1)
