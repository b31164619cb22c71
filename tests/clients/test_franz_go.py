"""franz-go's administration; its records are in test_round_trip.py."""

import time

import pytest

from ops.bench.brokers import Broker
from tests.clients.adapters import Franz, confluent_write
from tests.clients.conftest import GROUP_ERROR_WITHIN_S, TopicMaker, has_groups
from tests.clients.samples import sample_records
from tests.clients.tools import ToolError, eventually


def topics(franz: Franz, broker: Broker) -> dict[str, int]:
    rows = (line.split() for line in franz.run("topics", broker.bootstrap).decode().splitlines())
    return {name: int(partitions) for name, partitions in rows}


def test_a_topic_is_created_listed_and_deleted(broker: Broker, franz: Franz) -> None:
    franz.run("create", broker.bootstrap, "by-franz-go", "5")
    eventually(lambda: topics(franz, broker).get("by-franz-go") == 5, "a new topic is listed")
    franz.run("delete", broker.bootstrap, "by-franz-go")
    eventually(lambda: "by-franz-go" not in topics(franz, broker), "a deleted topic is not listed")


def test_a_group_consumer_works_or_is_told_soon(broker: Broker, franz: Franz, new_topic: TopicMaker) -> None:
    """As for librdkafka."""
    topic = new_topic(1)
    confluent_write(broker.bootstrap, topic, sample_records(1, 1, seed=1), "none")
    if has_groups(broker):
        assert franz.run("join", broker.bootstrap, topic, "go-members").split() == [b"1"]
        return
    began = time.monotonic()
    with pytest.raises(ToolError, match="unable to join group session: broker is too old"):
        franz.run("join", broker.bootstrap, topic, "go-members")
    assert time.monotonic() - began < GROUP_ERROR_WITHIN_S
