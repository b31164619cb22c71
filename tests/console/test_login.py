"""The console of a broker with logins and access control lists: it lends nobody a right."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.testing import Broker
from tests.console.conftest import Api
from tests.support.produced import produce

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
CLIENT = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{LOGIN} username="admin" password="a-secret";',
}
SETTINGS = {
    "http.listener": "127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'{LOGIN} user_admin="a-secret" user_reader="r-secret";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


def serve(listeners: str, **settings: str) -> Broker:
    return Broker({**SETTINGS, "listeners": listeners, **settings}, client=CLIENT)


def fill(broker: Broker) -> str:
    topic = broker.create_topic()
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    login |= {"sasl_username": "admin", "sasl_password": "a-secret"}
    produce(broker.bootstrap_servers, topic, ["classified"], **login)
    return topic


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "console.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in CLIENT.items()))
    return path


def test_without_a_login_of_its_own_it_shows_no_records_of_a_broker_with_logins() -> None:
    with serve("SASL_PLAINTEXT://127.0.0.1:0") as broker:
        topic, api = fill(broker), Api(broker)
        assert api.get("records", topic=topic).status == 401
        answer = api.with_token("records", topic=topic)
        assert answer.status == 503
        assert "http.console.client.config" in answer.error
        assert api.get("settings").status == 401
        assert api.get("live", after=0).status == 200


def test_what_nobody_may_read_without_a_login_the_console_may_not_either() -> None:
    with serve("SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0") as broker:
        topic, api = fill(broker), Api(broker)
        assert api.get("records", topic=topic).status == 401
        answer = api.with_token("records", topic=topic)
        assert answer.status == 403
        assert "TOPIC_AUTHORIZATION_FAILED" in answer.error
        assert "classified" not in answer.error


def test_with_a_login_it_shows_them_to_those_with_the_token(properties: Path) -> None:
    with serve("SASL_PLAINTEXT://127.0.0.1:0", **{"http.console.client.config": str(properties)}) as broker:
        topic, api = fill(broker), Api(broker)
        assert api.get("records", topic=topic).status == 401
        assert api.get("tail", topic=topic).status == 401
        (record,) = api.with_token("records", topic=topic).json["records"]
        assert record["value"]["text"] == "classified"
        assert api.with_token("settings").status == 200
        assert "a-secret" not in api.with_token("settings").body.decode()


def test_a_wrong_login_is_told(properties: Path) -> None:
    properties.write_text(properties.read_text().replace("a-secret", "wrong"))
    with serve("SASL_PLAINTEXT://127.0.0.1:0", **{"http.console.client.config": str(properties)}) as broker:
        api = Api(broker)
        answer = api.with_token("records", topic="t")
        assert answer.status == 403
        assert "wrong" not in answer.error
        properties.unlink()
        assert str(properties) in api.with_token("records", topic="t").error
