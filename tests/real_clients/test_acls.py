"""Access control lists, with TLS and SCRAM: by Kafka's tools and `mpbroker acl`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from mpbroker.config.broker import STANDARD_AUTHORIZER
from mpbroker.ipc.topology import handler, name_of
from tests.support.client_adapters import CONSUMER
from tests.support.client_tools import ToolError, eventually, kafka_tool
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, kill_process, served
from tests.support.secure_broker import SecureBroker

ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
FLAGS = ("-o", f"authorizer.class.name={STANDARD_AUTHORIZER}", "-o", "super.users=User:ANONYMOUS")
DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture(scope="module", name="broker")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """Clients of listener OPEN may do everything; Kafka's tool has made the users of BOTH there."""
    with served(SecureBroker(tmp_path_factory.mktemp("broker"), flags=FLAGS)) as running:
        for user in ("ann", "bob", "keeper"):
            make_user(user, "--bootstrap-server", running.bootstrap)
        yield running


@pytest.fixture(name="topic")
def _topic(broker: SecureBroker) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    create_topic(broker.bootstrap, name, 1)
    return name


def password_of(user: str) -> str:
    return f"{user}-Pa55word"


def make_user(user: str, *by: str) -> None:
    credential = f"SCRAM-SHA-512=[iterations=4096,password={password_of(user)}]"
    about = ("--entity-type", "users", "--entity-name", user)
    kafka_tool(CONFIGS, *by, "--alter", "--add-config", credential, *about)


def acl(broker: SecureBroker, *arguments: str, code: int = 0) -> str:
    """Run `mpbroker acl` against the listener whose clients may do everything."""
    said = OwnCli(broker.bootstrap)("acl", *arguments, code=code)
    return said.out + said.err


def login(broker: SecureBroker, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address_of("BOTH"),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(broker.ca),
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password_of(user),
        **more,
    }


def java_login(broker: SecureBroker, user: str) -> tuple[str, ...]:
    """Return the flags of Kafka's tools."""
    config = broker.directory / f"{user}.properties"
    config.write_text(
        f"ssl.truststore.location={broker.ca}\nssl.truststore.type=PEM\n"
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM_MODULE} required username="{user}" password="{password_of(user)}";\n'
    )
    return "--bootstrap-server", broker.address_of("BOTH"), "--command-config", str(config)


def error_of_produce(producer: Producer, topic: str) -> int:
    told: list[KafkaError | None] = []
    try:
        producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
    except KafkaException as known:
        # The client remembers what the broker said of the topic.
        return int(known.args[0].code())
    assert producer.flush(PATIENCE_S) == 0
    return 0 if told[0] is None else int(told[0].code())


def consumed(broker: SecureBroker, user: str, topic: str, group: str) -> bytes | int:
    """Return the first value that a new consumer gets, or the code of its error."""
    consumer = Consumer(login(broker, user, **{"group.id": group, "auto.offset.reset": "earliest"}))
    try:
        consumer.subscribe([topic])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            error = message.error()
            if error is None:
                consumer.commit(asynchronous=False)
                return message.value() or b""
            if error.code() in (DENIED, KafkaError.GROUP_AUTHORIZATION_FAILED):
                return int(error.code())
    finally:
        consumer.close()


def test_clients_may_do_what_the_command_allows(broker: SecureBroker, topic: str) -> None:
    ann = Producer(login(broker, "ann"))
    assert error_of_produce(ann, topic) == DENIED
    said = acl(broker, "add", "--allow-principal", "User:ann", "--producer", "--topic", topic)
    assert said.count("added: ALLOW User:ann") == 3
    ann = Producer(login(broker, "ann"))
    assert error_of_produce(ann, topic) == 0
    assert error_of_produce(Producer(login(broker, "bob")), topic) == DENIED
    assert consumed(broker, "bob", topic, "readers") == KafkaError.GROUP_AUTHORIZATION_FAILED
    acl(broker, "add", "--allow-principal", "User:bob", "--operation", "Read", "--group", "readers")
    assert consumed(broker, "bob", topic, "readers") == DENIED
    acl(broker, "add", "--allow-principal", "User:bob", "--consumer", "--group", "readers", "--topic", topic)
    assert consumed(broker, "bob", topic, "readers") == b"x"
    removed = acl(broker, "remove", "--allow-principal", "User:ann", "--operation", "Write", "--topic", topic)
    assert removed == f"removed: ALLOW User:ann from host * operation WRITE on LITERAL TOPIC {topic}\n"
    assert error_of_produce(ann, topic) == DENIED


