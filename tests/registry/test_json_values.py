"""Values as JSON: those of Confluent's serializers are read, and its deserializers read ours."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka.schema_registry import Schema as TheirSchema
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.schema_registry.schema_registry_client import SchemaReference
from confluent_kafka.serialization import MessageField, SerializationContext

from mpbroker import registry as registry_room
from mpbroker.registry import framing, protobuf, rest
from mpbroker.registry.json_values import Decoder, Encoder
from mpbroker.registry.rest import open_schemas
from mpbroker.registry.schemas import Kind, MissingPackage, RegistryUnavailable, Schema, SchemaError
from tests.support.client_tools import franz_program, run
from tests.support.schema_registry import SchemaRegistry, serving

PLACE = {"type": "record", "name": "Place", "namespace": "geo", "fields": [{"name": "zip", "type": "string"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "either", "type": ["null", "string", "long"]},
        {"name": "raw", "type": "bytes"},
        {"name": "by", "type": {"type": "map", "values": {"type": "array", "items": "double"}}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "was", "type": ["null", "State"], "default": None},
        {"name": "place", "type": ["null", "geo.Place"], "default": None},
    ],
}
ORDER_JSON = {
    "id": 7,
    "at": "2024-05-01T12:30:00Z",
    "price": "12.50",
    "either": "x",
    "raw": "AAE=",
    "by": {"a": [1.5]},
    "state": "PAID",
    "was": "NEW",
    "place": {"zip": "8000"},
}
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "common/money.proto";
message First { string name = 1; }
message Order {
  map<string, int32> counts = 1;
  message Line { string sku = 1; common.Money price = 2; }
  repeated Line lines = 2;
  google.protobuf.Timestamp at = 3;
  optional bytes raw = 4;
  oneof either { string text = 5; uint64 number = 6; }
  bool is_paid = 7;
}
"""
MONEY = 'syntax = "proto3"; package common; message Money { string currency = 1; int64 units = 2; }'
NESTED = 'syntax = "proto3"; message First {} message A { message B {} message C { int32 x = 1; } }'
JSON_SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "place": {"$ref": "place.json"}},
    "required": ["id"],
}
PLACE_JSON = {"type": "object", "properties": {"zip": {"type": "string"}}}
IN_VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(rest, "_PAUSE_SECONDS", 0)
    with serving() as server:
        yield server


@pytest.fixture
def client(registry: SchemaRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


def place(registry: SchemaRegistry) -> TheirSchema:
    registry.add("place", PLACE)
    return TheirSchema(json.dumps(ORDER), "AVRO", [SchemaReference("geo.Place", "place", 1)])


def shown(registry: SchemaRegistry, data: bytes, **settings: Any) -> tuple[Any, str]:
    found = Decoder(open_schemas(registry.url)).shown(data, **settings)
    assert found is not None
    return json.loads(found.json), found.name


def test_avro_goes_both_ways(registry: SchemaRegistry, client: SchemaRegistryClient) -> None:
    """Their serializer registers a schema with a reference; our values have its id."""
    schema = place(registry)
    theirs = AvroSerializer(client, schema)
    client.register_schema("orders-value", schema)
    encoder = Encoder(open_schemas(registry.url).by_subject("orders-value", "latest"))
    ours = encoder.encode(json.dumps(ORDER_JSON).encode())
    value = AvroDeserializer(client)(ours, IN_VALUE)
    assert value["place"] == {"zip": "8000"}
    assert shown(registry, theirs(value, IN_VALUE)) == (ORDER_JSON, "shop.Order")


def test_a_union_in_json_may_name_its_branch(registry: SchemaRegistry) -> None:
    state = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}
    schema = registry.add("u", ["null", "int", "string", {"type": "map", "values": "string"}, state])
    encoder = Encoder(open_schemas(registry.url).by_id(schema["id"]))
    for given, decoded in (
        (b"null", None),
        (b"5", 5),
        (b'"NEW"', "NEW"),
        (b'{"string": "x"}', "x"),
        (b'{"int": 5}', 5),
        (b'{"State": "PAID"}', "PAID"),
        (b'{"map": {"a": "b"}}', {"a": "b"}),
        (b'{"a": "b"}', {"a": "b"}),
    ):
        assert shown(registry, encoder.encode(given)) == (decoded, "union")
    for wrong in (b"1.5", b"[1]", b'{"a": 5}'):
        with pytest.raises(ValueError, match=r"Expected|symbol"):
            encoder.encode(wrong)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"idd": 1}, "shop.Order has no field idd"),
        ({"id": "7"}, "Expected `int`, got `str`"),
        ({"at": "2024-05-01T12:30:00"}, "timezone"),
        ({"price": "12.505"}, "[Ss]cale"),
        ({"raw": "?"}, "base64"),
        ({"state": "LOST"}, "shop.State has no symbol 'LOST'"),
        ({"by": {"a": 1}}, "Expected `array`"),
        ({"place": {"zip": 1}}, "Expected"),
    ],
)
def test_json_that_is_no_value_of_avro_is_refused(
    registry: SchemaRegistry, changed: dict[str, Any], said: str
) -> None:
    registry.add("place", PLACE)
    references = [{"name": "geo.Place", "subject": "place", "version": 1}]
    number = registry.add("orders-value", ORDER, references=references)["id"]
    encoder = Encoder(open_schemas(registry.url).by_id(number))
    with pytest.raises(ValueError, match=said):
        encoder.encode(json.dumps(ORDER_JSON | changed).encode())
    with pytest.raises(ValueError, match="missing from the record"):
        encoder.encode(b'{"id": 7}')


