"""A group of the consumer protocol (KIP-848) with live members changes hands: to Apache Kafka, and back.

Each broker reads what the other one wrote of the group, and its members go on where they were.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer

from ops.bench.brokers import HOST, Broker, Kafka, Mpbroker, free_port
from tests.real_clients.test_consumer_group_tools import GROUPS
from tests.support.client_tools import eventually, kafka_tool
from tests.support.forms import long_only
from tests.support.group_members import QUICK, subscriber
from tests.support.produced import produce
from tests.support.programs import ran
from tests.support.real_brokers import create_topic, served, with_settings

TOPIC, GROUP, PARTITIONS = "moved", "members", 4
COUNT = 40
ALL = {(partition, offset) for partition in range(PARTITIONS) for offset in range(3 * COUNT // PARTITIONS)}


def described(broker: Broker) -> list[list[str]]:
    """Members with instances, hosts and assignments; epochs may rise."""
    group = ("--group", GROUP, "--describe", "--members", "--verbose")
    printed = kafka_tool(GROUPS, "--bootstrap-server", broker.bootstrap, *group)
    rows = [line.split() for line in printed.splitlines() if line.startswith(GROUP)]
    assert all(row[6] == row[8] and row[7] == row[9] for row in rows), printed
    return sorted([*row[:6], row[7]] for row in rows)


def goes_on(broker: Broker, members: Sequence[Consumer], read: list[tuple[int, int]]) -> list[list[str]]:
    """Let the members read and commit what is written now; return how Kafka's tool describes them."""
    produce(broker.bootstrap, TOPIC, map(str, range(COUNT)), PARTITIONS)
    end = len(read) + COUNT

    def is_read() -> bool:
        for each in members:
            message = each.poll(0.02)
            if message is not None and message.error() is None:
                read.append((message.partition() or 0, message.offset() or 0))
        return len(read) >= end

    eventually(is_read, "what is written now is read")
    for each in members:
        each.commit(asynchronous=False)
    return described(broker)


def have_shares(members: Sequence[Consumer]) -> bool:
    """Poll each of them: one gives up partitions only while it is polled."""
    for each in members:
        each.poll(0.02)
    return all(len(each.assignment()) == PARTITIONS // len(members) for each in members)


def change_hands(*command: str) -> None:
    done = ran([sys.executable, "-m", "mpbroker", *command])
    assert done.returncode == 0, done.stderr


@long_only("a group with live members goes to Apache Kafka and back")
def test_members_go_on_at_kafka_and_back(tmp_path: Path) -> None:
    ours = with_settings(Mpbroker(tmp_path), QUICK)
    kafka = with_settings(Kafka(tmp_path, port=ours.port), QUICK)
    read: list[tuple[int, int]] = []
    with ExitStack() as stack:
        with served(ours):
            create_topic(ours.bootstrap, TOPIC, PARTITIONS)
            settings = {"group_protocol": "consumer"}
            members = [
                stack.enter_context(
                    subscriber(ours.bootstrap, GROUP, TOPIC, group_instance_id=name, **settings)
                )
                for name in "ab"
            ]
            eventually(lambda: have_shares(members), "both members have partitions")
            first = goes_on(ours, members, read)
        change_hands("export", "--controller", f"{HOST}:{free_port()}", str(ours.log_dir))
        with served(kafka):
            assert goes_on(kafka, members, read) == first
        change_hands("import", str(ours.log_dir))
        with served(ours):
            assert goes_on(ours, members, read) == first
            assert sorted(read) == sorted(ALL)
            # Their places stay for them: members with an instance id do not leave.
            stack.close()
