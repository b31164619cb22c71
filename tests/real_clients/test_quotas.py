"""Client quotas over sockets: set by Kafka's own tool, felt by clients. The same against Apache Kafka.

Pauses are judged by what the broker says, against the formula of Kafka's Rate for the same load. A connection
that was told to pause is used no more, unless the test is about that.
"""

from __future__ import annotations

import contextlib
import re
import time

import pytest
from confluent_kafka import Producer, ThrottleEvent

from mpbroker.protocol.messages import (
    CreateTopicsRequest,
    FetchRequest,
    MetadataRequest,
)
from ops.bench.brokers import Broker
from tests.support.client_tools import eventually, kafka_tool
from tests.support.quota_client import (
    CREATE_TOPICS,
    FETCH,
    METADATA,
    PRODUCE,
    TIMEOUT_S,
    WINDOW_MS,
    alter,
    ask,
    assert_pause,
    described,
    peer,
    produce_request,
    produced,
)
from tests.support.real_brokers import TopicMaker, create_topic, stop_cleanly

CONFIGS = "kafka.admin.ConfigCommand"
USER = "ANONYMOUS"
EXCEEDED = 89


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


def test_produce_is_slowed_down_by_the_formula(broker: Broker, new_topic: TopicMaker) -> None:
    topic, bound = new_topic(), 1000.0
    only(broker, "producer", producer_byte_rate=bound)
    began, used = time.monotonic(), 0
    for number in range(1, 9):
        size, throttle_ms = produced(broker, "producer", topic, 5000)
        used += size
        if number <= 1:
            assert throttle_ms == 0, "one request is below the rate of ten windows"
        elif number >= 3:
            assert_pause(throttle_ms, used, bound, began)
    # Another client id has nothing to do with it.
    assert produced(broker, "nobody", topic, 5000)[1] == 0


def test_a_user_has_one_budget_for_all_its_clients(own_broker: Broker) -> None:
    create_topic(own_broker.bootstrap, "shared", 1)
    alter(own_broker, [("user", None)], producer_byte_rate=1000.0)
    began, used = time.monotonic(), 0
    for number in range(1, 7):
        size, throttle_ms = produced(own_broker, f"one-of-{number}", "shared", 5000)
        used += size
        if number >= 3:
            assert_pause(throttle_ms, used, 1000.0, began)
    # A pair is more specific, and has a budget of its own.
    alter(own_broker, [("user", USER), ("client-id", "one-of-1")], producer_byte_rate=1e9)
    assert produced(own_broker, "one-of-1", "shared", 5000)[1] == 0


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


def test_a_fetch_over_quota_is_empty(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic()
    produced(broker, "filler", topic, 30_000)
    wanted = FetchRequest.FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic, partitions=[wanted])],
    )
    with peer(broker, "free") as free:
        free.send(FETCH, request)
        answer, size = free.receive()
    assert len(answer.responses[0].partitions[0].records) > 30_000
    bound = 1000.0
    only(broker, "consumer", consumer_byte_rate=bound)
    began = time.monotonic()
    for _ in range(3):
        # Not charged, so that it is as much over quota each time.
        answer = ask(broker, "consumer", FETCH, request)
        assert answer.responses == []
        assert_pause(answer.throttle_time_ms, size, bound, began)


def test_request_time_pauses_for_a_window_at_most(broker: Broker) -> None:
    only(broker, "busy", request_percentage=0.0001)
    answers = [ask(broker, "busy", METADATA, MetadataRequest(topics=[])) for _ in range(5)]
    assert answers[-1].throttle_time_ms == WINDOW_MS
    assert ask(broker, "idle", METADATA, MetadataRequest(topics=[])).throttle_time_ms == 0


def test_creating_topics_is_limited_by_partitions(broker: Broker, request: pytest.FixtureRequest) -> None:
    only(broker, "creator", controller_mutation_rate=1.0)

    def create(name: str, partitions: int) -> tuple[int, int]:
        topic = CreateTopicsRequest.CreatableTopic(f"{request.node.name}-{name}", partitions, 1)
        answer = ask(broker, "creator", CREATE_TOPICS, CreateTopicsRequest([topic], 30_000))
        return answer.topics[0].error_code, answer.throttle_time_ms

    assert create("large", 31) == (0, 0)
    code, throttle_ms = create("refused", 1)
    assert code == EXCEEDED
    assert 0.9 * 15_000 <= throttle_ms <= 20_000
    assert ask(broker, "somebody", METADATA, MetadataRequest(topics=[])).throttle_time_ms == 0


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


def test_a_throttled_connection_answers_at_once_and_reads_on_later(
    broker: Broker, new_topic: TopicMaker
) -> None:
    topic, bound = new_topic(), 1000.0
    only(broker, "paused", producer_byte_rate=bound)
    with peer(broker, "paused") as paused, peer(broker, "paused") as other:
        sent = time.monotonic()
        paused.send(PRODUCE, produce_request(topic, 14_500))
        paused.send(METADATA, MetadataRequest(topics=[]))
        throttle_ms = paused.receive()[0].throttle_time_ms
        assert throttle_ms > 1000
        answered = time.monotonic()
        # Another connection of the same client is served meanwhile.
        other.ask(METADATA, MetadataRequest(topics=[]))
        if time.monotonic() - sent < throttle_ms / 1000:
            assert not paused.has_answer()
        paused.receive()
        assert time.monotonic() - sent >= throttle_ms / 1000
        assert answered - sent < throttle_ms / 1000


def test_acks_of_zero_pauses_the_connection(broker: Broker, new_topic: TopicMaker) -> None:
    topic, bound = new_topic(), 1000.0
    only(broker, "silent", producer_byte_rate=bound)
    with peer(broker, "silent") as silent:
        sent = time.monotonic()
        used = silent.send(PRODUCE, produce_request(topic, 13_000, acks=0))
        silent.asked.clear()
        silent.ask(METADATA, MetadataRequest(topics=[]))
        assert time.monotonic() - sent >= 0.9 * (used / bound - 11)
