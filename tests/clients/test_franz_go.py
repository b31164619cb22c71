"""franz-go's administration; its records are in test_round_trip.py."""

from ops.bench.brokers import Broker
from tests.clients.adapters import Franz


def topics(franz: Franz, broker: Broker) -> dict[str, int]:
    rows = (line.split() for line in franz.run("topics", broker.bootstrap).decode().splitlines())
    return {name: int(partitions) for name, partitions in rows}


def test_a_topic_is_created_listed_and_deleted(broker: Broker, franz: Franz) -> None:
    franz.run("create", broker.bootstrap, "by-franz-go", "5")
    assert topics(franz, broker)["by-franz-go"] == 5
    franz.run("delete", broker.bootstrap, "by-franz-go")
    assert "by-franz-go" not in topics(franz, broker)
