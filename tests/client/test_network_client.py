"""The network client over sockets and a clock of the test (Kafka: NetworkClientTest, SelectorTest)."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections import deque
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mpbroker.client.addresses import Address
from mpbroker.client.config import ClientConfig
from mpbroker.client.connection import ClientRequest, ClientResponse
from mpbroker.client.errors import (
    AdvertisedUnreachable,
    AuthenticationFailed,
    ConnectionLost,
    InvalidReceive,
    RequestTimedOut,
)
from mpbroker.client.metadata import Node
from mpbroker.client.network_client import NetworkClient
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from tests.client.conftest import MakeRig
from tests.client.fakes import SASL, SMALL_BUFFER_BYTES, Rig, api_versions, large, metadata
from tests.support.forms import rounds


def one(responses: list[ClientResponse]) -> ClientResponse:
    (response,) = responses
    return response


def open_files() -> int:
    """Count this process's descriptors, without what earlier tests left to the collector."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_connected_is_not_ready(make_rig: MakeRig) -> None:
    """Nor is authenticated: both sides have to know each other's versions."""
    rig = make_rig(**SASL)
    assert not rig.client.ready(rig.node)
    assert rig.peer.is_open
    rig.authenticate()
    assert [rig.peer.header(nth).api_key for nth in range(4)] == [
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.API_VERSIONS,
    ]
    assert not rig.client.ready(rig.node)
    rig.answer(api_versions())
    assert rig.client.ready(rig.node)
    with pytest.raises(RuntimeError, match="not ready"):
        make_rig().send()


def test_responses_that_come_together_end_one_poll_after_the_other_without_a_wait(rig: Rig) -> None:
    rig.connect()
    asked = [rig.send() for _ in range(3)]
    for nth in (-3, -2, -1):
        rig.peer.answers(m.ListGroupsResponse(), nth=nth)
    before = rig.clock.now_ms
    ended = [response.request for _ in range(3) for response in rig.poll(60_000)]
    assert (ended, rig.clock.now_ms) == (asked, before)


def test_one_send_at_a_time_and_so_many_in_flight(make_rig: MakeRig) -> None:
    rig = make_rig(max_in_flight_requests_per_connection=3, send_buffer_bytes=SMALL_BUFFER_BYTES)
    rig.connect()
    rig.send(large())
    rig.poll()
    assert not rig.client.ready(rig.node), "the last send is not written yet"
    while len(rig.peer.requests) < 2:
        rig.poll()
    for _ in range(2):
        assert rig.client.ready(rig.node)
        rig.send()
    assert not rig.client.ready(rig.node), "three are in flight"
    rig.answer(m.ProduceResponse(), nth=-3)
    assert rig.client.ready(rig.node)
    assert rig.client.in_flight_count(rig.node.id) == rig.client.in_flight_count() == 2


def test_a_produce_without_acks_is_over_when_it_is_sent(rig: Rig) -> None:
    rig.connect()
    rig.send(m.ProduceRequest(acks=0))
    response = one(rig.poll())
    assert (response.body, response.error) == (None, None)
    assert rig.client.in_flight_count() == 0
    # And the next response is for the next request.
    rig.send()
    assert isinstance(one(rig.answer(m.ListGroupsResponse())).body, m.ListGroupsResponse)


def test_one_request_that_times_out_ends_all_of_its_connection(rig: Rig) -> None:
    rig.connect()
    patient, impatient = rig.send(), rig.send(timeout_ms=1_000)
    first, second = rig.poll(60_000)
    assert rig.epoll.waits_ms[-1] == 1_000, "the poll ends when there is something to do"
    assert (first.request, second.request) == (patient, impatient)
    assert isinstance(first.error, ConnectionLost)
    assert not isinstance(first.error, RequestTimedOut)
    assert str(second.error) == "here:9092 did not answer within 1 s (request.timeout.ms)"
    assert isinstance(second.error, RequestTimedOut)
    assert rig.failure().endswith("is the broker jammed, or at its max.connections?")
    assert not rig.peer.is_open


def test_who_has_never_answered_may_be_no_broker(rig: Rig) -> None:
    # Connected: its own first request, for versions, waits.
    rig.client.ready(rig.node)
    rig.poll()
    assert rig.peer.is_open
    rig.poll(60_000)
    assert rig.failure().endswith(
        "is the broker jammed, or at its max.connections? Or is it no Kafka broker?"
    )


