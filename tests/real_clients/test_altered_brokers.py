"""Settings of brokers, altered and described by Kafka's tool.

The tests state what Apache Kafka does, so they run against it, too.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from ops.bench.brokers import Broker
from tests.support.altered_settings import alter
from tests.support.client_tools import ToolError, eventually, kafka_tool
from tests.support.real_brokers import TopicMaker
from tests.support.socket_client import SocketClient

CONFIGS = "kafka.admin.ConfigCommand"
DYNAMIC_BROKER = 2


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
        ("max.connections=many", "Invalid value many for configuration max.connections: Not a number of"),
    ],
)
def test_kafkas_tool_is_refused(broker: Broker, change: str, says: str) -> None:
    with pytest.raises(ToolError, match=says):
        configs(broker, "--alter", "--add-config", change)


def test_a_default_cannot_have_what_belongs_to_one_broker(broker: Broker) -> None:
    with pytest.raises(ToolError, match="at default cluster level, broker id must be specified"):
        of_all(broker, "--alter", "--add-config", "listener.name.external.ssl.keystore.location=/x")


TAKEN = {
    "sasl.kerberos.min.time.before.relogin": "58000",
    "sasl.login.refresh.window.factor": "0.7",
    "listener.name.external.max.connections": "77",
    "listener.name.plaintext.max.connection.creation.rate": "100000",
    "num.io.threads": "9",
    "log.cleaner.threads": "2",
    "background.threads": "11",
    "num.recovery.threads.per.data.dir": "3",
    "num.replica.fetchers": "2",
    "metric.reporters": "",
    "remote.log.reader.threads": "11",
    "remote.fetch.max.wait.ms": "400",
    "log.local.retention.ms": "-2",
    "group.share.assignment.interval.ms": "900",
    "transaction.partition.verification.enable": "false",
    "max.connections": "5000",
}
UNKNOWN = {"no.such.setting": "any text", "listener.name.external.no.such": "x"}


def test_settings_that_are_taken_kept_and_shown(own_broker: Broker) -> None:
    """With an effect or without one."""
    for name, value in (TAKEN | UNKNOWN).items():
        assert (name, *alter(own_broker, "1", **{name: value})) == (name, 0, None)
    with SocketClient(own_broker) as client:

        def shown() -> dict[str, Any]:
            asked = m.DescribeConfigsRequest([m.DescribeConfigsRequest.DescribeConfigsResource(4, "1", None)])
            asked.include_synonyms = True
            (result,) = client.ask(ApiKey.DESCRIBE_CONFIGS, 4, asked).results
            return {entry.name: entry for entry in result.configs}

        eventually(lambda: shown()["max.connections"].value == "5000", "the last one is shown")
        found = shown()
    assert {name: found[name].value for name in TAKEN} == TAKEN
    assert {name: (found[name].value, found[name].is_sensitive) for name in UNKNOWN} == dict.fromkeys(
        UNKNOWN, (None, True)
    )
    for name in TAKEN | UNKNOWN:
        assert (name, found[name].config_source, found[name].read_only) == (
            name,
            DYNAMIC_BROKER,
            name in UNKNOWN or name.startswith("listener.name."),
        )
    assert len(found) >= 343


@pytest.mark.parametrize(
    ("name", "value", "of_all"),
    [
        ("num.partitions", "3", False),
        ("auto.leader.rebalance.enable", "true", False),
        ("ssl.keystore.location", "/x", False),
        ("background.threads", "0", False),
        ("background.threads", "many", False),
        ("listener.name.external.max.connections", "many", False),
        ("sasl.kerberos.min.time.before.relogin", "58000", True),
        ("listener.name.external.no.such", "x", True),
        ("num.io.threads", "40", False),
    ],
)
def test_settings_that_are_refused(broker: Broker, name: str, value: str, of_all: bool) -> None:
    assert alter(broker, "" if of_all else "1", **{name: value})[0] == KafkaError.INVALID_REQUEST
