"""The network client's contract under a clock and a selector of the test (Kafka: NetworkClientTest)."""

import socket

import pytest

from mpbroker.client.metadata import Node
from mpbroker.client.network_client import MAX_CORRELATION_ID, ClientRequest, ClientResponse
from mpbroker.client.sasl import MIN_RESERVED_CORRELATION_ID
from mpbroker.client.selector import ChannelState
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from tests.client.fakes import Rig, api_versions

TIMEOUT_MS = 30_000.0


def request(rig: Rig, body: m.Message | None = None, timeout_ms: float = TIMEOUT_MS) -> ClientRequest:
    return ClientRequest(rig.node.id, body or m.ListGroupsRequest(), timeout_ms)


def one(responses: list[ClientResponse]) -> ClientResponse:
    (response,) = responses
    return response


def test_connected_is_not_ready() -> None:
    """Nor is authenticated: both sides have to know each other's versions."""
    rig = Rig()
    assert not rig.client.ready(rig.node)
    assert rig.selector.open == {rig.node.id}
    rig.selector.accepts(rig.node.id, authenticated=False)
    rig.poll()
    assert rig.selector.sent == {}
    rig.selector.authenticated.add(rig.node.id)
    rig.poll()
    assert rig.selector.header(rig.node.id).api_key == ApiKey.API_VERSIONS
    assert not rig.client.ready(rig.node)
    rig.poll()
    rig.selector.answers(rig.node.id, api_versions())
    rig.poll()
    assert rig.client.ready(rig.node)
    with pytest.raises(RuntimeError, match="not ready"):
        Rig().client.send(request(rig))


def test_a_response_belongs_to_the_oldest_request() -> None:
    rig = Rig()
    rig.ready()
    seen: list[ClientResponse] = []
    asked = [
        ClientRequest(rig.node.id, body, TIMEOUT_MS, seen.append)
        for body in (m.ListGroupsRequest(), m.DescribeClusterRequest())
    ]
    for each in asked:
        rig.client.send(each)
        rig.poll()
    rig.selector.answers(rig.node.id, m.ListGroupsResponse(), nth=-2)
    assert one(rig.poll()).request is asked[0]
    rig.selector.answers(rig.node.id, m.DescribeClusterResponse())
    rig.poll()
    assert [each.request for each in seen] == asked
    assert isinstance(seen[1].body, m.DescribeClusterResponse)


def test_one_send_at_a_time_and_so_many_in_flight() -> None:
    rig = Rig(max_in_flight_requests_per_connection=3)
    rig.ready()
    rig.selector.sends_stall = True
    rig.client.send(request(rig))
    rig.poll()
    assert not rig.client.ready(rig.node), "the last send is not written yet"
    rig.selector.sends(rig.node.id)
    rig.poll()
    rig.selector.sends_stall = False
    for _ in range(2):
        assert rig.client.ready(rig.node)
        rig.client.send(request(rig))
        rig.poll()
    assert not rig.client.ready(rig.node), "three are in flight"
    rig.selector.answers(rig.node.id, m.ListGroupsResponse(), nth=-3)
    rig.poll()
    assert rig.client.ready(rig.node)
    assert rig.client.in_flight_count(rig.node.id) == rig.client.in_flight_count() == 2


def test_a_produce_without_acks_is_over_when_it_is_sent() -> None:
    rig = Rig()
    rig.ready()
    rig.client.send(request(rig, m.ProduceRequest(acks=0)))
    response = one(rig.poll())
    assert (response.body, response.disconnect) == (None, None)
    assert rig.client.in_flight_count() == 0
    # And the next response is for the next request.
    rig.client.send(request(rig))
    rig.poll()
    rig.selector.answers(rig.node.id, m.ListGroupsResponse())
    assert isinstance(one(rig.poll()).body, m.ListGroupsResponse)


def test_one_request_that_times_out_ends_all_of_its_connection() -> None:
    rig = Rig()
    rig.ready()
    impatient, patient = request(rig, timeout_ms=1_000), request(rig)
    for each in (patient, impatient):
        rig.client.send(each)
        rig.poll()
    responses = rig.poll(60_000)
    assert rig.selector.timeouts[-1] == 1_000, "the poll ends when there is something to do"
    assert [(each.request, each.timed_out) for each in responses] == [(patient, False), (impatient, True)]
    assert all(each.disconnect is not None for each in responses)
    assert rig.selector.open == set()


