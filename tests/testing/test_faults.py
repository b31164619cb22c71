"""Faults on demand as clients see them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig, parse_servers
from mpbroker.client.errors import ConnectionLost
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.testing.broker import Broker
from mpbroker.testing.errors import BrokerFailed
from tests.support.polling import PATIENCE_S, until

HANDLERS = 2
DELAY_MS = 100


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"num.io.threads": HANDLERS}) as running:
        yield running


def cluster(broker: Broker, client_id: str = "test") -> Cluster:
    return Cluster(parse_servers(broker.bootstrap_servers), ClientConfig(client_id=client_id))


def ask(broker: Broker, request: m.Message, client_id: str = "test") -> Any:
    with closing(cluster(broker, client_id)) as asked:
        return asked.ask_any(request)


def append(broker: Broker, topic: str, value: bytes) -> int:
    """Append by a client that tries again; return the offset."""
    found: list[int] = []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "retry.backoff.ms": 1, "linger.ms": 0}
    )

    def delivered(error: object, message: Any) -> None:
        assert error is None
        found.append(message.offset())

    producer.produce(topic, value, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    return found[0]


@pytest.mark.parametrize(
    "what",
    [{"error": "NOT_LEADER_OR_FOLLOWER"}, {"close": True}, {"delay_ms": 1}],
    ids=["error", "close", "delay"],
)
def test_a_producer_tries_again(broker: Broker, what: dict[str, Any]) -> None:
    """No record is lost or appended twice by it, and the turn serves produces again when it is over."""
    with broker.topic() as topic:
        assert append(broker, topic, b"before") == 0
        with broker.fault("Produce", times=2, **what) as fault:
            assert append(broker, topic, b"first") == 1
            assert append(broker, topic, b"second") == 2
            assert fault.hits == 2
        assert append(broker, topic, b"after") == 3
        assert fault.hits == 2


def test_an_error_code_is_that_of_the_api(broker: Broker) -> None:
    with broker.fault("ListGroups", error="COORDINATOR_LOAD_IN_PROGRESS") as fault:
        for _ in range(2):
            assert ask(broker, m.ListGroupsRequest()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert fault.hits == 2
    assert ask(broker, m.ListGroupsRequest()).error_code == 0


def test_a_request_waits(broker: Broker) -> None:
    with closing(cluster(broker)) as asked:
        asked.ask_any(m.ListGroupsRequest())
        with broker.fault("ListGroups", delay_ms=DELAY_MS):
            begun = time.monotonic()
            assert asked.ask_any(m.ListGroupsRequest()).error_code == 0
            assert time.monotonic() - begun >= DELAY_MS / 1000


def test_a_request_that_waits_keeps_no_other_one_waiting(broker: Broker) -> None:
    """That of an hour is answered when its fault is over for it: at the stop, if not before."""
    with closing(cluster(broker, "slow")) as slow:
        node = slow.refresh().controller_id
        with broker.fault("ListGroups", delay_ms=3_600_000, client_id="slow") as fault:
            slow.start(node, m.ListGroupsRequest())
            until(lambda: fault.hits == 1, "the request waits")
            for _ in range(2 * HANDLERS):
                assert ask(broker, m.ListGroupsRequest(), "quick").error_code == 0
            assert fault.hits == 1


def test_a_fault_of_api_versions_is_met_before_a_connection_is_used(broker: Broker) -> None:
    with broker.fault("ApiVersions", close=True) as fault:
        with pytest.raises(ConnectionLost):
            ask(broker, m.ListGroupsRequest())
        assert fault.hits > 0
    assert ask(broker, m.ListGroupsRequest()).error_code == 0


def test_handlers_count_together(broker: Broker) -> None:
    with broker.fault("ListGroups", error="NOT_COORDINATOR", times=5) as fault:
        found = [ask(broker, m.ListGroupsRequest()).error_code for _ in range(8)]
        assert found == [ErrorCode.NOT_COORDINATOR] * 5 + [0] * 3
        assert fault.hits == 5


def test_successors_of_killed_processes_have_the_faults(broker: Broker) -> None:
    def processes() -> dict[str, dict[str, Any]]:
        found: Any = broker.control("status")["processes"]
        return {one["name"]: one for one in found}

    with broker.fault("ListGroups", error="NOT_COORDINATOR"):
        before = processes()
        names = [name for name in before if name.startswith("handler")]
        assert len(names) == HANDLERS
        for name in names:
            os.kill(before[name]["pid"], signal.SIGKILL)
        until(
            lambda: all(
                (now := processes()[name])["incarnation"] == 2 and now["state"] == "running" for name in names
            ),
            "all handlers are replaced",
        )
        assert ask(broker, m.ListGroupsRequest()).error_code == ErrorCode.NOT_COORDINATOR
    assert ask(broker, m.ListGroupsRequest()).error_code == 0


def test_all_are_cleared(broker: Broker) -> None:
    first = broker.fault("ListGroups", error="NOT_COORDINATOR")
    second = broker.fault("Metadata", close=True)
    assert ask(broker, m.ListGroupsRequest()).error_code == ErrorCode.NOT_COORDINATOR
    broker.clear_faults()
    assert ask(broker, m.ListGroupsRequest()).error_code == 0
    first.clear()
    assert (first.hits, second.hits) == (1, 0)


def test_what_cannot_be_is_refused(broker: Broker) -> None:
    with pytest.raises(BrokerFailed, match="SASL_HANDSHAKE is answered before the login"):
        broker.fault("SaslHandshake", close=True)
    with pytest.raises(
        ValueError, match=r"fault\('Produce'\) has no effect: give error=.*close=True, delay_ms"
    ):
        broker.fault("Produce", times=1)
    assert ask(broker, m.ListGroupsRequest()).error_code == 0


def test_a_restart_forgets_them() -> None:
    with Broker() as broker:
        fault = broker.fault("ListGroups", error="NOT_COORDINATOR")
        assert ask(broker, m.ListGroupsRequest()).error_code == ErrorCode.NOT_COORDINATOR
        broker.restart()
        assert ask(broker, m.ListGroupsRequest()).error_code == 0
        assert fault.hits == 1
        fault.clear()
