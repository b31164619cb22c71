"""TLS, SCRAM and access control lists at once: Kafka's ConfigCommand, Java's clients and kafka-python."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import kafka
import pytest
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern
from kafka.admin import ResourceType as KafkaResourceType
from kafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
)

from mpbroker.config.broker import STANDARD_AUTHORIZER
from tests.support.client_tools import ToolError, eventually, kafka_tool
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, served
from tests.support.secure_broker import SecureBroker

ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
FLAGS = ("-o", f"authorizer.class.name={STANDARD_AUTHORIZER}", "-o", "super.users=User:ANONYMOUS")
USERS = ("shop", "billing", "keeper")


@pytest.fixture(scope="module", name="broker")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """Clients of listener OPEN may do everything; Kafka's tool has made the users of BOTH there."""
    with served(SecureBroker(tmp_path_factory.mktemp("broker"), flags=FLAGS)) as running:
        for user in USERS:
            make_user(user, at_open(running))
        yield running


@pytest.fixture(name="topic")
def _topic(broker: SecureBroker) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    create_topic(broker.bootstrap, name, 1)
    return name


def at_open(broker: SecureBroker) -> tuple[str, ...]:
    return "--bootstrap-server", broker.bootstrap


def as_user(broker: SecureBroker, user: str) -> tuple[str, ...]:
    """Return the flags of Kafka's tools for a user's login over TLS."""
    config = broker.directory / f"{user}.properties"
    lines = (
        f"ssl.truststore.location={broker.ca}",
        "ssl.truststore.type=PEM",
        "security.protocol=SASL_SSL",
        "sasl.mechanism=SCRAM-SHA-512",
        f'sasl.jaas.config={SCRAM_MODULE} required username="{user}" password="{password_of(user)}";',
    )
    config.write_text("\n".join(lines) + "\n")
    return "--bootstrap-server", broker.address_of("BOTH"), "--command-config", str(config)


def password_of(user: str) -> str:
    return f"{user}-Pa55word"


def make_user(user: str, by: Sequence[str]) -> str:
    credential = f"SCRAM-SHA-512=[iterations=4096,password={password_of(user)}]"
    about = ("--entity-type", "users", "--entity-name", user)
    return kafka_tool(CONFIGS, *by, "--alter", "--add-config", credential, *about)


def allow(broker: SecureBroker, user: str, *what: str) -> None:
    kafka_tool(ACLS, *at_open(broker), "--add", "--allow-principal", f"User:{user}", *what)


def written(broker: SecureBroker, topic: str) -> int:
    printed = kafka_tool(OFFSETS, *at_open(broker), "--topic", topic)
    return int(printed.strip().rpartition(":")[2])


def python_login(broker: SecureBroker, user: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.address_of("BOTH"),
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(broker.ca),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": user,
        "sasl_plain_password": password_of(user),
    }


def test_configcommand_makes_users_and_quotas_for_whom_it_is_allowed(broker: SecureBroker) -> None:
    keeper = as_user(broker, "keeper")
    quota = ("--alter", "--add-config", "producer_byte_rate=1048576", "--entity-type", "users")
    refused = "CLUSTER_AUTHORIZATION_FAILED|[Cc]luster authorization failed"
    with pytest.raises(ToolError, match=refused):
        make_user("late", keeper)
    with pytest.raises(ToolError, match=refused):
        kafka_tool(CONFIGS, *keeper, *quota, "--entity-name", "shop")
    operations = ("Alter", "AlterConfigs", "Describe", "DescribeConfigs")
    allow(broker, "keeper", "--cluster", *(word for each in operations for word in ("--operation", each)))
    make_user("late", keeper)
    kafka_tool(CONFIGS, *keeper, *quota, "--entity-name", "shop")
    described = kafka_tool(CONFIGS, *keeper, "--describe", "--entity-type", "users")
    assert "producer_byte_rate=1048576.0" in described
    assert "SCRAM credential configs for user-principal 'late' are SCRAM-SHA-512=iterations=4096" in described
    with kafka.KafkaConsumer(**python_login(broker, "late")) as late:
        assert late.topics() == set()


def test_java_clients_may_do_what_they_are_allowed(broker: SecureBroker, topic: str) -> None:
    shop, billing = as_user(broker, "shop"), as_user(broker, "billing")
    about = ("--topic", topic)
    read = ("--group", "java-billing", "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")
    kafka_tool(PRODUCER, *shop, *about, stdin=b"denied\n")
    assert written(broker, topic) == 0
    allow(broker, "shop", "--producer", *about)
    kafka_tool(PRODUCER, *shop, *about, stdin=b"allowed\n")
    assert written(broker, topic) == 1
    # The tool ends without a record, and with the exit code of success.
    assert kafka_tool(CONSUMER, *billing, *about, *read) == ""
    eventually(lambda: "User:billing from 127.0.0.1 on BOTH is denied" in broker.output(), "the log says why")
    allow(broker, "billing", "--consumer", "--group", "java-billing", *about)
    assert kafka_tool(CONSUMER, *billing, *about, *read) == "allowed\n"


def test_kafka_python_may_do_what_it_is_allowed(broker: SecureBroker, topic: str) -> None:
    producer = kafka.KafkaProducer(**python_login(broker, "shop"), max_block_ms=5000)
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send(topic, b"denied").get(PATIENCE_S)
    allow(broker, "shop", "--producer", "--topic", topic)
    producer.send(topic, b"allowed").get(PATIENCE_S)
    producer.close()
    group = {"group_id": "python-billing", "auto_offset_reset": "earliest"}
    with (
        kafka.KafkaConsumer(topic, **group, **python_login(broker, "billing")) as consumer,
        pytest.raises((GroupAuthorizationFailedError, TopicAuthorizationFailedError)),
    ):
        consumer.poll(1000 * PATIENCE_S)
    allow(broker, "billing", "--consumer", "--group", "python-billing", "--topic", topic)
    with kafka.KafkaConsumer(topic, **group, **python_login(broker, "billing")) as consumer:
        assert next(consumer).value == b"allowed"


def test_kafka_python_changes_entries(broker: SecureBroker, topic: str) -> None:
    pattern = ResourcePattern(KafkaResourceType.TOPIC, topic)
    entry = ACL("User:python", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)
    asked = ACLFilter("User:python", "*", ACLOperation.ANY, ACLPermissionType.ANY, pattern)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    assert admin.create_acls([entry])["succeeded"] == [entry]
    found, error = admin.describe_acls(asked)
    assert (found, error.errno) == ([entry], 0)
    (deleted,) = admin.delete_acls([asked])
    assert deleted[1] == [entry]
    assert admin.describe_acls(asked)[0] == []
    admin.close()
    denied = KafkaAdminClient(**python_login(broker, "shop"))
    with pytest.raises(ClusterAuthorizationFailedError):
        denied.describe_acls(asked)
    denied.close()
