"""What Kafka's tools print about groups of the consumer protocol (KIP-848) is what they print of Kafka.

`consumer_group_tools.txt` is what they print of Apache Kafka 4.3, with ids and addresses masked.
With MPBROKER_TEST_BROKER=kafka this test compares Kafka's with it, and with MPBROKER_TEST_WRITES=1 writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from ops.bench.brokers import Broker
from tests.support.client_tools import ToolError, eventually, kafka_tool
from tests.support.group_members import QUICK, subscriber
from tests.support.produced import produce
from tests.support.real_brokers import create_topic

PRINTED = Path(__file__).with_suffix(".txt").with_name("consumer_group_tools.txt")
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
ALL_GROUPS = "org.apache.kafka.tools.GroupsCommand"
BROKER_SETTINGS = QUICK
Steps = tuple[tuple[str, ...], ...]
LISTS: Steps = (
    (GROUPS, "--list"),
    (GROUPS, "--list", "--state"),
    (GROUPS, "--list", "--type"),
    (GROUPS, "--list", "--type", "consumer"),
    (GROUPS, "--list", "--type", "classic"),
    (GROUPS, "--list", "--state", "stable", "--type", "consumer"),
    (ALL_GROUPS, "--list"),
    (ALL_GROUPS, "--list", "--group-type", "consumer"),
    (ALL_GROUPS, "--list", "--consumer"),
)


def descriptions(group: str) -> Steps:
    about = (GROUPS, "--group", group, "--describe")
    kinds = ("--offsets", "--members", "--state")
    return tuple((*about, kind, *verbose) for kind in kinds for verbose in ((), ("--verbose",)))


def changes(group: str) -> Steps:
    """What is refused while there are members."""
    of_group, reset = (GROUPS, "--group", group), ("--reset-offsets", "--execute")
    return (
        (*of_group, *reset, "--to-earliest", "--topic", "second"),
        (*of_group, *reset, "--shift-by", "1", "--all-topics"),
        (*of_group, "--delete-offsets", "--topic", "first"),
        (*of_group, "--describe"),
        (*of_group, "--delete"),
        (*of_group, "--describe"),
    )


WITH_MEMBERS = (
    *LISTS,
    *descriptions("named"),
    *descriptions("patterned")[2:5],
    *changes("named")[1:5],
    (GROUPS, "--validate-regex", "first|sec.*"),
    (GROUPS, "--validate-regex", "fir(st"),
)
# A static member that closes keeps its place; the other one leaves for good.
WITHOUT = (*descriptions("named")[2:], *descriptions("patterned"), *changes("patterned"), *LISTS[:2])


def masked(printed: str, broker: Broker) -> list[str]:
    """Return the lines, with columns apart by one space; a tool orders rows as its hash tables do."""
    text = re.sub(r"(?<= )[\w+/-]{22}(?= )", "ID", printed).replace(broker.bootstrap, "BROKER")
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    return sorted(line for line in lines if line)


def transcript(broker: Broker, steps: Steps) -> Iterator[str]:
    for main_class, *arguments in steps:
        yield " ".join(("$", main_class.rpartition(".")[2], *arguments))
        try:
            printed = kafka_tool(main_class, "--bootstrap-server", broker.bootstrap, *arguments)
        except ToolError as error:
            printed = str(error).partition("\n")[2]
        yield from masked(printed, broker)


def assigned(consumer: Consumer, count: int) -> None:
    def holds() -> bool:
        consumer.poll(0.01)
        return len(consumer.assignment()) == count

    eventually(holds, f"a member has {count} partitions")


def test_tools_print_what_they_print_of_kafka(broker: Broker) -> None:
    for topic, partitions in (("first", 3), ("second", 1)):
        create_topic(broker.bootstrap, topic, partitions)
        produce(broker.bootstrap, topic, map(str, range(10)), partitions)
    said: list[str] = []
    static = {"group_instance_id": "one", "client_id": "reader", "group_remote_assignor": "range"}
    protocol = {"group_protocol": "consumer"}
    with (
        subscriber(broker.bootstrap, "named", "first", **protocol, **static) as first,
        subscriber(broker.bootstrap, "patterned", "^(fir|sec).*", **protocol) as any_,
    ):
        assigned(first, 3)
        assigned(any_, 4)
        offsets = [TopicPartition("first", number, number + 1) for number in range(3)]
        first.commit(offsets=offsets, asynchronous=False)
        any_.commit(offsets=[*offsets, TopicPartition("second", 0, 7)], asynchronous=False)
        said += transcript(broker, WITH_MEMBERS)
    said += transcript(broker, WITHOUT)
    text = "\n".join(said) + "\n"
    if os.environ.get("MPBROKER_TEST_WRITES") == "1":
        PRINTED.write_text(text)
    assert text == PRINTED.read_text()
