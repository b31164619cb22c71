"""Kafka's tools for transactions, readers of each kind, the two protocols, and brokers that end meanwhile.

The tests state what Apache Kafka does, so they run against it, too.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from mpbroker.protocol.api_keys import ApiKey
from ops.bench.brokers import HOST, Broker, free_port
from tests.support.client_adapters import COMMITTED_READERS
from tests.support.client_tools import dump, eventually, kafka_tool
from tests.support.committed_offsets import ends, is_pending, offset_of, read
from tests.support.real_brokers import (
    TRANSACTIONS,
    TopicMaker,
    create_topic,
    make_broker,
    served,
    stop_cleanly,
    with_settings,
)
from tests.support.tcp_relay import Relay
from tests.support.transactional_clients import IN_PYTHON, WITH_OFFSETS, Open, Program, commits, sends

BROKER_SETTINGS = TRANSACTIONS
TRANSACTIONS_TOOL = "org.apache.kafka.tools.TransactionsCommand"
SECOND_GENERATION = ("franz", "java")
COMPLETE_COMMIT = 4


@pytest.fixture(name="mixed", scope="module")
def _mixed(broker: Broker) -> Iterator[tuple[str, list[str]]]:
    """Transactions of all sizes beside each other, some aborted, and one left open in front of others; and
    what readers of committed records are to get.
    """
    topic = "mixed"
    create_topic(broker.bootstrap, topic, 1)
    writers = [IN_PYTHON["confluent"](broker.bootstrap, f"mixed-{number}") for number in range(3)]
    committed = []
    for number in range(12):
        one, other, _ = writers
        for writer in (one, other):
            writer.begin()
            sends(writer, topic, *(f"{number}-{'ba'[writer is one]}-{each}" for each in range(number)))
        one.commit() if number % 3 else one.abort()
        other.abort() if number % 2 else other.commit()
        committed += [f"{number}-a-{each}" for each in range(number) if number % 3]
        committed += [f"{number}-b-{each}" for each in range(number) if not number % 2]
    writers[-1].begin()
    sends(writers[-1], topic, "left-open")
    commits(writers[0], topic, "behind-it")
    eventually(lambda: len(read(broker, topic)[0]) == len(committed), "all ends are written")
    yield topic, committed
    writers[-1].abort()


@pytest.mark.parametrize("client", COMMITTED_READERS)
def test_readers_get_what_is_committed(broker: Broker, mixed: tuple[str, list[str]], client: str) -> None:
    topic, committed = mixed
    assert COMMITTED_READERS[client](broker.bootstrap, topic, len(committed)) == committed


# ---- kafka-transactions ----


def transactions(broker: Broker, *command: str) -> list[list[str]]:
    """The rows below the tool's headline."""
    printed = kafka_tool(TRANSACTIONS_TOOL, "--bootstrap-server", broker.bootstrap, *command)
    return [line.split() for line in printed.splitlines()[1:]]


def test_an_open_transaction_is_listed_described_and_aborted(
    broker: Broker, new_topic: TopicMaker, transacting_java: Program
) -> None:
    topic, name = new_topic(2), "described"
    producer = transacting_java.open(broker.bootstrap, name, 60_000)
    commits(producer, topic, "before")
    producer.begin()
    for partition in (0, 1):
        sends(producer, topic, "open", partition=partition)
    listed = {row[0]: row[1:] for row in transactions(broker, "list")}
    coordinator, producer_id, state = listed[name]
    assert (coordinator, state) == ("1", "Ongoing")
    ((_, _, its_id, epoch, state, timeout_ms, _, _, partitions),) = transactions(
        broker, "describe", "--transactional-id", name
    )
    assert (its_id, state, timeout_ms) == (producer_id, "Ongoing", "60000")
    assert partitions == f"{topic}-0,{topic}-1"
    place = ("--topic", topic, "--partition", "0")
    ((of_it, its_epoch, *_, start),) = transactions(broker, "describe-producers", *place)
    assert (of_it, its_epoch, start) == (producer_id, epoch, "2")
    assert transactions(broker, "find-hanging", "--broker-id", "1", "--max-transaction-timeout", "1") == []
    # An operator's abort is a marker in that partition alone, with the epoch that the producer has.
    transactions(broker, "abort", *place, "--start-offset", start)
    assert ends(broker, topic, 0) == (4, 4)
    assert ends(broker, topic, 1) == (0, 1)
    producer.abort()
    eventually(lambda: ends(broker, topic, 1) == (2, 2), "its own abort comes to the other one")
    assert read(broker, topic, 2) == {0: ["before"]}
    producer.close()


# ---- which protocol ----


def use(client: Open, bootstrap: str, name: str, topic: str, *, has_offsets: bool) -> None:
    producer = client(bootstrap, name)
    for number in range(2):
        producer.begin()
        sends(producer, topic, str(number))
        if has_offsets:
            producer.offsets(name, topic, 0, number)
        producer.commit()
    producer.close()


