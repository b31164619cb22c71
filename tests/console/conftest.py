"""A broker with a console, what it answers, and topics with records of every kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer

from mpbroker.ipc import console_token
from mpbroker.testing import Broker
from tests.support.http_broker import HTTP, Answer, HttpClient, broker, own_broker
from tests.support.polling import PATIENCE_S
from tests.support.schema_registry import SchemaRegistry, serving

__all__ = ["broker", "own_broker"]
SETTINGS = {**HTTP, "http.console.write": "true"}
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
BIG_BYTES = 900_000


class Api(HttpClient):
    """A client of a broker's console."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.token = console_token.read(Path(self.pointer.runtime_dir))

    def get(self, name: str, **params: object) -> Answer:
        return self.ask("GET", f"/api/{name}?{urlencode(params)}")

    def found(self, name: str, **params: object) -> Any:
        """Return an answer that has to be there."""
        answer = self.get(name, **params)
        assert answer.status == 200, answer.body
        return answer.json

    def with_token(self, name: str, **params: object) -> Answer:
        return self.ask("GET", f"/api/{name}?{urlencode(params)}", authorization=f"Bearer {self.token}")

    def change(self, name: str, **fields: object) -> Answer:
        """Make a change as the page does."""
        return self.ask(
            "POST",
            "/api/change",
            json.dumps({"change": name, **fields}).encode(),
            authorization=f"Bearer {self.token}",
            origin=f"http://{self.address}",
            content_type="application/json",
        )


def produce(broker: Broker, topic: str, *records: dict[str, Any], **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    for record in records:
        producer.produce(topic, **{"partition": 0, **record})
    assert producer.flush(PATIENCE_S) == 0


def transact(broker: Broker, topic: str, value: str, *, commits: bool) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"{topic}-{value}"}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.flush(PATIENCE_S)
    (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)


@pytest.fixture(scope="module")
def http_settings() -> dict[str, str]:
    return SETTINGS


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def registry_settings(registry: SchemaRegistry, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings of a console that knows the registry."""
    file = tmp_path_factory.mktemp("registry") / "registry.properties"
    file.write_text(f"schema.registry.url={registry.url}\nbasic.auth.user.info=ann:secret\n")
    return {**SETTINGS, "http.console.schema.registry.config": str(file)}


@pytest.fixture(scope="module")
def api(broker: Broker) -> Api:
    return Api(broker)