def test_the_time_of_a_throttle_does_not_count() -> None:
    rig = Rig()
    rig.ready()
    first, second = request(rig, timeout_ms=10_000), request(rig, timeout_ms=1_000)
    for each in (first, second):
        rig.client.send(each)
        rig.poll()
    rig.selector.answers(rig.node.id, m.ListGroupsResponse(throttle_time_ms=500), nth=-2)
    assert one(rig.poll()).request is first
    assert not rig.client.ready(rig.node), "the broker asked for peace"
    assert rig.poll(400) == []
    assert rig.poll(700) == []
    assert rig.poll(2_000)[0].timed_out
    assert sum(rig.selector.timeouts[-3:]) >= 1_500


@pytest.mark.parametrize(("highest", "waits"), [(1, False), (2, True)])
def test_a_throttle_binds_the_client_from_a_version_on(highest: int, waits: bool) -> None:
    """Before that the broker held the response back instead (KIP-219)."""
    rig = Rig()
    assert not rig.client.ready(rig.node)
    rig.selector.accepts(rig.node.id)
    rig.poll()
    rig.poll()
    rig.selector.answers(rig.node.id, api_versions(list_groups=(0, highest)))
    rig.poll()
    rig.client.send(request(rig))
    rig.poll()
    rig.selector.answers(rig.node.id, m.ListGroupsResponse(throttle_time_ms=50))
    rig.poll()
    assert rig.client.ready(rig.node) is not waits
    if waits:
        rig.poll(1_000)
        assert rig.client.ready(rig.node)


def test_another_ones_correlation_id_ends_the_connection() -> None:
    rig = Rig()
    rig.ready()
    for _ in range(2):
        rig.client.send(request(rig))
        rig.poll()
    rig.selector.answers(rig.node.id, m.ListGroupsResponse(), shift=7, nth=-2)
    responses = rig.poll()
    assert len(responses) == 2
    assert {each.disconnect.state for each in responses if each.disconnect} == {ChannelState.INVALID_RECEIVE}
    failure = rig.client.failure(rig.node.id)
    assert failure is not None
    assert "it answered request" in failure.reason
    assert rig.selector.open == set()


def test_a_response_that_nobody_asked_for_ends_the_connection() -> None:
    rig = Rig()
    rig.ready()
    rig.selector.answers(rig.node.id, api_versions())
    rig.poll()
    assert rig.selector.open == set()


def test_correlation_ids_leave_those_of_sasl_alone() -> None:
    assert MAX_CORRELATION_ID == MIN_RESERVED_CORRELATION_ID - 1
    rig = Rig()
    rig.ready()
    rig.client._correlation_id = MAX_CORRELATION_ID
    for expected in (MAX_CORRELATION_ID, 0):
        rig.client.send(request(rig))
        rig.poll()
        assert rig.selector.header(rig.node.id).correlation_id == expected


@pytest.mark.parametrize(
    ("listed", "asked"),
    [([(18, 0, 2)], [4, 2]), ([], [4, 0]), ([(18, 0, 4)], [4, 0]), ([(18, 0, 9)], [4, 0])],
)
def test_an_older_broker_is_asked_in_its_own_version(
    listed: list[tuple[int, int, int]], asked: list[int]
) -> None:
    rig = Rig()
    assert not rig.client.ready(rig.node)
    rig.selector.accepts(rig.node.id)
    rig.poll()
    rig.poll()
    api = m.ApiVersionsResponse.ApiVersion
    refusal = m.ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, [api(*spans) for spans in listed])
    rig.selector.answers(rig.node.id, refusal)
    rig.poll()
    rig.poll()
    sent = [rig.selector.header(rig.node.id, nth).api_version for nth in range(2)]
    assert sent == asked
    rig.selector.answers(rig.node.id, api_versions())
    rig.poll()
    assert rig.client.ready(rig.node)


