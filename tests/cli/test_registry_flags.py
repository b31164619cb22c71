"""`mpbroker consume` and `produce` with a schema registry: what names a schema there is JSON for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from mpbroker.cli.registry_flags import RegistryAddress, _open
from mpbroker.registry import rest
from tests.support.own_cli import OwnCli
from tests.support.schema_registry import SchemaRegistry, serving

ORDER = {"type": "record", "name": "shop.Order", "fields": [{"name": "id", "type": "long"}]}
PROTO = 'syntax = "proto3"; package shop; message First {} message Order { int64 id = 1; }'
EVERYTHING = ("--from-beginning", "-e")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(rest, "_PAUSE_SECONDS", 0)
    with serving() as server:
        yield server


def test_values_with_schemas_are_shown_beside_others(
    cli: OwnCli, mpbroker_topic: str, registry: SchemaRegistry
) -> None:
    """Confluent's serializer wrote the first; the others are no value of a schema of this registry."""
    with SchemaRegistryClient({"url": registry.url}) as client:
        context = SerializationContext(mpbroker_topic, MessageField.VALUE)
        framed = AvroSerializer(client, json.dumps(ORDER))({"id": 7}, context)
    others = (b"plain", None, b"\0\0\0\0\x09\2", b"\0\0\0\0\1\2x", "é".encode())
    producer = Producer({"bootstrap.servers": cli.bootstrap})
    for value in (framed, *others):
        producer.produce(mpbroker_topic, value, b"k")
    producer.flush()
    flags = ("--schema-registry", registry.url)
    raw = cli("consume", mpbroker_topic, *EVERYTHING, "--json").out.splitlines()
    shown = cli("consume", mpbroker_topic, *EVERYTHING, "--json", *flags).out.splitlines()
    assert shown[1:] == raw[1:]
    first = json.loads(shown[0])
    assert (first["key"], first["value"]) == ("k", {"id": 7})
    assert first["value_schema"] == {"id": 1, "type": "AVRO", "name": "shop.Order"}
    text = cli("consume", mpbroker_topic, *EVERYTHING, "-n", "2", "-f", "%k %v\\n", *flags).out
    assert text == 'k {"id":7}\nk plain\n'


def test_a_file_has_the_login_for_an_address_in_any_case(tmp_path: Path) -> None:
    config = tmp_path / "registry.properties"
    config.write_text("bearer.auth.token=secret\n")
    opened = _open(RegistryAddress("HTTPS://registry:8081", config))
    assert isinstance(opened, rest.Registry)
    assert opened.headers == (("Authorization", "Bearer secret"),)