def java_writes(broker: SecureBroker, topic: str) -> None:
    """The tool ends with the exit code of success, whatever happens."""
    kafka_tool(PRODUCER, *java_login(broker, "ann"), "--topic", topic, stdin=b"allowed\n")


def java_reads(broker: SecureBroker, topic: str) -> bytes | None:
    read = ("--group", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")
    return kafka_tool(CONSUMER, *java_login(broker, "bob"), "--topic", topic, *read).encode().strip() or None


def written(broker: SecureBroker, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)
    consumer.close()
    return int(end)


def test_kafkas_clients_may_do_what_its_tool_allows(broker: SecureBroker, topic: str) -> None:
    tool = (ACLS, "--bootstrap-server", broker.bootstrap, "--topic", topic)
    java_writes(broker, topic)
    assert written(broker, topic) == 0
    kafka_tool(*tool, "--add", "--allow-principal", "User:ann", "--producer")
    java_writes(broker, topic)
    assert written(broker, topic) == 1
    assert java_reads(broker, topic) is None
    eventually(lambda: "User:bob from 127.0.0.1 on BOTH is denied" in broker.output(), "the log says why")
    kafka_tool(*tool, "--add", "--allow-principal", "User:bob", "--consumer", "--group", topic)
    assert java_reads(broker, topic) == b"allowed"
    listed = kafka_tool(*tool, "--list")
    assert f"ResourcePattern(resourceType=TOPIC, name={topic}, patternType=LITERAL)" in listed
    assert "(principal=User:ann, host=*, operation=WRITE, permissionType=ALLOW)" in listed
    kafka_tool(*tool, "--remove", "--force")
    assert acl(broker, "list", "--topic", topic) == "no ACLs\n"


def test_configcommand_makes_users_and_quotas_for_whom_it_is_allowed(broker: SecureBroker) -> None:
    keeper = java_login(broker, "keeper")
    quota = ("--alter", "--add-config", "producer_byte_rate=1048576", "--entity-type", "users")
    refused = "CLUSTER_AUTHORIZATION_FAILED|[Cc]luster authorization failed"
    with pytest.raises(ToolError, match=refused):
        make_user("late", *keeper)
    with pytest.raises(ToolError, match=refused):
        kafka_tool(CONFIGS, *keeper, *quota, "--entity-name", "ann")
    operations = ("Alter", "AlterConfigs", "Describe", "DescribeConfigs")
    asked = [word for each in operations for word in ("--operation", each)]
    acl(broker, "add", "--allow-principal", "User:keeper", "--cluster", *asked)
    make_user("late", *keeper)
    kafka_tool(CONFIGS, *keeper, *quota, "--entity-name", "ann")
    described = kafka_tool(CONFIGS, *keeper, "--describe", "--entity-type", "users")
    assert "producer_byte_rate=1048576.0" in described
    assert "SCRAM credential configs for user-principal 'late' are SCRAM-SHA-512=iterations=4096" in described
    assert not AdminClient(login(broker, "late")).list_topics(timeout=PATIENCE_S).topics


# ---- mpbroker acl


def test_the_command_shows_before_it_changes(broker: SecureBroker, topic: str) -> None:
    flags = ("--allow-principal", "User:dry", "--operation", "All", "--topic", topic[:9], "--prefixed")
    told = f"ALLOW User:dry from host * operation ALL on PREFIXED TOPIC {topic[:9]}\n"
    assert acl(broker, "add", *flags, "--dry-run") == f"would add: {told}"
    assert json.loads(acl(broker, "list", "--principal", "User:dry", "--json")) == []
    acl(broker, "add", *flags)
    assert acl(broker, "add", *flags, "--dry-run") == f"is there already: {told}"
    row = {
        "resource": "Topic",
        "name": topic[:9],
        "pattern": "Prefixed",
        "principal": "User:dry",
        "host": "*",
        "operation": "All",
        "permission": "Allow",
    }
    assert row in json.loads(acl(broker, "list", "--topic", topic, "--json"))
    assert acl(broker, "remove", "--topic", topic[:9], "--prefixed", "--dry-run") == f"would remove: {told}"
    assert "User:dry" in acl(broker, "list", "--topic", topic)
    assert "removed: ALLOW User:dry" in acl(broker, "remove", "--topic", topic[:9], "--prefixed")
    assert "no ACL matches" in acl(broker, "remove", "--topic", topic[:9], "--prefixed", code=1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("add --topic t --operation Read", "say for whom: --allow-principal or --deny"),
        ("add --allow-principal User:a --operation Read", "say what for: --topic, --group"),
        ("add --allow-principal User:a --topic t", "say what may be done to Topic t: --operation"),
        ("add --allow-principal ann --topic t --operation Read", "as in User:ann"),
        ("add --allow-principal User:a --topic t --operation Raed", "did you mean Read?"),
        ("add --allow-principal User:a --topic t --operation Foo", "there are All, Read"),
        ("add --allow-principal User:a --topic t --consumer", "needs --topic and --group"),
        ("add --allow-principal User:a --group g --producer", "--producer needs --topic or"),
        ("add --allow-principal User:a --topic t --operation Read --host somehost", "write an IP address"),
        ("add --allow-principal User:a --group * --prefixed --operation Read", "leave out --prefixed"),
        ("list --principal billing", "as in User:ann"),
        ("add --allow-principal User:a --cluster --operation Read", "it is one of Create, Alter"),
        ("remove", "say what for: --topic"),
        ("remove --topic t --operation Write", "without them all about a resource is removed"),
    ],
)
def test_wrong_flags_are_explained(broker: SecureBroker, arguments: str, says: str) -> None:
    assert says in acl(broker, *arguments.split(), code=2)