def test_an_error_on_version_0_ends_the_connection() -> None:
    rig = Rig()
    assert not rig.client.ready(rig.node)
    rig.selector.accepts(rig.node.id)
    rig.poll()
    rig.poll()
    for _ in range(2):
        rig.selector.answers(rig.node.id, m.ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION))
        rig.poll()
        rig.poll()
    assert rig.selector.open == set()
    failure = rig.client.failure(rig.node.id)
    assert failure is not None
    assert "does not say what it speaks" in failure.reason


def test_a_request_that_the_broker_lacks_is_never_sent() -> None:
    rig = Rig()
    assert not rig.client.ready(rig.node)
    rig.selector.accepts(rig.node.id)
    rig.poll()
    rig.poll()
    rig.selector.answers(rig.node.id, api_versions(list_groups=(-1, -1), produce=(0, 2)))
    rig.poll()
    rig.client.send(request(rig))
    rig.client.send(request(rig, m.ProduceRequest()))
    missing, old = rig.poll(TIMEOUT_MS)
    assert missing.unsupported == "the broker has no LIST_GROUPS requests"
    assert old.unsupported is not None
    assert old.unsupported.startswith("the broker speaks PRODUCE v0 to v2")
    assert len(rig.selector.sent[rig.node.id]) == 1
    assert rig.selector.timeouts[-1] == 0


def test_what_was_in_flight_when_the_connection_broke() -> None:
    rig = Rig()
    rig.ready()
    rig.client.send(request(rig))
    rig.poll()
    rig.selector.hangs_up(rig.node.id)
    response = one(rig.poll())
    assert response.disconnect is not None
    assert response.disconnect.reason == "closed by the broker"
    assert not rig.client.ready(rig.node), "it rests first"
    assert rig.selector.open == set()
    assert rig.client.connection_delay_ms(rig.node.id) == rig.config.reconnect_backoff_ms


def test_rests_grow_and_a_success_ends_them() -> None:
    rig = Rig()
    delays = []
    for _ in range(7):
        rig.client.ready(rig.node)
        rig.selector.hangs_up(rig.node.id, ChannelState.NOT_CONNECTED)
        rig.poll()
        delays.append(rig.client.connection_delay_ms(rig.node.id))
        rig.clock.now_ms += delays[-1]
    assert delays == [50, 100, 200, 400, 800, 1000, 1000]
    rig.ready()
    assert rig.client.failure(rig.node.id) is None
    rig.selector.hangs_up(rig.node.id)
    rig.poll()
    assert rig.client.connection_delay_ms(rig.node.id) == 50


def test_connections_that_are_not_set_up_in_time() -> None:
    """The time grows from attempt to attempt, and counts until the handshakes are over."""
    rig = Rig()
    timeouts = []
    for attempt in range(4):
        rig.client.ready(rig.node)
        if attempt % 2:
            rig.selector.accepts(rig.node.id, authenticated=False)
            rig.poll()
        before = rig.clock.now_ms
        rig.poll(60_000)
        timeouts.append(rig.clock.now_ms - before)
        assert rig.selector.open == set()
        failure = rig.client.failure(rig.node.id)
        assert failure is not None
        assert "socket.connection.setup.timeout.ms" in failure.reason
        rig.clock.now_ms += 10_000
    assert timeouts == [10_000, 20_000, 30_000, 30_000]


def test_all_addresses_of_a_host_are_tried() -> None:
    rig = Rig(addresses=3)
    for _ in range(4):
        rig.client.ready(rig.node)
        rig.selector.hangs_up(rig.node.id, ChannelState.NOT_CONNECTED)
        rig.poll()
        rig.clock.now_ms += 1_000
    assert [address.sockaddr[0] for address in rig.selector.addresses] == ["here0", "here1", "here2", "here0"]
    assert rig.resolved == 1
    rig.ready()
    rig.selector.hangs_up(rig.node.id)
    rig.poll()
    rig.clock.now_ms += 1_000
    rig.client.ready(rig.node)
    assert rig.resolved == 2, "where a connection had been, the host may have moved"


def test_a_host_that_cannot_be_resolved_rests_like_any_failure() -> None:
    rig = Rig()
    rig.selector.refuses = socket.gaierror(-2, "Name or service not known")
    assert not rig.client.ready(rig.node)
    failure = rig.client.failure(rig.node.id)
    assert failure is not None
    assert failure.reason == "Name or service not known"
    assert rig.client.connection_delay_ms(rig.node.id) == 50


