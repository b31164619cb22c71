"""Functions on columns with a registry: Avro, Protobuf and JSON Schema, both ways, with ids that evolve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col

from mpbroker.reading.errors import OptionError
from mpbroker.registry import framing, protobuf
from mpbroker.registry.json_values import Decoder, Encoder
from mpbroker.registry.rest import open_schemas
from mpbroker.registry.schemas import Kind, Schema
from mpbroker.spark.functions import (
    from_avro,
    from_json_schema,
    from_protobuf,
    to_avro,
    to_json_schema,
    to_protobuf,
)
from spark_integration.decoding import Encoding, Subject, checked, encoding, json_decoding, protobuf_decoding
from spark_integration.values import CORRUPT, Mode
from tests.support.schema_registry import SchemaRegistry, serving

NOON = datetime(2024, 5, 1, 12, 30, 0, 123456, UTC)
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "wall", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "either", "type": ["null", "string", "long"]},
        {"name": "wide", "type": ["int", "long"]},
        {"name": "by", "type": {"type": "map", "values": ["null", {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": ["string", "int"]}]}]}},
        {"name": "lines", "type": {"type": "array", "items": "Line"}},
        {"name": "more", "type": "string", "default": "none"},
    ],
}  # fmt: skip
ORDER_DDL = (
    "struct<id:bigint,at:timestamp,wall:timestamp_ntz,day:date,price:decimal(9,2),"
    "either:struct<member0:string,member1:bigint>,wide:bigint,"
    "by:map<string,struct<sku:struct<member0:string,member1:int>>>,"
    "lines:array<struct<sku:struct<member0:string,member1:int>>>,more:string>"
)
LINE = Row(sku=Row(member0=None, member1=5))
ORDERS = [
    Row(
        id=7,
        at=NOON,
        wall=datetime(2024, 5, 1),  # noqa: DTZ001
        day=date(2024, 5, 1),
        price=Decimal("12.50"),
        either=Row(member0=None, member1=3),
        wide=1 << 40,
        by={"a": Row(sku=Row(member0="x", member1=None)), "b": None},
        lines=[LINE, LINE],
        more="yes",
    ),
    None,
]
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
message Other { string name = 1; }
message Order {
  message Line { string sku = 1; optional int32 count = 2; }
  enum State { NEW = 0; PAID = 1; }
  int64 id = 1;
  map<string, Line> by = 2;
  map<int32, bool> flags = 3;
  repeated Line lines = 4;
  repeated sint32 numbers = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.Duration took = 7;
  google.protobuf.Struct any = 8;
  google.protobuf.Int64Value maybe = 9;
  State state = 10;
  oneof either { string text = 11; uint64 large = 12; }
  bytes raw = 13;
  float f = 14;
  uint32 u = 15;
}
"""
OF_PROTO = (
    "struct<id:bigint,by:map<string,struct<sku:string,count:int>>,flags:map<int,boolean>,"
    "lines:array<struct<sku:string,count:int>>,numbers:array<int>,at:timestamp,"
    "took:interval day to second,any:string,maybe:bigint,state:string,text:string,"
    "large:decimal(20,0),raw:binary,f:float,u:bigint>"
)
JSON_ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["null", "number"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "by": {"type": "object", "additionalProperties": {"type": "integer"}},
        "maybe": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/Place"}]},
        "any": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "tree": {"$ref": "#/definitions/Tree"},
    },
    "required": ["id"],
    "definitions": {
        "Place": {"type": "object", "properties": {"zip": {"type": "string"}}},
        "Tree": {"type": "object", "properties": {"inner": {"$ref": "#/definitions/Tree"}}},
    },
}
OF_JSON = (
    "struct<id:bigint,price:double,at:timestamp,day:date,tags:array<string>,by:map<string,bigint>,"
    "maybe:struct<zip:string>,any:string,tree:struct<inner:string>>"
)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with serving() as server:
        yield server