def test_delegation_tokens_are_a_resource_and_so_are_their_owners(broker: SecureBroker) -> None:
    owner = ("--user-principal", "User:owner", "--operation", "CreateTokens", "--operation", "DescribeTokens")
    said = acl(broker, "add", "--allow-principal", "User:ann", *owner)
    assert said.count("on LITERAL USER User:owner") == 2
    token = ("--delegation-token", "id")
    acl(broker, "add", "--allow-principal", "User:ann", *token, "--operation", "Describe")
    assert "DelegationToken" in acl(broker, "list", *token)
    assert "User:owner" not in acl(broker, "list", *token)
    assert acl(broker, "remove", "--user-principal", "User:owner").count("removed: ") == 2
    acl(broker, "remove", *token)


def test_entries_and_users_outlive_handlers_and_the_broker(broker: SecureBroker, topic: str) -> None:
    acl(broker, "add", "--allow-principal", "User:ann", "--producer", "--topic", topic)
    for number in range(2):
        kill_process(broker, name_of(handler(number)))
    assert error_of_produce(Producer(login(broker, "ann")), topic) == 0
    assert error_of_produce(Producer(login(broker, "bob")), topic) == DENIED
    broker.kill()
    broker.start()
    assert error_of_produce(Producer(login(broker, "ann")), topic) == 0
    assert error_of_produce(Producer(login(broker, "bob")), topic) == DENIED
    eventually(
        lambda: f"User:bob from 127.0.0.1 on BOTH is denied Describe Topic '{topic}'" in broker.output(),
        "audit",
    )
