"""Access control lists by Kafka's tool, by librdkafka and by `mpbroker acl`; felt by clients that log in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from mpbroker.config.broker import STANDARD_AUTHORIZER
from mpbroker.ipc.topology import handler, name_of
from ops.bench.processes import title_of
from tests.support.client_tools import eventually, kafka_tool
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import create_topic, served
from tests.support.secure_broker import PLAIN_PASSWORD, SecureBroker

ROOT = Path(__file__).parents[2]
ACLS = "org.apache.kafka.tools.AclCommand"
PASSWORDS = {"ann": PLAIN_PASSWORD, "bob": f"{PLAIN_PASSWORD}2"}
FLAGS = ("-o", f"authorizer.class.name={STANDARD_AUTHORIZER}", "-o", "super.users=User:ANONYMOUS")


@pytest.fixture(scope="module", name="broker")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """Clients of listener OPEN may do everything, ann and bob of SASL what they are allowed."""
    with served(SecureBroker(tmp_path_factory.mktemp("broker"), flags=FLAGS)) as running:
        yield running


@pytest.fixture(name="topic")
def _topic(broker: SecureBroker) -> str:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    create_topic(broker.bootstrap, name, 1)
    return name


def acl(broker: SecureBroker, *arguments: str, code: int = 0) -> str:
    """Run `mpbroker acl` against the listener whose clients may do everything."""
    done = subprocess.run(
        [sys.executable, "-m", "mpbroker", "acl", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPBROKER_BOOTSTRAP_SERVER": broker.bootstrap},
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def login(broker: SecureBroker, user: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address_of("SASL"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
        **more,
    }


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
    settings = login(broker, user, **{"group.id": group, "auto.offset.reset": "earliest"})
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            error = message.error()
            if error is None:
                consumer.commit(asynchronous=False)
                value = message.value()
                assert value is not None
                return value
            if error.code() in (
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.GROUP_AUTHORIZATION_FAILED,
            ):
                return int(error.code())
    finally:
        consumer.close()


def test_clients_may_do_what_the_command_allows(broker: SecureBroker, topic: str) -> None:
    ann = Producer(login(broker, "ann"))
    assert error_of_produce(ann, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    said = acl(broker, "add", "--allow-principal", "User:ann", "--producer", "--topic", topic)
    assert said.count("added: ALLOW User:ann") == 3
    ann = Producer(login(broker, "ann"))
    assert error_of_produce(ann, topic) == 0
    assert error_of_produce(Producer(login(broker, "bob")), topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert consumed(broker, "bob", topic, "readers") == KafkaError.GROUP_AUTHORIZATION_FAILED
    acl(broker, "add", "--allow-principal", "User:bob", "--operation", "Read", "--group", "readers")
    assert consumed(broker, "bob", topic, "readers") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    bob = ("--allow-principal", "User:bob", "--consumer", "--group", "readers", "--topic", topic)
    acl(broker, "add", *bob)
    assert consumed(broker, "bob", topic, "readers") == b"x"
    removed = acl(broker, "remove", "--allow-principal", "User:ann", "--operation", "Write", "--topic", topic)
    assert removed == f"removed: ALLOW User:ann from host * operation WRITE on LITERAL TOPIC {topic}\n"
    assert error_of_produce(ann, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED


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
        (("add", "--topic", "t", "--operation", "Read"), "say for whom: --allow-principal or --deny"),
        (("add", "--allow-principal", "User:a", "--operation", "Read"), "say what for: --topic, --group"),
        (
            ("add", "--allow-principal", "User:a", "--topic", "t"),
            "say what may be done to Topic t: --operation",
        ),
        (("add", "--allow-principal", "ann", "--topic", "t", "--operation", "Read"), "as in User:ann"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--operation", "Raed"), "did you mean Read?"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--operation", "Foo"), "there are All, Read"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--consumer"), "needs --topic and --group"),
        (("add", "--allow-principal", "User:a", "--group", "g", "--producer"), "--producer needs --topic or"),
        (
            (
                "add",
                "--allow-principal",
                "User:a",
                "--topic",
                "t",
                "--operation",
                "Read",
                "--host",
                "somehost",
            ),
            "--host somehost: this is no IP address",
        ),
        (
            ("add", "--allow-principal", "User:a", "--group", "*", "--prefixed", "--operation", "Read"),
            "leave out --prefixed for all",
        ),
        (("list", "--principal", "billing"), "as in User:ann"),
        (
            ("add", "--allow-principal", "User:a", "--cluster", "--operation", "Read"),
            "nobody can Read a Cluster; it is one of Create, Alter",
        ),
        (("remove",), "say what for: --topic"),
        (("remove", "--topic", "t", "--operation", "Write"), "without them all about a resource is removed"),
    ],
)
def test_wrong_flags_are_explained(broker: SecureBroker, arguments: tuple[str, ...], says: str) -> None:
    assert says in acl(broker, *arguments, code=2)


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


def test_kafkas_tool(broker: SecureBroker, topic: str) -> None:
    def tool(*arguments: str) -> str:
        return kafka_tool(ACLS, "--bootstrap-server", broker.bootstrap, *arguments)

    tool("--add", "--allow-principal", "User:ann", "--producer", "--topic", topic)
    tool("--add", "--deny-principal", "User:ann", "--operation", "Create", "--cluster")
    listed = tool("--list", "--topic", topic)
    assert f"ResourcePattern(resourceType=TOPIC, name={topic}, patternType=LITERAL)" in listed
    assert "(principal=User:ann, host=*, operation=WRITE, permissionType=ALLOW)" in listed
    assert error_of_produce(Producer(login(broker, "ann")), topic) == 0
    tool("--remove", "--topic", topic, "--force")
    assert topic not in tool("--list")
    tool("--remove", "--cluster", "--force")


def binding(topic: str, permission: AclPermissionType = AclPermissionType.ALLOW) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:ann",
        "*",
        AclOperation.WRITE,
        permission,
    )


def test_librdkafka(broker: SecureBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_acls([binding(topic)]).values():
        made.result(PATIENCE_S)
    asked = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(asked).result(PATIENCE_S) == [binding(topic)]
    ann = Producer(login(broker, "ann"))
    assert error_of_produce(ann, topic) == 0
    (deleted,) = admin.delete_acls([asked]).values()
    assert deleted.result(PATIENCE_S) == [binding(topic)]
    assert error_of_produce(ann, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    as_ann = AdminClient(login(broker, "ann"))
    assert topic not in as_ann.list_topics(timeout=PATIENCE_S).topics
    (refused,) = as_ann.create_acls([binding(topic)]).values()
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        refused.result(PATIENCE_S)


def kill(broker: SecureBroker, role: str) -> None:
    """Kill a process of the broker; one that has just died may still be there, without a title."""
    members = [one for one in broker.tree().members() if one.status() != psutil.STATUS_ZOMBIE]
    (victim,) = [one for one in members if title_of(one) == role]
    victim.kill()
    psutil.wait_procs([victim], timeout=PATIENCE_S)


def test_entries_outlive_handlers_and_the_broker(broker: SecureBroker, topic: str) -> None:
    acl(broker, "add", "--allow-principal", "User:ann", "--producer", "--topic", topic)
    for number in range(2):
        kill(broker, name_of(handler(number)))
    assert error_of_produce(Producer(login(broker, "ann")), topic) == 0
    refused = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert error_of_produce(Producer(login(broker, "bob")), topic) == refused
    broker.kill()
    broker.start()
    assert error_of_produce(Producer(login(broker, "ann")), topic) == 0
    assert error_of_produce(Producer(login(broker, "bob")), topic) == refused
    eventually(
        lambda: f"User:bob from 127.0.0.1 on SASL is denied Describe Topic '{topic}'" in broker.output(),
        "audit",
    )
