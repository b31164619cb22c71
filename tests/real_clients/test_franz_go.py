"""franz-go's administration; its records are in test_round_trip.py."""

from ops.bench.brokers import Broker
from tests.support.client_adapters import Franz
from tests.support.client_tools import eventually


def topics(franz: Franz, broker: Broker) -> dict[str, int]:
    rows = (line.split() for line in franz.run("topics", broker.bootstrap).decode().splitlines())
    return {name: int(partitions) for name, partitions in rows}


def test_a_topic_is_created_listed_and_deleted(broker: Broker, franz: Franz) -> None:
    franz.run("create", broker.bootstrap, "by-franz-go", "5")
    eventually(lambda: topics(franz, broker).get("by-franz-go") == 5, "a new topic is listed")
    franz.run("delete", broker.bootstrap, "by-franz-go")
    eventually(lambda: "by-franz-go" not in topics(franz, broker), "a deleted topic is not listed")