def rows(frame: DataFrame) -> list[Any]:
    return [row.v and row.v.asDict(recursive=True) for row in frame.select("v").collect()]


def test_avro_goes_round(spark: SparkSession, registry: SchemaRegistry) -> None:
    """The schema is registered once, while the query is written; workers ask nothing."""
    place = {"registry": registry.url, "subject": "orders-value"}
    frame = spark.createDataFrame([(one,) for one in ORDERS], f"v {ORDER_DDL}").coalesce(1)
    written = frame.select("v", to_avro("v", ORDER, **place).alias("a"))
    read = written.select(from_avro("a", **place, mode="FAILFAST").alias("v"))
    assert read.schema["v"].dataType.simpleString() == ORDER_DDL
    assert rows(read) == rows(frame)
    assert registry.asked == [
        "POST /subjects/orders-value/versions",
        "GET /subjects/orders-value/versions/latest",
    ]
    shown = Decoder(open_schemas(registry.url)).shown(bytes(written.select("a").first()["a"]))  # type: ignore[index]
    assert shown is not None
    assert json.loads(shown.json)["either"] == 3


def test_a_key_that_is_no_struct_and_data_alone_go_round(
    spark: SparkSession, registry: SchemaRegistry
) -> None:
    registry.add("orders-key", "string")
    frame = spark.createDataFrame([("k",), (None,)], "k string").coalesce(1)
    place = {"registry": registry.url, "subject": "orders-key"}
    framed = frame.select(to_avro("k", **place).alias("k"), to_avro("k", "string").alias("plain"))
    read = framed.select(from_avro("k", **place).alias("v"), from_avro("plain", "string").alias("p"))
    assert [(row.v and row.v.value, row.p and row.p.value) for row in read.collect()] == [
        ("k", "k"),
        (None, None),
    ]
    assert [bytes(row.plain) for row in framed.limit(1).collect()] == [b"\2k"]


def test_a_directory_has_no_schema_with_the_id_zero(tmp_path: Path) -> None:
    """What is found by its subject has no id there."""
    (tmp_path / "s.json").write_text(json.dumps(JSON_ORDER))
    decoding = json_decoding(Subject(str(tmp_path), "s"), None, Mode.PERMISSIVE)
    (row,) = decoding.decode(pa.array([framing.prefix(0) + b"{}"], pa.binary())).to_pylist()
    assert "0.json does not exist" in row[CORRUPT]["error"]
    with pytest.raises(OptionError, match="s has no id to frame values with"):
        encoding(Kind.JSON, Subject(str(tmp_path), "s"), None, None, auto_register=False)


def test_a_worker_asks_once_for_each_id(spark: SparkSession, registry: SchemaRegistry) -> None:
    """Of several versions in one batch; that of the columns came with the query."""
    kinds = ("int", "float", "long", "double")
    numbers = [registry.add("numbers-value", one)["id"] for one in kinds]
    data = [
        (bytearray(framing.prefix(one) + b"\0" * size),)
        for one, size in zip(numbers, (1, 4, 1, 8), strict=True)
    ]
    frame = spark.createDataFrame(data * 50, "value binary").coalesce(1)
    place = {"registry": registry.url, "subject": "numbers-value"}
    read = frame.select(from_avro("value", **place, mode="FAILFAST").alias("v"))
    assert {row["value"] for row in rows(read)} == {0.0}
    *others, own = numbers
    latest = "GET /subjects/numbers-value/versions/latest"
    assert registry.asked == [latest, *(f"GET /schemas/ids/{one}" for one in others)]
    assert own == max(numbers)


