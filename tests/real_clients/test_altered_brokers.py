"""Settings of brokers, altered and described by Kafka's tool and by librdkafka.

The tests state what Apache Kafka does, so they run against it, too.
"""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ops.bench.brokers import Broker
from tests.support.client_tools import ToolError, eventually, kafka_tool
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import TopicMaker

CONFIGS = "kafka.admin.ConfigCommand"
TIMEOUT_S = PATIENCE_S
DYNAMIC_BROKER, DEFAULT = 2, 5


def configs(broker: Broker, *arguments: str, of: tuple[str, ...] = ("--entity-name", "1")) -> str:
    return kafka_tool(
        CONFIGS, "--bootstrap-server", broker.bootstrap, "--entity-type", "brokers", *of, *arguments
    )


def of_all(broker: Broker, *arguments: str) -> str:
    return configs(broker, *arguments, of=("--entity-default",))


def line_of(printed: str, key: str) -> str:
    return next((line.strip() for line in printed.splitlines() if line.strip().startswith(f"{key}=")), "")


def test_kafkas_tool_alters_describes_and_takes_back(broker: Broker, new_topic: TopicMaker) -> None:
    topic = new_topic(1)
    of_all(broker, "--alter", "--add-config", "log.retention.ms=111000,max.connections=900")
    configs(broker, "--alter", "--add-config", "max.connections=800")
    eventually(
        lambda: "900" in line_of(of_all(broker, "--describe"), "max.connections"), "all brokers have it"
    )
    said = line_of(configs(broker, "--describe"), "max.connections")
    assert said == (
        "max.connections=800 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:max.connections=800, "
        "DYNAMIC_DEFAULT_BROKER_CONFIG:max.connections=900, DEFAULT_CONFIG:max.connections=2147483647}"
    )
    of_topic = ("--bootstrap-server", broker.bootstrap, "--entity-type", "topics", "--entity-name", topic)
    everything = kafka_tool(CONFIGS, *of_topic, "--describe", "--all")
    said = line_of(everything, "retention.ms")
    assert said.startswith("retention.ms=111000 sensitive=false")
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=111000" in said
    configs(broker, "--alter", "--delete-config", "max.connections")
    of_all(broker, "--alter", "--delete-config", "log.retention.ms,max.connections")
    eventually(lambda: line_of(of_all(broker, "--describe"), "max.connections") == "", "it is taken back")
    assert line_of(configs(broker, "--describe"), "max.connections") == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("broker.id=7", "Cannot update these configs dynamically"),
        (
            "max.connections=many",
            "Invalid value many for configuration max.connections: Not a number of type INT",
        ),
    ],
)
def test_kafkas_tool_is_refused(broker: Broker, change: str, says: str) -> None:
    with pytest.raises(ToolError, match=says):
        configs(broker, "--alter", "--add-config", change)


def test_a_default_cannot_have_what_belongs_to_one_broker(broker: Broker) -> None:
    with pytest.raises(ToolError, match="at default cluster level, broker id must be specified"):
        of_all(broker, "--alter", "--add-config", "listener.name.external.ssl.keystore.location=/x")


def test_librdkafka_alters_and_describes(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def alter(key: str, operation: AlterConfigOpType, value: str | None = None) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        next(iter(admin.incremental_alter_configs([resource]).values())).result(TIMEOUT_S)

    def described(key: str) -> ConfigEntry:
        (told,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
        entry: ConfigEntry = told.result(TIMEOUT_S)[key]
        return entry

    alter("log.cleaner.backoff.ms", AlterConfigOpType.SET, "12345")
    eventually(lambda: described("log.cleaner.backoff.ms").value == "12345", "it is described")
    entry = described("log.cleaner.backoff.ms")
    assert (entry.source, entry.is_read_only, entry.is_sensitive) == (DYNAMIC_BROKER, False, False)
    assert described("num.partitions").is_read_only
    alter("log.cleaner.backoff.ms", AlterConfigOpType.DELETE)
    eventually(lambda: described("log.cleaner.backoff.ms").source == DEFAULT, "it is taken back")
    with pytest.raises(KafkaException) as raised:
        alter("num.partitions", AlterConfigOpType.SET, "3")
    error: KafkaError = raised.value.args[0]
    assert error.code() == KafkaError.INVALID_REQUEST
