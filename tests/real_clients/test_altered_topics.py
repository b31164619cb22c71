"""Topics that are altered while they are written to."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
    ResourceType,
)

from ops.bench.brokers import Broker, Mpbroker
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.produced import produce
from tests.support.real_brokers import TopicMaker, stop_cleanly
from tests.support.worker_load import Load

SET = AlterConfigOpType.SET


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def alter(admin: AdminClient, name: str, *changes: tuple[str, AlterConfigOpType, str | None]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=operation) for key, operation, value in changes]
    asked = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)]
    )
    (future,) = asked.values()
    future.result(PATIENCE_S)


def configs_of(admin: AdminClient, topic: str) -> dict[str, str | None]:
    """Return the settings that are set on the topic itself."""
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    found: dict[str, ConfigEntry] = future.result(PATIENCE_S)
    return {name: entry.value for name, entry in found.items() if entry.source == 1}


def test_who_writes_meanwhile_loses_nothing(
    broker: Broker, admin: AdminClient, new_topic: TopicMaker
) -> None:
    """Idempotent producers go on through every change; what is acknowledged is there once and in order."""
    topic = new_topic(1)
    with Load(broker.bootstrap, topic) as load:
        for turn in range(12):
            alter(admin, topic, ("max.message.bytes", SET, str(1_000_000 + turn)))
            alter(admin, topic, ("message.timestamp.type", SET, ("LogAppendTime", "CreateTime")[turn % 2]))
            (future,) = admin.create_partitions([NewPartitions(topic, 2 + turn)]).values()
            future.result(PATIENCE_S)
            load.goes_on()


def test_retention_that_is_altered_counts_at_once(own_broker: Broker) -> None:
    """And after a restart: the settings are in the event log."""
    if not isinstance(own_broker, Mpbroker):
        pytest.skip("Kafka looks for the first time after a while")
    own_broker.stop()
    own_broker.flags = (*("-o", "log.initial.task.delay.ms=0"), *("-o", "log.retention.check.interval.ms=20"))
    own_broker.start()
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    produce(own_broker.bootstrap, "made", map(str, range(10)))

    def earliest() -> int:
        (future,) = admin.list_offsets({TopicPartition("made", 0): OffsetSpec.earliest()}).values()
        offset: int = future.result(PATIENCE_S).offset
        return offset

    assert earliest() == 0
    alter(admin, "made", ("retention.ms", SET, "1"))
    eventually(lambda: earliest() == 10, "the records are old now")
    stop_cleanly(own_broker)
    own_broker.start()
    assert configs_of(admin, "made") == {"retention.ms": "1"}
    assert earliest() == 10