def classes(path: framing.Path) -> Any:
    """The class of a message, and of one that it needs, as a program has them that was compiled."""
    schema = Schema(Kind.PROTOBUF, PROTO, (("common/money.proto", MONEY),))
    messages = protobuf.messages_of(schema)
    return type(protobuf.new(messages.at(path)))


@pytest.mark.process
@pytest.mark.parametrize("gives_descriptors", [True, False])
def test_protobuf_goes_both_ways(
    registry: SchemaRegistry, client: SchemaRegistryClient, gives_descriptors: bool
) -> None:
    """Their serializer registers descriptors, imported files first; a registry may give text."""
    registry.gives_descriptors = gives_descriptors
    order = classes((1,))
    theirs = ProtobufSerializer(order, client, {"use.deprecated.format": False})
    value = order(counts={"a": 1}, raw=b"\0", number=1 << 63)
    value.lines.add(sku="s").price.units = 5
    value.at.FromJsonString("2024-05-01T12:30:00Z")
    whole = {
        "counts": {"a": 1},
        "lines": [{"sku": "s", "price": {"currency": "", "units": "5"}}],
        "at": "2024-05-01T12:30:00Z",
        "raw": "AA==",
        "number": str(1 << 63),
        "is_paid": False,
    }
    data = theirs(value, IN_VALUE)
    assert data is not None
    assert shown(registry, data) == (whole, "shop.Order")
    registry.add("money", MONEY, "PROTOBUF")
    references = [{"name": "common/money.proto", "subject": "money", "version": 1}]
    number = registry.add("text", PROTO, "PROTOBUF", references)["id"]
    schema = open_schemas(registry.url).by_id(number)
    assert (base64.b64encode(base64.b64decode(schema.text)) == schema.text.encode()) is gives_descriptors
    ours = Encoder(schema, "Order").encode(json.dumps(whole).encode())
    assert ours[:7] == b"\0" + number.to_bytes(4, "big") + b"\2\2"
    assert ProtobufDeserializer(order, {"use.deprecated.format": False})(ours, IN_VALUE) == value
    # The entries of the map are no message that a path counts.
    line = Encoder(schema, "shop.Order.Line").encode(b'{"sku": "s"}')
    assert line[5:8] == b"\4\2\0"
    assert shown(registry, line)[1] == "shop.Order.Line"
    with pytest.raises(ValueError, match="no field named"):
        Encoder(schema).encode(b'{"nosuch": 1}')
    with pytest.raises(SchemaError, match="no message Nosuch"):
        Encoder(schema, "Nosuch")


def test_json_schema_goes_both_ways(registry: SchemaRegistry, client: SchemaRegistryClient) -> None:
    registry.add("place.json", PLACE_JSON, "JSON")
    schema = TheirSchema(json.dumps(JSON_SCHEMA), "JSON", [SchemaReference("place.json", "place.json", 1)])
    value = {"id": 7, "place": {"zip": "8000"}}
    data = JSONSerializer(schema, client)(value, IN_VALUE)
    assert data is not None
    assert shown(registry, data) == (value, "Order")
    encoder = Encoder(open_schemas(registry.url).by_subject("orders-value", "latest"))
    ours = encoder.encode(json.dumps(value).encode())
    assert JSONDeserializer(schema, schema_registry_client=client)(ours, IN_VALUE) == value
    found = Decoder(open_schemas(registry.url)).shown(ours[:5] + json.dumps(value, indent=2).encode())
    assert found is not None
    assert found.json == b'{"id":7,"place":{"zip":"8000"}}'
    for wrong, said in (({"id": "7"}, r"\$.id: '7' is not of type"), ({"id": 1, "place": {"zip": 1}}, "zip")):
        with pytest.raises(ValueError, match=said):
            encoder.encode(json.dumps(wrong).encode())


