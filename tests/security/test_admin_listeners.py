"""Listeners for administration and the audit log, as clients, administrators and operators meet them."""

from __future__ import annotations

import json
import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from mpbroker.handlers.apis import all_apis
from mpbroker.handlers.requests.permissions import ADMINISTRATION
from mpbroker.ipc.control_client import ControlError
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.messages import REQUESTS
from ops.bench.brokers import HOST, free_port
from tests.support.client_tools import eventually
from tests.support.filled_requests import filled
from tests.support.forwarded_requests import errors_in
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import control, served
from tests.support.secure_broker import KEY_PASSWORD, PLAIN_PASSWORD, SCRAM_PASSWORD, RawClient, SecureBroker

CLUSTER_AUTHORIZATION_FAILED = 31
SECRET_VALUE = "5ecret-Value"
MORE = """\
group.initial.rebalance.delay.ms=0
control.plane.listener.name=CONTROL
admin.listener.names=OPEN,LOCAL,CONTROL
audit.log.file={file}
audit.log.format={form}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:ann
"""
APIS = all_apis()


class Confined(SecureBroker):
    """User ann may do everything, on listeners for administration: OPEN, a Unix socket, the control plane."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ports["CONTROL"] = free_port()
        text = self.properties.read_text()
        more = f"LOCAL://unix:{self.socket_path},CONTROL://{HOST}:{self.ports['CONTROL']}"
        text = text.replace("listeners=OPEN", f"listeners={more},OPEN")
        self.first = text.replace("map=", "map=LOCAL:PLAINTEXT,CONTROL:PLAINTEXT,")
        self.write()

    @property
    def socket_path(self) -> Path:
        return self.directory / "admin.sock"

    @contextmanager
    def administrator(self, listener: str) -> Iterator[RawClient]:
        """A raw connection to one of the listeners without TLS and SASL."""
        family, address = (
            (socket.AF_UNIX, str(self.socket_path))
            if listener == "LOCAL"
            else (socket.AF_INET, (HOST, self.ports[listener]))
        )
        with socket.socket(family) as sock:
            sock.settimeout(PATIENCE_S)
            sock.connect(address)
            yield RawClient(sock)

    @property
    def audit(self) -> Path:
        return self.directory / "audit.log"

    def write(self, **changes: str) -> None:
        """Write the file; `file`, `form` and `more` differ from the first time."""
        of = {"file": str(self.audit), "form": "json", **changes}
        self.properties.write_text(self.first + MORE.format(**of) + of.get("more", ""))

    def control(self, command: str, **arguments: str) -> dict[str, Any]:
        return dict(control(self).call(command, **arguments))

    def admin(self, listener: str) -> AdminClient:
        return AdminClient(self.settings_for(listener))

    def settings_for(self, listener: str, **more: str) -> dict[str, str]:
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": PLAIN_PASSWORD,
        }
        where = {"bootstrap.servers": self.address_of(listener)}
        return {**where, **(login if listener == "SASL" else {}), **more}

    def lines(self, **wanted: str) -> list[dict[str, Any]]:
        """Return the lines of the audit log that have these fields."""
        told = [json.loads(line) for line in self.audit.read_text().splitlines() if line]
        return [one for one in told if wanted.items() <= one.items()]

    def await_line(self, **wanted: str) -> dict[str, Any]:
        eventually(lambda: bool(self.lines(**wanted)), f"the audit log has {wanted}")
        return self.lines(**wanted)[-1]


@pytest.fixture(scope="module", name="broker")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Confined]:
    with served(Confined(tmp_path_factory.mktemp("broker"))) as running:
        yield running


def new_topic(broker: Confined, name: str) -> None:
    admin = broker.admin("OPEN")
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE_S)


@pytest.mark.parametrize("key", sorted(ADMINISTRATION), ids=lambda key: APIS[key].name)
def test_every_request_of_administration_on_both_kinds_of_listeners(broker: Confined, key: ApiKey) -> None:
    api, body = APIS[key], filled(REQUESTS[key])
    # Of User:ANONYMOUS: User:ann's lines of the audit log are for the tests below.
    with broker.connect("TLS") as client:
        codes = set(errors_in(client.ask(key, api.latest, body)))
        assert codes == {CLUSTER_AUTHORIZATION_FAILED}
    for listener in ("OPEN", "LOCAL", "CONTROL"):
        with broker.administrator(listener) as client:
            codes = set(errors_in(client.ask(key, api.latest, body)))
            assert codes
            assert CLUSTER_AUTHORIZATION_FAILED not in codes


def test_clients_are_served_on_the_other_listeners(broker: Confined) -> None:
    topic = "by-its-name"
    producer = Producer(broker.settings_for("SASL", **{"enable.idempotence": "true"}))
    producer.produce(topic, b"x")
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer(
        broker.settings_for("SASL", **{"group.id": "readers", "auto.offset.reset": "earliest"})
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.value() == b"x"
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    reader = broker.admin("SASL")
    described = reader.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])
    assert all("retention.ms" in one.result(PATIENCE_S) for one in described.values())


def test_the_audit_log_has_who_from_where_what_and_the_result(broker: Confined) -> None:
    new_topic(broker, "told")
    open_, sasl = {"client": "127.0.0.1", "listener": "OPEN"}, {"client": "127.0.0.1", "listener": "SASL"}
    act = broker.await_line(event="administration", action="CREATE_TOPICS", result="ok", **open_)
    assert (act["principal"], act["names"]) == ("User:ANONYMOUS", ["told"])
    with pytest.raises(KafkaException):
        new_topic(broker, "told")
    broker.await_line(event="administration", result="TOPIC_ALREADY_EXISTS", **open_)
    broker.await_line(event="login", principal="User:ann", action="PLAIN", **sasl)
    with broker.connect("SASL") as client:
        assert client.plain("ann", "wrong").error_code
    refused = broker.await_line(event="refused login", **sasl)
    assert (refused["names"], refused["why"]) == (["ann"], "invalid user name or password")
    with broker.connect("MUTUAL", own=True) as client:
        broker.await_line(event="login", listener="MUTUAL", action="a certificate (TLSv1.3)")
        assert client.ask(ApiKey.METADATA, 12, REQUESTS[ApiKey.METADATA]()).brokers
    client_of_ann = broker.admin("SASL")
    with pytest.raises(KafkaException):
        client_of_ann.delete_topics(["told"])["told"].result(PATIENCE_S)
    denied = broker.await_line(event="refusal", action="DELETE_TOPICS", principal="User:ann", **sasl)
    assert denied["names"] == ["told"]
    with broker.connect("SASL") as client:
        assert client.plain("bob", f"{PLAIN_PASSWORD}2").error_code == 0
        assert client.ask(ApiKey.DESCRIBE_ACLS, 3, filled(REQUESTS[ApiKey.DESCRIBE_ACLS])).error_code == 31
    assert broker.await_line(event="refusal", principal="User:bob")["need"] == "Describe Cluster"


def test_it_has_no_secret_and_is_not_for_everybody(broker: Confined) -> None:
    entry = ConfigEntry("retention.ms", SECRET_VALUE, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, "any", incremental_configs=[entry])
    admin = broker.admin("OPEN")
    with pytest.raises(KafkaException):
        admin.incremental_alter_configs([change])[change].result(PATIENCE_S)
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = UserScramCredentialUpsertion("someone", credential, SCRAM_PASSWORD.encode(), b"salt-of-the-test")
    admin.alter_user_scram_credentials([user])["someone"].result(PATIENCE_S)
    names = broker.await_line(action="INCREMENTAL_ALTER_CONFIGS", listener="OPEN")["names"]
    assert names == ["Topic any: retention.ms"]
    assert broker.await_line(action="ALTER_USER_SCRAM_CREDENTIALS", result="ok")["names"] == [
        "someone SCRAM-SHA-256"
    ]
    text = broker.audit.read_text() + broker.output()
    for secret in (PLAIN_PASSWORD, SCRAM_PASSWORD, KEY_PASSWORD, SECRET_VALUE, "salt-of-the-test"):
        assert secret not in text
    assert broker.audit.stat().st_mode & 0o777 == 0o640


def test_a_renamed_file_has_what_came_before_and_a_new_one_the_rest(broker: Confined) -> None:
    new_topic(broker, "before-rotation")
    broker.await_line(event="administration", result="ok")
    old = broker.audit.rename(broker.directory / "audit.log.1")
    new_topic(broker, "after-rotation")
    eventually(broker.audit.exists, "there is a new file")
    assert broker.await_line(event="administration")["names"] == ["after-rotation"]
    assert "before-rotation" in old.read_text()
    assert "after-rotation" not in old.read_text()
    assert broker.audit.stat().st_mode & 0o777 == 0o640


def test_a_reload_moves_it_and_a_missing_directory_stops_nothing(broker: Confined) -> None:
    missing = broker.directory / "missing" / "audit.log"
    broker.write(file=str(missing), form="text")
    assert broker.control("reload")["changed"] == ["audit.log.file", "audit.log.format"]
    assert f"audit.log.file={missing} cannot be written: No such file or directory" in broker.output()
    me = f"Unix:{pwd.getpwuid(os.getuid()).pw_name} from process {os.getpid()} on control.sock"
    assert f"audit: {me} asked for ctl reload: ok" in broker.output()
    new_topic(broker, "without-file")
    said = "audit: User:ANONYMOUS from 127.0.0.1 on OPEN asked for CREATE_TOPICS of 'without-file': ok"
    eventually(lambda: said in broker.output(), "the broker's log has the line")
    missing.parent.mkdir()
    new_topic(broker, "with-file")
    eventually(lambda: missing.exists() and "'with-file': ok" in missing.read_text(), "the file has the line")
    broker.control("reload")
    gap = "1 line(s) of a process are missing here and are in the broker's log: No such file or directory"
    supervisors = missing.read_text().splitlines()[-2:]
    assert [line[25:] for line in supervisors] == [gap, f"{me} asked for ctl reload: ok"]
    assert "'with-file'" not in broker.output()
    broker.write(more="audit.log.level=WARN\n")
    broker.control("reload")
    new_topic(broker, "below-the-level")
    with broker.connect("SASL") as client:
        assert client.plain("ann", "wrong").error_code
    broker.await_line(event="refused login")
    assert not [one for one in broker.lines() if "below-the-level" in one.get("names", ())]


def test_roles_change_while_the_broker_runs(broker: Confined) -> None:
    def may_administer(client: Any) -> bool:
        codes = set(errors_in(client.ask(ApiKey.DELETE_GROUPS, 2, filled(REQUESTS[ApiKey.DELETE_GROUPS]))))
        return CLUSTER_AUTHORIZATION_FAILED not in codes

    first = broker.first
    with broker.connect("SASL") as client, broker.connect("OPEN") as local:
        assert client.plain().error_code == 0
        assert (may_administer(client), may_administer(local)) == (False, True)
        for wrong in ("NOWHERE", "SASL,NOWHERE"):
            broker.properties.write_text(first + f"admin.listener.names={wrong}\n")
            with pytest.raises(
                ControlError, match="listener NOWHERE does not exist; there are BOTH, CONTROL, LOCAL"
            ):
                broker.control("reload")
        assert (may_administer(client), may_administer(local)) == (False, True)
        broker.properties.write_text(first + MORE.format(file=broker.audit, form="json"))
        added = broker.control("listener-add", listener="LATER://127.0.0.1:0", protocol="PLAINTEXT")
        port = int(added["listener"].rpartition(":")[2])
        broker.ports["LATER"] = port
        broker.properties.write_text(
            broker.properties.read_text().replace("=OPEN,LOCAL,CONTROL", "=SASL,OPEN")
        )
        broker.control("reload")
        assert (may_administer(client), may_administer(local)) == (True, True)
        with pytest.raises(ControlError, match="listener SASL cannot be removed: the configuration gives it"):
            broker.control("listener-remove", listener="SASL")
        broker.properties.write_text(broker.properties.read_text().replace("=SASL,OPEN", "=SASL"))
        broker.control("reload")
        assert (may_administer(client), may_administer(local)) == (True, False)