def test_lines_are_encoded_and_go_round(
    cli: OwnCli, mpbroker_topic: str, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it by subject and by id, for lines of text and of JSON. A tombstone stays a tombstone."""
    number = registry.add("orders-value", ORDER)["id"]
    registry.add("orders-key", "string")
    monkeypatch.setenv("MPBROKER_SCHEMA_REGISTRY", registry.url)
    by_id = ("--value-schema-id", str(number), "--key-subject", "orders-key")
    cli.produce(mpbroker_topic, ['"a":{"id": 1}', '"b":'], "-K", ":", "--null", "", *by_id)
    lines = ['{"key": "c", "value": {"id": 3}}', '{"value": null}']
    cli.produce(
        mpbroker_topic, lines, "--json", "--value-subject", "orders-value", "--key-subject", "orders-key"
    )
    printed = cli("consume", mpbroker_topic, *EVERYTHING, "-f", "%k|%v|%S\\n").out.splitlines()
    assert printed == ['"a"|{"id":1}|8', '"b"||-1', '"c"|{"id":3}|8', "||-1"]
    copied = cli("consume", mpbroker_topic, *EVERYTHING, "--json").out.splitlines()
    cli.produce(mpbroker_topic, copied, "--json", *by_id)
    again = cli("consume", mpbroker_topic, *EVERYTHING, "-f", "%k|%v|%S\\n").out.splitlines()
    assert again == printed * 2
    said = cli.produce(mpbroker_topic, copied[:1], "--json", "--value-schema-id", str(number), code=2).err
    assert "line 1: its key was decoded with a schema: --key-subject or --key-schema-id" in said
    raw = cli("consume", mpbroker_topic, *EVERYTHING, "-n", "1", "--json", "--schema-registry", "/").json
    assert raw["key"] == "\0\0\0\0\2\2a"


def test_a_null_that_has_a_schema_is_no_tombstone(
    cli: OwnCli, mpbroker_topic: str, registry: SchemaRegistry
) -> None:
    registry.add("maybe-value", ["null", "int"])
    flags = ("--schema-registry", registry.url)
    lines = ['{"value": null}', '{"value": null, "value_schema": {"id": 1}}', '{"value": 5}']
    cli.produce(mpbroker_topic, lines, "--json", *flags, "--value-subject", "maybe-value")
    printed = cli("consume", mpbroker_topic, *EVERYTHING, "--json", *flags).out.splitlines()
    found = [json.loads(line) for line in printed]
    assert [(one["value"], "value_schema" in one) for one in found] == [
        (None, False),
        (None, True),
        (5, True),
    ]


def test_a_message_of_protobuf_may_be_chosen(
    cli: OwnCli, mpbroker_topic: str, registry: SchemaRegistry
) -> None:
    registry.add("orders-value", PROTO, "PROTOBUF")
    flags = ("--schema-registry", registry.url)
    wanted = ("--value-subject", "orders-value", "--value-message", "Order")
    cli.produce(mpbroker_topic, ['{"id": 5}'], *flags, *wanted)
    shown = cli("consume", mpbroker_topic, *EVERYTHING, "--json", *flags).json
    assert (shown["value"], shown["value_schema"]["name"]) == ({"id": "5"}, "shop.Order")


def test_wrong_lines_are_named_and_those_before_are_written(
    cli: OwnCli, mpbroker_topic: str, registry: SchemaRegistry
) -> None:
    registry.add("orders-value", ORDER)
    flags = ("--schema-registry", registry.url, "--value-subject", "orders-value")
    for lines, json_flag in (
        (['{"id": 1}', '{"id": "x"}'], ()),
        (['{"value": {"id": 1}}', '{"value": {"id": "x"}}'], ("--json",)),
    ):
        said = cli.produce(mpbroker_topic, lines, *flags, *json_flag, code=2)
        assert said.err == "mpbroker: line 2: Expected `int`, got `str`; 1 record is written\n"


def test_flags_that_do_not_go_together_are_refused(
    cli: OwnCli, mpbroker_topic: str, registry: SchemaRegistry, tmp_path: Path
) -> None:
    where = ("--schema-registry", registry.url)
    for words, said in (
        (("--value-subject", "s"), "a schema of the value needs --schema-registry"),
        ((*where, "--key-subject", "s", "--key-schema-id", "1"), "exclude each other"),
        ((*where, "--value-message", "M"), "goes with --value-schema-id"),
        ((*where, "--value-schema-id", "9"), "schema of the value: the registry has no"),
        (("--schema-registry", "nowhere", "--key-subject", "s"), "neither an http(s) address nor"),
    ):
        cli.refused("produce", mpbroker_topic, *words, says=said)
    properties = tmp_path / "registry.properties"
    properties.write_text(f"schema.registry.url={registry.url}\nbasic.auth.user.info=ann:secret\n")
    registry.wanted_authorization = "Basic YW5uOnNlY3JldA=="
    registry.add("orders-value", ORDER)
    found = ("--registry-config", str(properties))
    cli.produce(mpbroker_topic, ['{"id": 5}'], *found, "--value-subject", "orders-value")
    assert cli("consume", mpbroker_topic, *EVERYTHING, *found).out == '{"id":5}\n'
    said = cli("consume", mpbroker_topic, *EVERYTHING, *where, code=1).err
    assert "the registry answers 401 Unauthorized" in said
    both = ("--schema-registry", str(tmp_path), *found)
    cli.refused("consume", mpbroker_topic, *both, says="--registry-config goes with an address")
    properties.write_text("schema.registry.urls=x\n")
    cli.refused("consume", mpbroker_topic, *found, says="it has no setting urls, only url, basic")