def test_the_time_of_a_throttle_does_not_count(rig: Rig) -> None:
    rig.connect()
    first, _second = rig.send(timeout_ms=10_000), rig.send(timeout_ms=1_000)
    began = rig.clock.now_ms
    assert one(rig.answer(m.ListGroupsResponse(throttle_time_ms=500), nth=-2)).request is first
    assert not rig.client.ready(rig.node), "the broker asked for peace"
    assert rig.poll(400) == []
    assert rig.poll(700) == []
    assert isinstance(rig.poll(2_000)[0].error, RequestTimedOut)
    assert rig.clock.now_ms - began >= 1_500


@pytest.mark.parametrize(("highest", "waits"), [(1, False), (2, True)])
def test_a_throttle_binds_the_client_from_a_version_on(rig: Rig, highest: int, waits: bool) -> None:
    """Before that the broker held the response back instead (KIP-219)."""
    rig.connect(api_versions(list_groups=(0, highest)))
    rig.send()
    rig.answer(m.ListGroupsResponse(throttle_time_ms=50))
    assert rig.client.ready(rig.node) is not waits
    if waits:
        rig.poll(1_000)
        assert rig.epoll.waits_ms[-1] == 50
        assert rig.client.ready(rig.node)


def test_another_ones_correlation_id_ends_the_connection(rig: Rig) -> None:
    rig.connect()
    for _ in range(2):
        rig.send()
    responses = rig.answer(m.ListGroupsResponse(), shift=7, nth=-2)
    assert len(responses) == 2
    assert all(isinstance(each.error, InvalidReceive) for each in responses)
    assert rig.failure().startswith("cannot talk to here:9092: it answered request ")
    assert not rig.peer.is_open


def test_a_request_that_the_broker_lacks_is_never_sent(rig: Rig) -> None:
    rig.connect(api_versions(list_groups=(-1, -1), produce=(0, 2)))
    rig.send()
    rig.send(m.ProduceRequest())
    missing, old = rig.poll(60_000)
    assert str(missing.error) == "here:9092: the broker has no LIST_GROUPS requests"
    assert str(old.error).startswith("here:9092: the broker speaks PRODUCE v0 to v2")
    assert len(rig.peer.requests) == 1
    assert rig.epoll.waits_ms[-1] == 0


def test_what_was_in_flight_when_the_connection_broke(rig: Rig) -> None:
    rig.connect()
    rig.send()
    rig.peer.hangs_up()
    response = one(rig.poll())
    assert isinstance(response.error, ConnectionLost)
    assert str(response.error).startswith("the connection to here:9092 was lost: closed by the broker")
    assert not rig.client.ready(rig.node), "it rests first"
    assert rig.client.connection_delay_ms(rig.node.id) == rig.config.reconnect_backoff_ms


def test_a_lost_connection_ends_a_wait(rig: Rig) -> None:
    """Also if nothing was in flight on it: whoever waits for the node has to hear of it."""
    rig.connect()
    rig.peer.hangs_up()
    before = rig.clock.now_ms
    rig.poll(60_000)
    assert rig.failure()
    assert rig.clock.now_ms == before


def test_a_failed_send_is_told_by_the_next_poll(rig: Rig) -> None:
    rig.connect()
    rig.peer.hangs_up()
    request = rig.send()
    response = one(rig.poll(60_000))
    assert response.request is request
    assert isinstance(response.error, ConnectionLost)
    assert "was lost: Broken pipe" in str(response.error)


def test_rests_grow_and_a_success_ends_them(make_rig: MakeRig) -> None:
    rig = make_rig(**SASL)
    delays = []
    for _ in range(7):
        rig.client.ready(rig.node)
        rig.peer.hangs_up()
        rig.poll()
        delays.append(rig.client.connection_delay_ms(rig.node.id))
        rig.clock.now_ms += delays[-1]
    assert delays == [50, 100, 200, 400, 800, 1000, 1000]
    rig.client.ready(rig.node)
    rig.authenticate()
    rig.answer(api_versions())
    assert rig.client.failure(rig.node.id) is None
    rig.peer.hangs_up()
    rig.poll()
    assert rig.client.connection_delay_ms(rig.node.id) == 50


def test_handshakes_that_are_not_over_in_time(make_rig: MakeRig) -> None:
    """The time grows from attempt to attempt."""
    rig = make_rig(**SASL)
    timeouts = []
    for _ in range(4):
        rig.client.ready(rig.node)
        before = rig.clock.now_ms
        rig.poll(60_000)
        timeouts.append(rig.clock.now_ms - before)
        assert not rig.peer.is_open
        assert rig.failure() == (
            f"cannot connect to here:9092: the connection was not set up within {timeouts[-1] / 1000:g} s "
            "(socket.connection.setup.timeout.ms); does the broker run there?"
        )
        rig.clock.now_ms += 10_000
    assert timeouts == [10_000, 20_000, 30_000, 30_000]


