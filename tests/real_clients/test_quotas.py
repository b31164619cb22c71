"""Client quotas over sockets: set by Kafka's own tool, felt by clients. The same against Apache Kafka.

Pauses are judged by what the broker says, against the formula of Kafka's Rate for the same load. What each
quota limits, and who shares it, is in `tests/quotas`.
"""

from __future__ import annotations

import contextlib
import re
import time

from confluent_kafka import Producer, ThrottleEvent

from ops.bench.brokers import Broker
from tests.support.client_tools import eventually, kafka_tool
from tests.support.quota_client import (
    PRODUCE,
    TIMEOUT_S,
    alter,
    assert_pause,
    described,
    peer,
    produce_request,
    produced,
)
from tests.support.real_brokers import TopicMaker, create_topic, stop_cleanly

CONFIGS = "kafka.admin.ConfigCommand"


def only(broker: Broker, client: str, **values: float) -> None:
    """A client id that no other test uses, and its quotas."""
    alter(broker, [("client-id", client)], **values)


# ---- Kafka's tool


CLIENT = ("--entity-type", "clients", "--entity-name", "by-java")
PAIR = ("--entity-type", "users", "--entity-name", "al ice", "--entity-type", "clients", "--entity-default")
EACH_IP = ("--entity-type", "ips", "--entity-default")


def test_kafkas_tool_sets_lists_and_deletes_quotas(broker: Broker) -> None:
    def tool(*arguments: str) -> str:
        return kafka_tool(CONFIGS, "--bootstrap-server", broker.bootstrap, *arguments)

    given = {
        CLIENT: {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
        PAIR: {"consumer_byte_rate": 2048.0},
        EACH_IP: {"connection_creation_rate": 5000.0},
    }
    for whose, values in given.items():
        tool("--alter", "--add-config", ",".join(f"{key}={value}" for key, value in values.items()), *whose)
    entities = [{("client-id", "by-java")}, {("user", "al ice"), ("client-id", None)}, {("ip", None)}]
    quotas = described(broker)
    assert [quotas[frozenset(entity)] for entity in entities] == list(given.values())

    printed = tool("--describe", *CLIENT)
    assert re.search(r"client-id 'by-java' are .*producer_byte_rate=1024\.0", printed)
    assert "consumer_byte_rate=2048.0" in tool("--describe", *PAIR)
    assert "connection_creation_rate=5000.0" in tool("--describe", "--entity-type", "ips")

    for whose, values in given.items():
        tool("--alter", "--delete-config", ",".join(values), *whose)
    assert not {frozenset(entity) for entity in entities} & described(broker).keys()


# ---- what clients are told


def test_many_connections_at_once_share_a_budget(broker: Broker, new_topic: TopicMaker) -> None:
    """Requests that are under way together are served by all handlers; the pauses are as if by one."""
    topic, bound, connections, rounds = new_topic(), 5000.0, 16, 3
    only(broker, "crowd", producer_byte_rate=bound)
    began, used, pauses = time.monotonic(), 0, []
    for _ in range(rounds):
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(peer(broker, "crowd")) for _ in range(connections)]
            used += sum(one.send(PRODUCE, produce_request(topic, 5000)) for one in crowd)
            pauses += [one.receive()[0].throttle_time_ms for one in crowd]
    # The last one charged has paid for all before it.
    assert_pause(max(pauses), used, bound, began)


def test_quotas_survive_a_restart(own_broker: Broker) -> None:
    create_topic(own_broker.bootstrap, "kept", 1)
    alter(own_broker, [("client-id", "app")], producer_byte_rate=1000.0)
    alter(own_broker, [("user", "gone")], producer_byte_rate=1.0)
    alter(own_broker, [("user", "gone")], producer_byte_rate=None)
    stop_cleanly(own_broker)
    own_broker.start()
    eventually(
        lambda: described(own_broker) == {frozenset({("client-id", "app")}): {"producer_byte_rate": 1000.0}},
        "the quota is there again",
    )
    began = time.monotonic()
    used, throttle_ms = produced(own_broker, "app", "kept", 20_000)
    assert_pause(throttle_ms, used, 1000.0, began)


def test_librdkafka_hears_of_the_pause(broker: Broker, new_topic: TopicMaker) -> None:
    topic, bound = new_topic(), 1000.0
    only(broker, "rdkafka", producer_byte_rate=bound)
    heard: list[ThrottleEvent] = []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "client.id": "rdkafka", "throttle_cb": heard.append}
    )
    began = time.monotonic()
    producer.produce(topic, bytes(13_000), partition=0)
    eventually(lambda: producer.poll(0.1) >= 0 and bool(heard), "librdkafka says that it has to pause")
    # What it sends around the value is known to the byte only by itself.
    assert_pause(round(heard[0].throttle_time * 1000), 13_200, bound, began)
    assert producer.flush(TIMEOUT_S) == 0
