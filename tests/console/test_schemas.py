"""The console with a schema registry: values are JSON, and a registry that fails costs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.client.errors import ClientConfigError
from mpbroker.config.broker import BrokerConfig
from mpbroker.console.record_view import PREVIEW_BYTES
from mpbroker.console.schemas import decoder_of
from mpbroker.registry import framing
from mpbroker.registry.json_values import Encoder
from mpbroker.registry.schemas import Kind, Schema
from mpbroker.testing import Broker
from tests.console.conftest import Api, produce
from tests.console.test_with_broker import next_records, tail
from tests.support.schema_registry import SchemaRegistry

ORDER = {"type": "record", "name": "shop.Order", "fields": [{"name": "text", "type": "string"}]}


@pytest.fixture(scope="module")
def http_settings(registry_settings: dict[str, str]) -> dict[str, str]:
    return registry_settings


@pytest.fixture
def encoder(registry: SchemaRegistry) -> Iterator[Encoder]:
    number = registry.add("orders-value", ORDER)["id"]
    yield Encoder(Schema(Kind.AVRO, registry.schemas[number]["schema"], id=number))
    registry.failures = 0


def test_values_with_schemas_are_json_in_lists_records_and_tails(
    broker: Broker, api: Api, registry: SchemaRegistry, encoder: Encoder
) -> None:
    topic = broker.create_topic()
    short, long = encoder.encode(b'{"text": "x"}'), encoder.encode(b'{"text": "%s"}' % (b"y" * 1000))
    key = registry.add("orders-key", "string")["id"]
    produce(broker, topic, {"value": short, "key": framing.prefix(key) + b"\2k"}, {"value": long})
    produce(broker, topic, {"value": b"\0\0\0\0\1"}, {"value": None})
    found = api.found("records", topic=topic, **{"from": "beginning"})
    first, second, third, last = found["records"]
    schema = {"id": encoder_id(encoder), "type": "AVRO", "name": "shop.Order"}
    assert first["value"] == {
        "n": 7,
        "text": short.decode(),
        "json": '{"text":"x"}',
        "json_cut": False,
        "schema": schema,
    }
    assert first["key"]["json"] == '"k"'
    assert (len(second["value"]["json"]), second["value"]["json_cut"]) == (PREVIEW_BYTES, True)
    assert "json" not in third["value"]
    assert last["value"] is None
    assert found["registry"] == ""
    assert registry.authorization == "Basic YW5uOnNlY3JldA=="
    (whole,) = api.found("record", topic=topic, partition=0, offset=1)["records"]
    assert whole["value"]["json"] == '{"text":"%s"}' % ("y" * 1000)
    assert api.get("value", topic=topic, partition=0, offset=0).body == short
    with tail(api, topic) as answer:
        answer.readline()
        produce(broker, topic, {"value": short})
        assert next_records(answer)[0]["value"]["json"] == '{"text":"x"}'


def encoder_id(encoder: Encoder) -> int:
    return framing.read(encoder.encode(b'{"text": ""}')).schema_id  # type: ignore[return-value]


def test_a_registry_that_fails_is_named_and_records_are_shown(
    broker: Broker, api: Api, registry: SchemaRegistry
) -> None:
    topic = broker.create_topic()
    produce(broker, topic, {"value": framing.prefix(77) + b"x"}, {"value": "text"})
    registry.failures = 1
    found = api.found("records", topic=topic, **{"from": "beginning"})
    assert "/schemas/ids/77: the registry answers 503" in found["registry"]
    assert [one["value"].get("text") for one in found["records"]][1] == "text"
    assert len(registry.asked) == len(set(registry.asked))


def test_settings_that_are_wrong_are_named(tmp_path: Path) -> None:
    assert decoder_of(BrokerConfig()) is None
    file = tmp_path / "registry.properties"
    config = BrokerConfig(http_console_schema_registry_config=str(file))
    with pytest.raises(ClientConfigError, match="No such file"):
        decoder_of(config)
    file.write_text("url=nowhere")
    with pytest.raises(ClientConfigError, match=r"registry.properties: registry: it needs a url"):
        decoder_of(config)