def test_a_connection_that_nobody_accepts(make_rig: MakeRig) -> None:
    """A listener with a full queue drops what TCP begins with."""
    rig = make_rig()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        rig.peer.address = Address(socket.AF_INET, full.getsockname())
        with socket.create_connection(full.getsockname()):
            assert not rig.client.ready(rig.node)
            assert rig.failure() == "", "it is being tried"
            rig.poll(60_000)
    assert "was not set up within 10 s" in rig.failure()


def test_a_refused_connection(make_rig: MakeRig) -> None:
    rig = make_rig()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        rig.peer.address = Address(socket.AF_INET, gone.getsockname())
    assert not rig.client.ready(rig.node)
    while not rig.failure():
        rig.client.poll(0)
    assert rig.failure() == f"cannot connect to here:9092: {os.strerror(111)}; does the broker run there?"


@pytest.mark.parametrize("retries", [True, False])
def test_an_advertised_address_that_cannot_be_reached(make_rig: MakeRig, retries: bool) -> None:
    rig = make_rig(retries_advertised=retries)
    node = Node(5, "advertised", 9092)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        rig.peers(node)[0].address = Address(socket.AF_INET, gone.getsockname())
    assert not rig.client.ready(node)
    while not (failure := rig.client.failure(node.id)):
        rig.client.poll(0)
    assert str(failure).startswith("cannot connect to advertised:9092: ")
    assert str(failure).endswith(
        "; the broker at here:9092 advertises that address: set its advertised.listeners to an address "
        "that this host can reach"
    )
    assert isinstance(failure, AdvertisedUnreachable)
    assert failure.retriable == retries


def test_an_advertised_address_that_worked_once_is_lost_like_any_other(make_rig: MakeRig) -> None:
    rig = make_rig(retries_advertised=False)
    node = Node(5, "advertised", 9092)
    (peer,) = rig.peers(node)
    rig.client.ready(node)
    rig.poll()
    peer.answers(api_versions())
    rig.poll()
    assert rig.client.ready(node)
    peer.hangs_up()
    peer.close()
    rig.poll()
    rig.clock.now_ms += 1_000
    rig.client.ready(node)
    while not str(failure := rig.client.failure(node.id)).startswith("cannot connect to advertised:9092: "):
        rig.client.poll(0)
    assert failure is not None
    assert failure.retriable
    assert "advertised.listeners" in str(failure)


def test_an_advertised_host_is_not_given_up_before_its_last_address(make_rig: MakeRig) -> None:
    rig = make_rig(addresses=2, retries_advertised=False)
    node = Node(5, "here", 9093)
    for peer in rig.peers(node):
        peer.close()
    for is_final in (False, True):
        rig.client.ready(node)
        while rig.client.failure(node.id) is None or rig.client.connection_delay_ms(node.id) == 0:
            rig.client.poll(0)
        failure = rig.client.failure(node.id)
        assert isinstance(failure, AdvertisedUnreachable) == is_final
        rig.clock.now_ms += rig.client.connection_delay_ms(node.id)


def test_all_addresses_of_a_host_are_tried(make_rig: MakeRig) -> None:
    rig = make_rig(addresses=3, **SASL)
    tried = []
    for _ in range(4):
        rig.client.ready(rig.node)
        (connected,) = [peer for peer in rig.peers() if peer.is_open]
        tried.append(rig.peers().index(connected))
        connected.hangs_up()
        rig.poll()
        rig.clock.now_ms += 1_000
    assert tried == [0, 1, 2, 0]
    assert rig.resolved == 1


def test_a_host_is_resolved_again_after_it_was_connected(rig: Rig) -> None:
    """It may have moved."""
    rig.connect()
    rig.peer.hangs_up()
    rig.poll()
    rig.clock.now_ms += 1_000
    rig.client.ready(rig.node)
    assert rig.resolved == 2


def test_a_host_that_cannot_be_resolved_rests_like_any_failure(rig: Rig) -> None:
    rig.unknown_hosts = True
    before = open_files()
    assert not rig.client.ready(rig.node)
    assert (
        rig.failure() == "cannot connect to here:9092: Name or service not known; does the broker run there?"
    )
    assert rig.client.connection_delay_ms(rig.node.id) == 50
    assert open_files() <= before