def test_clients_speak_the_latest_protocol_that_they_know(
    tmp_path: Path, transacting_franz: Program, transacting_java: Program
) -> None:
    """What they send, and what the coordinator wrote down of it, as Kafka's tool reads that."""
    clients = {**IN_PYTHON, "franz": transacting_franz.open, "java": transacting_java.open}
    broker = make_broker(tmp_path / "broker")
    with socket.create_server((HOST, free_port())) as listener, Relay(listener, broker.port) as relay:
        advertised = {"advertised.listeners": f"PLAINTEXT://{relay.bootstrap}"}
        with served(with_settings(broker, {**TRANSACTIONS, **advertised})):
            create_topic(relay.bootstrap, "t", 1)
            for name, client in clients.items():
                relay.versions.clear()
                use(client, relay.bootstrap, name, "t", has_offsets=name in WITH_OFFSETS)
                check_sent(name, relay.versions)
    states = last_states(broker)
    assert states.keys() == clients.keys()
    for name, state in states.items():
        is_second = name in SECOND_GENERATION
        assert state["transactionStatus"] == COMPLETE_COMMIT
        assert state["transactionPartitions"] == []
        assert state.get("clientTransactionVersion", 0) == (2 if is_second else 0)
        # The epoch is that of the next transaction.
        assert state["producerEpoch"] == (2 if is_second else 0)


def check_sent(name: str, versions: Mapping[int, set[int]]) -> None:
    is_second = name in SECOND_GENERATION
    assert (max(versions[ApiKey.END_TXN]) >= 5) is is_second
    assert (max(versions[ApiKey.PRODUCE]) >= 12) is is_second
    # Later versions are those of Kafka's brokers.
    assert (min(versions[ApiKey.ADD_PARTITIONS_TO_TXN], default=4) >= 4) is is_second
    if name in WITH_OFFSETS:
        assert (max(versions[ApiKey.TXN_OFFSET_COMMIT]) >= 5) is is_second
        assert (ApiKey.ADD_OFFSETS_TO_TXN in versions) is not is_second


def last_states(broker: Broker) -> dict[str, dict[str, Any]]:
    """What the coordinator wrote down last, by transactional id, as Kafka's tool decodes it."""
    logs = sorted(map(str, broker.log_dir.glob("__transaction_state-*/*.log")))
    printed = dump("--transaction-log-decoder", "--files", ",".join(logs))
    states = re.findall(r"key: (\{.*?\}) payload: (\{.*\})$", printed, re.MULTILINE)
    return {json.loads(key)["data"]["transactionalId"]: json.loads(value)["data"] for key, value in states}


# ---- an end of the broker


def is_led(broker: Broker, topic: str) -> bool:
    try:
        return ends(broker, topic) == (0, 1)
    except KafkaException:
        return False


GONE: Mapping[str, Callable[[Broker], None]] = {"stopped": stop_cleanly, "killed": Broker.kill}


@pytest.mark.parametrize("gone", GONE)
def test_open_transactions_outlive_their_broker(tmp_path: Path, transacting_java: Program, gone: str) -> None:
    """Those of both protocols."""
    clients = {"first": IN_PYTHON["confluent"], "second": transacting_java.open}
    committed, aborted = ([f"{what}-{protocol}" for protocol in clients] for what in ("committed", "aborted"))
    topics = committed + aborted
    with served(with_settings(make_broker(tmp_path / "broker"), TRANSACTIONS)) as broker:
        producers = {topic: clients[topic.rpartition("-")[2]](broker.bootstrap, topic) for topic in topics}
        for topic, producer in producers.items():
            create_topic(broker.bootstrap, topic, 1)
            producer.begin()
            sends(producer, topic, "before")
            producer.offsets(topic, topic, 0, 7)
        GONE[gone](broker)
        broker.start()
        eventually(lambda: all(is_led(broker, topic) for topic in topics), "Kafka leads them again")
        for topic, producer in producers.items():
            assert ends(broker, topic) == (0, 1)
            assert is_pending(broker, topic, topic)
            sends(producer, topic, "behind")
        for topic in committed:
            producers[topic].commit()
        for topic in aborted:
            producers[topic].abort()
        for topic in topics:
            eventually(lambda topic=topic: ends(broker, topic) == (3, 3), topic)  # type: ignore[misc]
            eventually(lambda topic=topic: not is_pending(broker, topic, topic), topic)  # type: ignore[misc]
        assert [read(broker, topic) for topic in committed] == 2 * [{0: ["before", "behind"]}]
        assert [read(broker, topic) for topic in aborted] == 2 * [{}]
        assert [offset_of(broker, topic, topic) for topic in topics] == [7, 7, None, None]
        for producer in producers.values():
            producer.close()