def test_a_schema_that_is_not_to_be_registered_must_be_there(registry: SchemaRegistry) -> None:
    place = Subject(registry.url, "orders-value")
    text = json.dumps(ORDER)
    with pytest.raises(OptionError, match=r"the registry has no .*/subjects/orders-value"):
        encoding(Kind.AVRO, place, text, None, auto_register=False)
    with pytest.raises(OptionError, match=r"the registry has no .*/subjects/orders-value"):
        encoding(Kind.AVRO, place, None, None, auto_register=True)
    assert not registry.subjects
    number = registry.add("orders-value", text)["id"]
    assert encoding(Kind.AVRO, place, text, None, auto_register=False).schema.id == number
    assert encoding(Kind.AVRO, place, None, None, auto_register=False).schema.id == number
    with pytest.raises(OptionError, match="is AVRO, not JSON"):
        encoding(Kind.JSON, place, None, None, auto_register=False)
    with pytest.raises(OptionError, match="Avro schema"):
        encoding(Kind.AVRO, place, "{", None, auto_register=True)
    with pytest.raises(OptionError, match="TOPIC-value"):
        encoding(Kind.AVRO, Subject(registry.url, None), None, None, auto_register=True)


def test_the_name_of_a_type_is_registered_as_json(registry: SchemaRegistry) -> None:
    """Apicurio and Confluent's registry refuse the bare name."""
    encoding(Kind.AVRO, Subject(registry.url, "orders-key"), "string", None, auto_register=True)
    assert registry.version("orders-key", 1)["schema"] == '"string"'


def test_a_row_that_does_not_fit_ends_the_query() -> None:
    def encode(schema: Any, row: Any, kind: Any) -> None:
        Encoding(Schema(Kind.AVRO, json.dumps(schema), id=1)).encode(pa.array([row], kind))

    either = {"name": "u", "type": ["null", "string", "long"], "default": None}
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, either]}
    a, b = pa.field("a", pa.int64()), pa.field("b", pa.int64())
    for kind, row, said in (
        (pa.struct([a, b]), {"a": 1, "b": 2}, "R has no field b"),
        (pa.struct([]), {}, "missing"),
        (pa.struct([a]), {"a": None}, "Expected `int`, got `null`"),
        (pa.struct([a]), {"a": 1 << 40}, "2147483647"),
        (pa.struct([pa.field("a", pa.bool_())]), {"a": True}, "got `bool`"),
        (pa.struct([pa.field("u", pa.struct([a, b]))]), {"u": {"a": 1, "b": None}}, "Expected"),
    ):
        with pytest.raises(ValueError, match=f"does not fit the AVRO schema: .*({said})"):
            encode(record, row, kind)


@pytest.mark.parametrize("gives_descriptors", [True, False])
def test_protobuf_goes_round(spark: SparkSession, registry: SchemaRegistry, gives_descriptors: bool) -> None:
    registry.gives_descriptors = gives_descriptors
    place: dict[str, Any] = {"registry": registry.url, "subject": "orders-value", "message": "Order"}
    by, flags, lines = {"a": Row("s", None)}, {3: True}, [Row("", 5)]
    row = Row(
        *(7, by, flags, lines, [-1, 2], NOON, timedelta(seconds=1.5), '{"a": [1.0]}', 0, "PAID", None),
        *(Decimal((1 << 64) - 1), bytearray(b"\0"), 0.5, (1 << 32) - 1),
    )
    empty = Row(*[None] * 15)
    frame = spark.createDataFrame([(row,), (empty,), (None,)], f"v {OF_PROTO}").coalesce(1)
    written = frame.select(to_protobuf("v", PROTO, **place).alias("p"))
    read = written.select(from_protobuf("p", **place, mode="FAILFAST").alias("v"))
    assert read.schema["v"].dataType.simpleString() == OF_PROTO
    found = rows(read)
    assert found[0] == rows(frame)[0]
    # Fields without presence have their default, others are null.
    assert found[1] == {
        **dict.fromkeys(("at", "took", "any", "maybe", "text", "large")),
        "id": 0,
        "by": {},
        "flags": {},
        "lines": [],
        "numbers": [],
        "state": "NEW",
        "raw": b"",
        "f": 0.0,
        "u": 0,
    }
    assert found[2] is None


