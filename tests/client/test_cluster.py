"""Questions to a cluster: who is asked, what is tried again, and what went wrong in words."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpbroker.client.backoff import ExponentialBackoff
from mpbroker.client.cluster import Cluster, CoordinatorType
from mpbroker.client.config import ClientConfig, parse_servers
from mpbroker.client.errors import AdvertisedUnreachable, ApiFailed, AuthenticationFailed, ConnectionLost
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.testing import Broker
from tests.client.server import HOST, Listener, settings
from tests.support.fake_broker import NODE_ID, FakeBroker

FAST = ClientConfig(retry_backoff_ms=1, retry_backoff_max_ms=1, reconnect_backoff_ms=1)
LOST = ConnectionLost("lost")
NOW = ExponentialBackoff(0, 0)


class Silent(Listener):
    """A connection that waits for max.connections."""

    def answer_all(self, _connection: object, stream: Any) -> None:
        stream.read()


@pytest.fixture
def nobody() -> Iterator[Cluster]:
    """A cluster that is asked nothing."""
    cluster = Cluster([(HOST, 1)], FAST)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker") / "kafka.sock"


@pytest.fixture(scope="module")
def broker(socket_path: Path) -> Iterator[Broker]:
    protocols = "PLAINTEXT:PLAINTEXT,LOCAL:PLAINTEXT"
    listeners = f"PLAINTEXT://{HOST}:0,LOCAL://unix:{socket_path}"
    with Broker({"listeners": listeners, "listener.security.protocol.map": protocols}) as running:
        yield running


def test_a_broker_is_asked_over_its_socket(broker: Broker, socket_path: Path) -> None:
    """Asked over a Unix-domain socket, a broker says of itself that it is there."""
    assert broker.listeners["LOCAL"] == f"unix:{socket_path}"
    with closing(Cluster(parse_servers(broker.listeners["LOCAL"]), ClientConfig())) as cluster:
        (itself,) = cluster.refresh().brokers
        assert (itself.host, itself.port) == (f"unix:{socket_path}", 0)
        answer = cluster.ask(itself.node_id, m.ListGroupsRequest())
        assert answer.error_code == 0
        assert cluster.coordinator(CoordinatorType.GROUP, "g") == itself.node_id


def test_a_coordinator_that_is_not_there_yet(broker: Broker) -> None:
    with closing(Cluster(parse_servers(broker.bootstrap_servers), FAST)) as cluster:
        with (
            broker.fault("FindCoordinator", error="COORDINATOR_NOT_AVAILABLE"),
            pytest.raises(ApiFailed, match=r"^group g: .*\(COORDINATOR_NOT_AVAILABLE\)$"),
        ):
            cluster.coordinator(CoordinatorType.GROUP, "g")
        assert cluster.coordinator(CoordinatorType.GROUP, "g") == 1


def test_a_connection_that_is_lost_under_a_request_is_made_anew(broker: Broker) -> None:
    with closing(Cluster(parse_servers(broker.bootstrap_servers), FAST)) as cluster:
        cluster.refresh()
        with broker.fault("ListGroups", close=True), pytest.raises(ConnectionLost):
            cluster.ask(1, m.ListGroupsRequest())
        assert cluster.ask(1, m.ListGroupsRequest()).error_code == 0


def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'nobody.sock'}"
    cluster = Cluster(parse_servers(address), ClientConfig(), "try another")
    with pytest.raises(ConnectionLost, match=f"cannot connect to {address}: No such file.*; try another$"):
        cluster.ask_any(m.ListGroupsRequest())
    cluster.close()


def test_a_node_that_nobody_knows(nobody: Cluster) -> None:
    with pytest.raises(ConnectionLost, match="no broker with id 7 is known"):
        nobody.ask(7, m.ListGroupsRequest())


def test_the_next_bootstrap_server_is_asked(tmp_path: Path) -> None:
    with Listener() as listener:
        servers = parse_servers(f"unix:{tmp_path / 'nobody.sock'},{listener.address}")
        cluster = Cluster(servers, FAST)
        assert isinstance(cluster.ask_any(m.ListGroupsRequest()), m.ListGroupsResponse)
        cluster.close()


def test_several_questions_at_once() -> None:
    with Listener() as listener:
        cluster = Cluster([(HOST, listener.port)], FAST)
        cluster.refresh()
        asked = [cluster.start(7, m.ListGroupsRequest()) for _ in range(3)]
        assert all(isinstance(cluster.finish(one), m.ListGroupsResponse) for one in asked)
        cluster.close()


def test_who_answers_nothing_in_time_is_not_told_of_another_protocol() -> None:
    with Silent() as listener:
        cluster = Cluster([(HOST, listener.port)], settings("PLAINTEXT", request_timeout_ms=300))
        with pytest.raises(ConnectionLost, match=r"is it no Kafka broker\?$|was not ready for a request"):
            cluster.ask_any(m.ListGroupsRequest())
        cluster.close()


@pytest.mark.parametrize(
    ("kind", "what"),
    [(CoordinatorType.GROUP, "group x: "), (CoordinatorType.TRANSACTION, "coordinator of x: ")],
)
def test_a_coordinator_that_is_refused(
    nobody: Cluster, monkeypatch: pytest.MonkeyPatch, kind: CoordinatorType, what: str
) -> None:
    refused = m.FindCoordinatorResponse.Coordinator(
        "x", -1, "", -1, ErrorCode.GROUP_AUTHORIZATION_FAILED, None
    )
    answers = iter([m.MetadataResponse(), m.FindCoordinatorResponse(coordinators=[refused])])
    monkeypatch.setattr(nobody, "ask_any", lambda *_: next(answers))
    with pytest.raises(ApiFailed, match=f"^{what}.*GROUP_AUTHORIZATION_FAILED"):
        nobody.coordinator(kind, "x")


def test_an_advertised_address_that_is_not_there_is_not_tried_again() -> None:
    """Neither while it is known, nor when it was forgotten for the bootstrap server."""
    with FakeBroker() as broker, socket.create_server((HOST, 0)) as gone:
        broker.advertised_port = gone.getsockname()[1]
        gone.close()
        config = msgspec.structs.replace(FAST, retries_advertised=False)
        with closing(Cluster([(HOST, broker.port)], config)) as cluster:
            cluster.refresh()
            for _ in range(2):
                with pytest.raises(
                    AdvertisedUnreachable, match=f"the broker at {HOST}:{broker.port} advertises"
                ):
                    cluster.patiently(lambda: cluster.ask(NODE_ID, m.ListGroupsRequest()))
            assert cluster.ask_any(m.InitProducerIdRequest()).producer_id, "the bootstrap server serves"
            with pytest.raises(AdvertisedUnreachable):
                cluster.ask(NODE_ID, m.ListGroupsRequest())


class Flaky:
    """Fails so many times, then answers with the number of the call."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = [*errors]
        self.calls: list[str] = []

    def __call__(self) -> int:
        self.calls.append("ask")
        if self.errors:
            raise self.errors.pop(0)
        return len(self.calls)

    def before_retry(self) -> None:
        self.calls.append("look")