def test_failed_authentication_is_told_apart() -> None:
    rig = Rig()
    rig.client.ready(rig.node)
    rig.selector.hangs_up(rig.node.id, ChannelState.AUTHENTICATION_FAILED)
    rig.poll()
    failure = rig.client.failure(rig.node.id)
    assert failure is not None
    assert failure.state is ChannelState.AUTHENTICATION_FAILED
    assert rig.client.connection_delay_ms(rig.node.id) == 50


def test_dropping_a_connection() -> None:
    rig = Rig()
    rig.client.disconnect(rig.node.id, "nobody there yet")
    rig.ready()
    rig.client.send(request(rig))
    rig.client.disconnect(rig.node.id, "enough")
    assert one(rig.poll()).disconnect is not None
    assert rig.selector.open == set()


def metadata(*nodes: int, leaders: dict[int, int] | None = None) -> m.MetadataResponse:
    broker, topic = m.MetadataResponse.MetadataResponseBroker, m.MetadataResponse.MetadataResponseTopic
    part = m.MetadataResponse.MetadataResponsePartition
    parts = [part(partition_index=index, leader_id=node) for index, node in (leaders or {}).items()]
    return m.MetadataResponse(
        brokers=[broker(node, f"host{node}", 9092) for node in nodes],
        topics=[topic(name="t", partitions=parts)],
    )


def test_metadata_is_fetched_beside_the_requests_of_the_user() -> None:
    rig = Rig()
    rig.metadata.track("t")
    rig.poll(5_000)
    assert rig.selector.open == {rig.node.id}, "nobody else asked for it"
    rig.selector.accepts(rig.node.id)
    rig.poll()
    rig.poll()
    rig.selector.answers(rig.node.id, api_versions())
    rig.poll()
    rig.poll()
    assert rig.selector.header(rig.node.id).api_key == ApiKey.METADATA
    rig.selector.answers(rig.node.id, metadata(1, 2, leaders={0: 1, 1: -1}))
    assert rig.poll() == []
    assert rig.metadata.leader("t", 0) == Node(1, "host1", 9092)
    assert rig.metadata.leader("t", 1) is None
    # A partition without a leader: asked again, after the back-off.
    rig.ready(Node(1, "host1", 9092))
    asked = len(rig.selector.sent[1])
    rig.poll(10_000)
    assert rig.selector.timeouts[-1] <= 2 * rig.config.retry_backoff_ms
    rig.poll()
    assert rig.selector.header(1).api_key == ApiKey.METADATA
    assert len(rig.selector.sent[1]) == asked + 1
    rig.selector.answers(1, metadata(1, 2, leaders={0: 2, 1: 2}))
    rig.poll()
    assert rig.metadata.leader("t", 1) == Node(2, "host2", 9092)
    assert rig.metadata.time_to_next_update_ms(rig.clock()) == rig.config.metadata_max_age_ms


def test_without_a_node_of_the_cluster_it_begins_anew() -> None:
    """KIP-899: all brokers may have moved while nobody looked."""
    rig = Rig()
    rig.metadata.track("t")
    rig.metadata.updated(metadata(1, leaders={0: 1}), rig.clock())
    rig.metadata.request_update()
    rig.clock.now_ms += 1_000
    rig.poll()
    assert rig.selector.open == {1}
    rig.selector.hangs_up(1, ChannelState.NOT_CONNECTED)
    rig.poll()
    rig.clock.now_ms += 1
    rig.poll()
    assert [node.id for node in rig.metadata.nodes()] == [rig.node.id]


def test_the_least_loaded_node() -> None:
    rig = Rig(max_in_flight_requests_per_connection=5)
    rig.metadata.updated(metadata(1, 2, 3), rig.clock())
    first, second, third = rig.metadata.nodes()
    assert rig.client.least_loaded_node() == first
    rig.ready(second)
    assert rig.client.least_loaded_node() == second
    rig.ready(third)
    rig.client.send(ClientRequest(2, m.ListGroupsRequest(), TIMEOUT_MS))
    rig.poll()
    assert rig.client.least_loaded_node() == third
    rig.selector.hangs_up(2)
    rig.selector.hangs_up(3)
    rig.poll()
    assert rig.client.least_loaded_node() == first