def test_messages_of_several_versions_are_read_by_the_numbers_of_their_fields(
    registry: SchemaRegistry,
) -> None:
    """Each id is asked for once; another message, an unknown id and other bytes are corrupt."""
    head = 'syntax = "proto3"; message A {'
    first = registry.add("s", f"{head} int32 old = 1; }} message B {{}}", "PROTOBUF")["id"]
    second = registry.add("s", f"{head} int32 id = 1; string name = 2; }} message B {{}}", "PROTOBUF")["id"]
    decoding = protobuf_decoding(Subject(registry.url, "s"), None, Mode.PERMISSIVE)
    registry.asked.clear()
    data = [
        framing.prefix(first, (0,)) + b"\x08\x05",
        framing.prefix(second, (0,)) + b"\x08\x06\x12\x01x",
        framing.prefix(first, (0,)) + b"\x08\x07",
        framing.prefix(first, (1,)),
        framing.prefix(9, (0,)),
        framing.prefix(second, (0,)) + b"\xff",
        framing.prefix(second),
    ]
    found = decoding.decode(pa.array(data, pa.binary())).to_pylist()
    assert [(row["id"], row["name"]) for row in found[:3]] == [(5, ""), (6, "x"), (7, "")]
    errors = [row[CORRUPT]["error"] for row in found[3:]]
    for error, said in zip(
        errors, ("message B, not A", "no http", "no message A", "ends within"), strict=True
    ):
        assert said in error
    # The subject's own schema came with the query.
    assert registry.asked == [f"GET /schemas/ids/{number}?format=serialized" for number in (first, 9)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("message A { A a = 1; }", "A contains itself"),
        ("enum E { X = 0; }", "it has no messages"),
        ("message {", "Expected message name"),
    ],
)
def test_protobuf_schemas_that_spark_cannot_have_are_named(
    registry: SchemaRegistry, text: str, said: str
) -> None:
    registry.gives_descriptors = False
    registry.add("s", f'syntax = "proto3"; {text}', "PROTOBUF")
    with pytest.raises(OptionError, match=said):
        protobuf_decoding(Subject(registry.url, "s"), None, Mode.PERMISSIVE)


LEVELS = 30
DEEP_AVRO = [
    {"type": "record", "name": f"R{level}", "fields": [
        {"name": name, "type": f"R{level - 1}" if level else "int"} for name in ("a", "b")]}
    for level in range(LEVELS)
]  # fmt: skip
DEEP_PROTO = "message M0 { int32 a = 1; } " + " ".join(
    f"message M{level} {{ M{level - 1} a = 1; M{level - 1} b = 2; }}" for level in range(1, LEVELS)
)
DEEP_JSON = {
    "$ref": f"#/definitions/D{LEVELS - 1}",
    "definitions": {
        f"D{level}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/definitions/D{level - 1}"} if level else {} for name in "ab"},
        }
        for level in range(LEVELS)
    },
}


def test_a_short_schema_with_billions_of_columns_is_refused(registry: SchemaRegistry) -> None:
    """Each record has the one before it twice."""
    avro, *others = DEEP_AVRO
    for one in others:
        # The first mention defines it, the second is its name.
        one["fields"][0]["type"] = avro
        avro = one
    registry.gives_descriptors = False
    registry.add("p", f'syntax = "proto3"; {DEEP_PROTO}', "PROTOBUF")
    registry.add("j", DEEP_JSON, "JSON")
    for refused in (
        lambda: checked(Encoding(Schema(Kind.AVRO, json.dumps(avro)))),
        lambda: protobuf_decoding(Subject(registry.url, "p"), f"M{LEVELS - 1}", Mode.PERMISSIVE),
        lambda: json_decoding(Subject(registry.url, "j"), None, Mode.PERMISSIVE),
    ):
        with pytest.raises(OptionError, match="becomes more than 20,000 types"):
            refused()