def test_patience_with_errors_that_pass(nobody: Cluster) -> None:
    flaky = Flaky(LOST, ApiFailed("t", ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert nobody.patiently(flaky) == 3
    assert flaky.calls == ["ask"] * 3


@pytest.mark.parametrize(
    "final", [AuthenticationFailed("no"), ApiFailed("t", ErrorCode.TOPIC_AUTHORIZATION_FAILED), ValueError()]
)
def test_no_patience_with_the_others(nobody: Cluster, final: Exception) -> None:
    flaky = Flaky(final)
    with pytest.raises(type(final)):
        nobody.patiently(flaky)
    assert flaky.calls == ["ask"]


def test_patience_ends_with_the_time(nobody: Cluster) -> None:
    flaky = Flaky(*[LOST] * 3)
    with pytest.raises(ConnectionLost, match="lost"):
        nobody.patiently(flaky, timeout_ms=0)
    assert flaky.calls == ["ask"]


def test_patience_ends_with_the_tries(nobody: Cluster) -> None:
    flaky = Flaky(*[LOST] * 9)
    with pytest.raises(ConnectionLost, match="lost"):
        nobody.patiently(flaky, tries=3, timeout_ms=0, backoff=NOW)
    assert flaky.calls == ["ask"] * 3


def test_what_comes_before_a_retry_may_fail_as_well(nobody: Cluster) -> None:
    flaky, looks = Flaky(LOST), Flaky(LOST, LOST)
    assert nobody.patiently(flaky, before_retry=looks) == 2
    assert (flaky.calls, looks.calls) == (["ask"] * 2, ["ask"] * 3)
    ordered = Flaky(LOST, LOST)
    nobody.patiently(ordered, before_retry=ordered.before_retry)
    assert ordered.calls == ["ask", "look", "ask", "look", "ask"]


def test_a_rest_is_not_cut_short_by_what_happens_meanwhile(
    nobody: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms, waits = [0.0], []

    def poll(timeout_ms: float) -> None:
        waits.append(timeout_ms)
        now_ms[0] += timeout_ms / 2 if len(waits) == 1 else timeout_ms

    monkeypatch.setattr("mpbroker.client.cluster.monotonic_ms", lambda: now_ms[0])
    monkeypatch.setattr(nobody.client, "poll", poll)
    nobody.patiently(Flaky(LOST), backoff=ExponentialBackoff(100, 100, lambda _low, _high: 1.0))
    assert waits == [100, 50]