def test_failed_authentication_is_told_apart(make_rig: MakeRig) -> None:
    rig = make_rig(**SASL)
    rig.client.ready(rig.node)
    rig.answer(api_versions())
    rig.peer.answers(m.SaslHandshakeResponse(error_code=33, mechanisms=["GSSAPI"]))
    rig.poll()
    assert isinstance(rig.client.failure(rig.node.id), AuthenticationFailed)
    assert "it does not offer PLAIN but GSSAPI" in rig.failure()
    assert rig.client.connection_delay_ms(rig.node.id) == 50


def test_connections_that_are_idle_are_closed(make_rig: MakeRig) -> None:
    rig = make_rig(connections_max_idle_ms=60_000)
    rig.metadata.updated(metadata(1, 2, 3), rig.clock())
    nodes = rig.metadata.nodes()
    for node in nodes:
        rig.connect(node=node)
    rig.clock.now_ms += 59_999
    rig.poll()
    assert all(rig.peers(node)[0].is_open for node in nodes)
    rig.send(node=nodes[1])
    rig.clock.now_ms += 1
    rig.poll()
    assert [rig.peers(node)[0].is_open for node in nodes] == [False, True, False]
    assert rig.failure(nodes[0]) == "the connection to host1:9092 was lost: idle for too long"


def test_metadata_is_fetched_beside_the_requests_of_the_user(rig: Rig) -> None:
    rig.metadata.track("t")
    rig.poll()
    assert rig.peer.is_open, "nobody else asked for it"
    rig.answer(api_versions())
    rig.poll()
    assert rig.peer.header().api_key == ApiKey.METADATA
    assert rig.answer(metadata(1, 2, leaders={0: 1, 1: -1})) == []
    first, second = Node(1, "host1", 9092), Node(2, "host2", 9092)
    assert rig.metadata.leader("t", 0) == first
    assert rig.metadata.leader("t", 1) is None
    # A partition without a leader: asked again, after the back-off.
    rig.connect(node=first)
    asked = len(rig.peers(first)[0].requests)
    rig.poll(10_000)
    assert rig.epoll.waits_ms[-1] <= 2 * rig.config.retry_backoff_ms
    rig.poll()
    assert rig.peers(first)[0].header().api_key == ApiKey.METADATA
    assert len(rig.peers(first)[0].requests) == asked + 1
    rig.peers(first)[0].answers(metadata(1, 2, leaders={0: 2, 1: 2}))
    rig.poll()
    assert rig.metadata.leader("t", 1) == second
    assert rig.metadata.time_to_next_update_ms(rig.clock()) == rig.config.metadata_max_age_ms


def test_without_a_node_of_the_cluster_it_begins_anew(rig: Rig) -> None:
    """KIP-899: all brokers may have moved while nobody looked."""
    rig.metadata.track("t")
    rig.metadata.updated(metadata(1, leaders={0: 1}), rig.clock())
    (moved,) = rig.metadata.nodes()
    rig.peers(moved)[0].close()
    rig.metadata.request_update()
    rig.clock.now_ms += 1_000
    rig.poll()
    assert rig.failure(moved)
    rig.poll()
    assert [node.id for node in rig.metadata.nodes()] == [rig.node.id]


def test_the_least_loaded_node(rig: Rig) -> None:
    rig.metadata.updated(metadata(1, 2, 3), rig.clock())
    first, second, third = rig.metadata.nodes()
    assert rig.client.least_loaded_node() == first
    rig.connect(node=second)
    assert rig.client.least_loaded_node() == second
    rig.connect(node=third)
    rig.send(node=second)
    assert rig.client.least_loaded_node() == third
    for node in (second, third):
        rig.peers(node)[0].hangs_up()
    rig.poll()
    rig.poll()
    assert rig.client.least_loaded_node() == first


def test_a_negative_timeout_is_refused(rig: Rig) -> None:
    with pytest.raises(ValueError, match="negative"):
        rig.client.poll(-1)


# A wait that nobody ends outlasts the test.
NO_END_MS = 3_600_000


def test_a_wakeup_from_another_thread() -> None:
    with closing(NetworkClient([("here", 1)], ClientConfig())) as client:
        waker = threading.Thread(target=client.wakeup)
        waker.start()
        client.poll(NO_END_MS)
        waker.join()
        # Woken up before it waits: the same.
        client.wakeup()
        client.wakeup()
        client.poll(NO_END_MS)
        # And not for ever after.
        began = time.monotonic()
        client.poll(50)
        assert time.monotonic() - began >= 0.04


def test_a_wakeup_of_a_closed_client_writes_to_no_file_of_others() -> None:
    client = NetworkClient([("here", 1)], ClientConfig())
    client.close()
    # It has the number of the descriptor that was closed.
    with closing(NetworkClient([("here", 1)], ClientConfig())) as other:
        client.wakeup()
        began = time.monotonic()
        other.poll(50)
        assert time.monotonic() - began >= 0.04