def test_a_header_may_name_the_schema(registry: SchemaRegistry, client: SchemaRegistryClient) -> None:
    headers: list[tuple[str, bytes]] = []
    context = SerializationContext("orders", MessageField.KEY, headers)
    theirs = AvroSerializer(client, '"string"', conf={"schema.id.serializer": header_schema_id_serializer})
    data = theirs("x", context)
    assert data == b"\2x"
    assert shown(registry, data, headers=tuple(headers), is_key=True) == ("x", "string")
    assert Decoder(open_schemas(registry.url)).shown(data, tuple(headers)) is None


def test_bytes_that_are_not_what_the_registry_says_are_not_shown(registry: SchemaRegistry) -> None:
    """A text may begin with zeros; a schema may be broken; an id may be another registry's."""
    string = registry.add("s", "string")["id"]
    broken = registry.add("b", "{")["id"]
    json_id = registry.add("j", {}, "JSON")["id"]
    other = registry.add("o", "x", "OTHER")["id"]
    decoder = Decoder(open_schemas(registry.url))
    for data in (
        *(b"", b"plain", b"\0\0", framing.prefix(99) + b"\2x", framing.prefix(string) + b"\2xy"),
        *(framing.prefix(string) + b"\4x", framing.prefix(broken) + b"\2x", framing.prefix(json_id) + b"{"),
        framing.prefix(other) + b"x",
        None,
    ):
        assert decoder.shown(data) is None
    assert [one.endswith("/99") for one in registry.asked].count(True) == 1
    registry.failures = 100
    with pytest.raises(RegistryUnavailable, match="503"):
        decoder.shown(framing.prefix(98) + b"\2x")


def test_a_schema_without_an_id_frames_nothing() -> None:
    with pytest.raises(SchemaError, match="without an id"):
        Encoder(Schema(Kind.AVRO, '"int"'))
    assert Encoder(Schema(Kind.AVRO, '"int"', id=1)).encode(b"5") == b"\0\0\0\0\1\n"


@pytest.mark.parametrize(
    ("module", "package"),
    [("avro", "fastavro"), ("protobuf", "google.protobuf"), ("json_schema", "jsonschema.validators")],
)
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(
    module: str, package: str
) -> None:
    schema = Schema(Kind[{"json_schema": "JSON"}.get(module, module.upper())], '{"type": "object"}', id=1)
    without = {name: one for name, one in sys.modules.items() if name != f"mpbroker.registry.{module}"}
    with (
        patch.dict(sys.modules, {**without, package: None}, clear=True),
        patch.object(registry_room, module, create=True),
    ):
        delattr(registry_room, module)
        with pytest.raises(
            MissingPackage, match=r"values need .*: .*pip install 'mpbroker-server\[registry\]'"
        ):
            Encoder(schema)


@pytest.mark.clients
@pytest.mark.parametrize(
    ("kind", "text", "message", "index", "value"),
    [
        (Kind.AVRO, json.dumps(PLACE), None, [], {"zip": "8000"}),
        (Kind.JSON, json.dumps(PLACE_JSON), None, [], {"zip": "8000"}),
        (Kind.PROTOBUF, MONEY, None, [0], {"currency": "CHF", "units": "5"}),
        (Kind.PROTOBUF, NESTED, "A.C", [1, 1], {"x": 5}),
    ],
)
def test_franz_go_frames_values_alike(
    registry: SchemaRegistry, kind: Kind, text: str, message: str | None, index: list[int], value: Any
) -> None:
    """Check that its serializer writes our bytes, and that its deserializer reads them."""
    number = registry.add("s", text, kind)["id"]
    schemas = open_schemas(registry.url)
    ours = Encoder(schemas.by_id(number), message).encode(json.dumps(value).encode())
    framed = framing.read(ours)
    data = ours[framed.path()[1] if index else framed.data_start :]
    asked = {"subject": "s", "schema": text, "kind": kind, "index": index}
    values = {name: base64.b64encode(one).decode() for name, one in (("data", data), ("framed", ours))}
    said = run([franz_program(), "framed", registry.url], json.dumps(asked | values).encode())
    theirs, found, schema = (base64.b64decode(line) for line in said.split())
    assert (theirs, found, schema.decode()) == (ours, data, text)
    assert shown(registry, theirs)[0] == {**shown(registry, ours)[0], **value}