def test_rows_that_are_no_message_are_refused() -> None:
    schema = Schema(
        Kind.PROTOBUF, 'syntax = "proto3"; enum E { X = 0; } message A { int32 i = 1; E e = 2; }', id=1
    )
    assert protobuf.messages_of(schema)
    for row, said in (
        ({"nosuch": 1}, "A has no field nosuch"),
        ({"i": 1 << 40}, "out of range"),
        ({"e": "Y"}, "Y"),
    ):
        with pytest.raises(ValueError, match=f"does not fit the PROTOBUF schema: .*{said}"):
            Encoding(schema).encode(pa.array([row]))


def test_json_schema_goes_round(spark: SparkSession, registry: SchemaRegistry) -> None:
    place = {"registry": registry.url, "subject": "orders-value"}
    full = Row(7, 1.5, NOON, date(2024, 5, 1), ["a"], {"k": 1}, Row("8000"), "x", Row(None))
    frame = spark.createDataFrame([(full,), (Row(8, *[None] * 8),), (None,)], f"v {OF_JSON}").coalesce(1)
    written = frame.select(to_json_schema("v", JSON_ORDER, **place).alias("j"))
    read = written.select(from_json_schema("j", **place, mode="FAILFAST").alias("v"))
    assert read.schema["v"].dataType.simpleString() == OF_JSON
    assert rows(read) == rows(frame)
    ddl = written.select(from_json_schema(col("j"), "id int, price string", registry=registry.url).alias("v"))
    assert [row and (row["id"], row["price"]) for row in rows(ddl)] == [(7, "1.5"), (8, None), None]


def test_json_that_does_not_fit_is_corrupt_or_refused(registry: SchemaRegistry) -> None:
    number = registry.add("s", JSON_ORDER, "JSON")["id"]
    avro = registry.add("t", "string")["id"]
    decoding = json_decoding(Subject(registry.url, "s"), None, Mode.PERMISSIVE)
    data = [
        framing.prefix(number) + b'{"id": 5, "any": {"a": [1]}, "tree": {"inner": {"inner": null}}}',
        framing.prefix(number) + b"[]",
        framing.prefix(number) + b"{",
        framing.prefix(number) + b'{"id": "x"}',
        framing.prefix(number) + b'{"id": 1e-999999999}',
        framing.prefix(number) + b'{"id": 1e999999999}',
        framing.prefix(avro) + b"{}",
        b"{}",
    ]
    good, *bad = decoding.decode(pa.array(data, pa.binary())).to_pylist()
    assert (good["id"], good["any"], good["tree"]) == (5, '{"a":[1]}', {"inner": '{"inner":null}'})
    reasons = (
        *("an object", "truncated", "'x'", "beyond all decimals", "beyond all decimals"),
        *("is AVRO", "does not begin"),
    )
    for row, said in zip(bad, reasons, strict=True):
        assert said in row[CORRUPT]["error"]
    schema = open_schemas(registry.url).by_id(number)
    with pytest.raises(ValueError, match=r"does not fit the JSON schema: .*'id' is a required"):
        Encoding(schema).encode(pa.array([{"price": 1.0}]))


@pytest.mark.parametrize(
    ("schema", "value", "column"),
    [
        ({"type": "string"}, b'"x"', "x"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, b'{"a": 1}', [("a", 1)]),
        ({"type": "array", "items": {"type": "integer"}}, b"[1, 2]", [1, 2]),
        (True, b'{"a": 1}', '{"a":1}'),
    ],
)
def test_json_without_properties_gives_one_field(
    registry: SchemaRegistry, schema: Any, value: bytes, column: Any
) -> None:
    number = registry.add("s", schema, "JSON")["id"]
    decoding = json_decoding(Subject(registry.url, "s"), None, Mode.FAILFAST)
    encoded = Encoder(open_schemas(registry.url).by_id(number)).encode(value)
    assert decoding.decode(pa.array([encoded], pa.binary())).to_pylist() == [{"value": column}]