def test_closing_leaves_no_file_open() -> None:
    before = open_files()
    rig = Rig()
    rig.metadata.updated(metadata(*range(5)), rig.clock())
    for node in rig.metadata.nodes():
        rig.connect(node=node)
    assert not rig.client.ready(rig.node)
    rig.close()
    assert open_files() <= before


class OneNode(RuleBasedStateMachine):
    """Every request ends once; responses come in the order of the requests; never too many at once."""

    IN_FLIGHT_MAX = 3
    TIMEOUT_MS = 5_000.0

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(
            max_in_flight_requests_per_connection=self.IN_FLIGHT_MAX,
            send_buffer_bytes=SMALL_BUFFER_BYTES,
            **SASL,
        )
        self.outstanding: deque[ClientRequest] = deque()
        # Places of requests in what the peer got, as far as it has not answered them.
        self.unanswered: deque[int] = deque()
        self.stalled = False
        self.is_connected = False

    def teardown(self) -> None:
        self.rig.close()

    @property
    def node(self) -> int:
        return self.rig.node.id

    def poll(self, timeout_ms: float = 0) -> None:
        for response in self.rig.poll(timeout_ms):
            self.ended(response)
        if self.rig.client.failure(self.node) is not None and not self.rig.client.in_flight_count(self.node):
            self.is_connected = self.rig.client.is_ready(self.node)
        if not self.is_connected:
            self.unanswered.clear()
            self.stalled = False

    def ended(self, response: ClientResponse) -> None:
        assert response.request is self.outstanding.popleft(), "in order, and once"
        if response.error is None:
            assert isinstance(response.body, m.ListGroupsResponse | m.ProduceResponse)

    @precondition(lambda self: not self.is_connected)
    @rule(authenticates=st.booleans())
    def connect(self, authenticates: bool) -> None:
        connections = self.rig.peer.connections
        assert not self.rig.client.ready(self.rig.node)
        if not self.rig.peer.is_open or self.rig.peer.connections == connections:
            return
        if authenticates:
            self.rig.authenticate()
            assert not self.rig.client.is_ready(self.node), "versions are not known"
            self.rig.peer.answers(api_versions())
            self.poll()
            assert self.rig.client.is_ready(self.node)
            self.is_connected = True

    @precondition(lambda self: self.rig.client.is_ready(self.node))
    @rule(stalls=st.booleans())
    def send(self, stalls: bool) -> None:
        assert not self.stalled, "one send at a time"
        self.unanswered.append(len(self.rig.peer.requests))
        body = large() if stalls else m.ListGroupsRequest()
        self.outstanding.append(self.rig.send(body, self.TIMEOUT_MS))
        self.stalled = stalls

    @precondition(lambda self: self.stalled)
    @rule()
    def the_send_goes_out(self) -> None:
        self.stalled = False
        while len(self.rig.peer.requests) <= self.unanswered[-1]:
            self.poll()

    @precondition(lambda self: len(self.unanswered) > self.stalled)
    @rule(throttle_ms=st.sampled_from([0, 0, 200]))
    def answer(self, throttle_ms: int) -> None:
        nth = self.unanswered.popleft()
        self.rig.peer.answers(self.response_to(nth, throttle_ms), nth=nth)
        self.poll()
        assert not (throttle_ms and self.rig.client.is_ready(self.node))

    @precondition(lambda self: len(self.unanswered) > self.stalled)
    @rule()
    def answer_something_else(self) -> None:
        nth = self.unanswered.popleft()
        self.rig.peer.answers(self.response_to(nth, 0), nth=nth, shift=1)
        self.poll()
        assert not self.rig.peer.is_open
        assert not self.outstanding

    def response_to(self, nth: int, throttle_ms: int) -> m.Message:
        if self.rig.peer.header(nth).api_key == ApiKey.PRODUCE:
            return m.ProduceResponse(throttle_time_ms=throttle_ms)
        return m.ListGroupsResponse(throttle_time_ms=throttle_ms)

    @precondition(lambda self: self.rig.peer.is_open)
    @rule()
    def hang_up(self) -> None:
        self.rig.peer.hangs_up()
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
        assert self.rig.client.in_flight_count(self.node) <= self.IN_FLIGHT_MAX
        if len(self.outstanding) >= self.IN_FLIGHT_MAX or self.stalled:
            assert not self.rig.client.is_ready(self.node)


TestOneNode = OneNode.TestCase
TestOneNode.settings = settings(max_examples=rounds(60), stateful_step_count=40, deadline=None)
