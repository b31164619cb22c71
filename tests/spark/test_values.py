"""Values decoded as workers do it and in queries: MessagePack, Avro, a registry on loopback, a directory."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from datetime import time as clock
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from mpbroker.reading.errors import OptionError
from mpbroker.registry import avro, rest
from mpbroker.registry.rest import Directory, open_schemas
from mpbroker.registry.schemas import RegistryUnavailable, SchemaError, UnknownSchema
from mpbroker.spark.functions import drop_malformed, from_avro, from_msgpack
from spark_integration import functions
from spark_integration.avro import AvroType, framed_decoder, plain_decoder
from spark_integration.decoding import msgpack_decoding
from spark_integration.values import CORRUPT, MalformedRecord, Mode, decode_column
from tests.support.schema_registry import SchemaRegistry, serving

NOON = datetime(2024, 5, 1, 12, 30, 0, 123456, UTC)


def kind_of(schema: StructType, mode: Mode) -> Any:
    return msgpack_decoding(schema, mode).arrow


def unpacked(ddl: str, values: list[Any], mode: Mode = Mode.PERMISSIVE) -> list[Any]:
    """What `from_msgpack` gives for these; bytes are taken as they are, others packed."""
    data = [
        value if value is None or isinstance(value, bytes) else msgspec.msgpack.encode(value)
        for value in values
    ]
    decoding = msgpack_decoding(functions._struct(ddl), mode)
    rows: list[Any] = decoding.decode(pa.array(data, pa.binary())).to_pylist()
    return rows


@pytest.mark.usefixtures("spark")
def test_message_pack_becomes_the_columns_of_the_schema() -> None:
    ddl = (
        "id bigint NOT NULL, name string, raw binary, at timestamp, day date, price decimal(10,2), "
        "tags array<int>, by map<string,double>, inner struct<q: string, at: timestamp_ntz>, ok boolean"
    )
    value = {
        "id": 7,
        "name": "é",
        "raw": b"\x00",
        "at": NOON,
        "day": "2024-05-01",
        "price": "12.50",
        "tags": [1, None],
        "by": {"x": 1.5},
        "inner": {"q": "z", "at": "2024-05-01T00:00:00"},
        "ok": True,
        "more": "is left out",
    }
    (row, nothing) = unpacked(ddl, [value, {}])
    assert row == {
        **{name: value[name] for name in ("id", "name", "raw", "at", "ok", "tags")},
        "day": date(2024, 5, 1),
        "price": Decimal("12.50"),
        "by": [("x", 1.5)],
        "inner": {"q": "z", "at": datetime(2024, 5, 1)},  # noqa: DTZ001
        CORRUPT: None,
    }
    assert set(nothing.values()) == {None}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("ddl", "value", "expected"),
    [
        ("id bigint", b"\xc1", "malformed"),
        ("id bigint", b"", "truncated"),
        ("id bigint", msgspec.msgpack.encode({"id": 1}) + b"\x01", "trailing"),
        ("id bigint", [1], "a map was expected, not list"),
        ("id bigint", {"id": "x"}, "'x' with type str"),
        ("id bigint", {"id": True}, "not bool"),
        ("id int", {"id": 1 << 40}, "too large"),
        ("id bigint", {"id": msgspec.msgpack.Ext(5, b"abc")}, "extension type 5"),
        ("name string", {"name": b"\xff\xff"}, "utf8"),
        ("at timestamp", {"at": 1_700_000_000}, "not int"),
        ("at timestamp", {"at": "2024-05-01T00:00:00"}, "no time zone"),
        ("at timestamp_ntz", {"at": NOON}, "has a time zone"),
        ("at timestamp", {"at": "today"}, "Invalid isoformat"),
        ("day date", {"day": 5}, "not int"),
        ("price decimal(4,2)", {"price": "123.45"}, "precision"),
        ("price decimal(4,2)", {"price": 1.5}, "not float"),
        ("price decimal(4,2)", {"price": "1e-999999999"}, "beyond all decimals"),
        ("s struct<d: date>", {"s": 5}, "a record was expected, not int"),
        ("m map<string,int>", {"m": [1]}, "a map was expected, not list"),
        ("a array<date>", {"a": "x"}, "an array was expected, not str"),
    ],
)
def test_what_does_not_fit_is_kept_with_the_reason(ddl: str, value: Any, expected: str) -> None:
    """The good records beside it are as ever, and null stays null."""
    good, bad, nothing = unpacked(ddl, [{}, value, None])
    assert good == dict.fromkeys([*functions._struct(ddl).names, CORRUPT])
    assert nothing is None
    corrupt = bad.pop(CORRUPT)
    assert set(bad.values()) == {None}
    assert corrupt["data"] == (value if isinstance(value, bytes) else msgspec.msgpack.encode(value))
    with pytest.raises(MalformedRecord, match=expected):
        unpacked(ddl, [{}, value, None], Mode.FAILFAST)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("ddl", ["id bigint", "l bigint", "l array<array<int>>"])
def test_values_nested_too_deeply_are_kept_with_the_reason(ddl: str) -> None:
    """Some are too deep for the decoder, others for the text of an error; both depend on the stack."""
    values = [b"\x81\xa1l" + b"\x91" * depth + b"\x01" for depth in (900, 950, 1000, 2000, 100_000)]
    *rows, good = unpacked(ddl, [*values, {}])
    assert good[CORRUPT] is None
    corrupt = [row[CORRUPT] for row in rows if row[CORRUPT]]
    assert [one["data"] for one in corrupt] == values[-len(corrupt) :]
    assert "recursion" in corrupt[-1]["error"]
    with pytest.raises(MalformedRecord, match="recursion"):
        unpacked(ddl, [values[-1]], Mode.FAILFAST)


@pytest.mark.usefixtures("spark")
def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(OptionError, match="drop_malformed"):
        functions.from_msgpack("value", "id bigint", mode="DROPMALFORMED")
    with pytest.raises(OptionError, match="not 'LENIENT'"):
        functions.from_msgpack("value", "id bigint", mode="lenient".upper())
    with pytest.raises(OptionError, match="a struct is needed"):
        functions.from_msgpack("value", "bigint")
    with pytest.raises(OptionError, match="needs a schema"):
        functions.from_avro("value")
    with pytest.raises(OptionError, match="neither an http"):
        functions.from_avro("value", registry="nowhere", subject="s")


LOGICAL = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "wall", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tms", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "tus", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "hash", "type": {"type": "fixed", "name": "Md", "size": 2}},
        {"name": "number", "type": ["int", "long"]},
        {"name": "either", "type": ["null", "string", "long"]},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [
                {"name": "sku", "type": "string"},
                {"name": "at", "type": {
                    "type": "map", "values": {"type": "int", "logicalType": "time-millis"}}},
            ]}}},
        {"name": "first", "type": ["null", "shop.Line"]},
        {"name": "tags", "type": {"type": "map", "values": "float"}},
    ],
}  # fmt: skip
ORDER = {
    "id": uuid.UUID(int=5),
    "state": "PAID",
    "before": None,
    "ms": NOON,
    "us": NOON,
    "wall": NOON.replace(tzinfo=None),
    "day": date(2024, 5, 1),
    "tms": clock(0, 0, 1, 5000),
    "tus": clock(1, 0, 0, 7),
    "price": Decimal("12.50"),
    "hash": b"ab",
    "number": 1 << 40,
    "either": "text",
    "lines": [{"sku": "a", "at": {"x": clock(0, 1)}}],
    "first": {"sku": "b", "at": {}},
    "tags": {"t": 0.5},
}


def encoded(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, named_schemas={}), value)
    return stream.getvalue()


def rows_of(spark: StructType, decode: Callable[[bytes], Any], data: list[bytes | None]) -> list[Any]:
    kind = kind_of(spark, Mode.PERMISSIVE)
    rows: list[Any] = decode_column(pa.array(data, pa.binary()), decode, kind, Mode.PERMISSIVE).to_pylist()
    return rows


def test_avro_types_become_those_of_spark() -> None:
    spark = AvroType(LOGICAL).spark
    types = {field.name: field.dataType.simpleString() for field in spark.fields}
    assert types == {
        "id": "string",
        "state": "string",
        "before": "string",
        "ms": "timestamp",
        "us": "timestamp",
        "wall": "timestamp_ntz",
        "day": "date",
        "tms": "int",
        "tus": "bigint",
        "price": "decimal(9,2)",
        "hash": "binary",
        "number": "bigint",
        "either": "struct<member0:string,member1:bigint>",
        "lines": "array<struct<sku:string,at:map<string,int>>>",
        "first": "struct<sku:string,at:map<string,int>>",
        "tags": "map<string,float>",
    }
    (row,) = rows_of(spark, plain_decoder(LOGICAL, None), [encoded(LOGICAL, ORDER)])
    assert row == {
        **ORDER,
        "id": str(ORDER["id"]),
        "ms": NOON.replace(microsecond=123000),
        "tms": 1005,
        "tus": 3_600_000_007,
        "either": {"member0": "text", "member1": None},
        "lines": [{"sku": "a", "at": [("x", 60_000)]}],
        "first": {"sku": "b", "at": []},
        "tags": [("t", 0.5)],
        CORRUPT: None,
    }


def test_a_schema_that_is_no_record_gives_one_field() -> None:
    spark = AvroType('"string"').spark
    assert spark.simpleString() == "struct<value:string>"
    text = rows_of(spark, plain_decoder("string", None), [encoded("string", "x")])
    assert text == [{"value": "x", CORRUPT: None}]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("{", "no JSON"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "nosuch"}]}, "nosuch"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
            "contains itself",
        ),
        (["string", {"type": "enum", "name": "E", "symbols": ["A"]}], "do not show their branch"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 0}, "50 digits"),
    ],
)
def test_schemas_that_spark_cannot_have_are_named(schema: Any, expected: str) -> None:
    with pytest.raises(SchemaError, match=expected):
        AvroType(schema)


FIRST = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "int"}]}
SECOND = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "id", "type": "long"}, {"name": "city", "type": ["null", "Place"], "default": None}],
}
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "zip", "type": "string"}]}
WHOLE_SECOND = json.loads(json.dumps(SECOND).replace('"Place"', json.dumps(PLACE)))


def framed(number: int, schema: Any, value: Any) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + encoded(schema, value)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(rest, "_PAUSE_SECONDS", 0)
    with serving() as server:
        server.add("users/value", FIRST)
        server.add("place", PLACE)
        references = [{"name": "Place", "subject": "place", "version": 1}]
        server.add("users/value", SECOND, references=references)
        server.add("other", "syntax", "PROTOBUF")
        yield server


def test_records_of_several_schemas_are_resolved_to_one_and_each_is_asked_for_once(
    registry: SchemaRegistry,
) -> None:
    schemas = open_schemas(registry.url)
    reader = avro.whole(schemas.by_subject("users/value", "latest"))
    assert reader == WHOLE_SECOND
    registry.asked.clear()
    data = [
        framed(1, FIRST, {"id": 5}),
        framed(3, WHOLE_SECOND, {"id": 6, "city": {"zip": "8000"}}),
        framed(1, FIRST, {"id": 7}),
        framed(9, FIRST, {"id": 8}),
        framed(4, FIRST, {"id": 8}),
        framed(1, FIRST, {"id": 9}) + b"x",
        b"\x01" + framed(1, FIRST, {"id": 9})[1:],
        b"\0\0",
        None,
    ]
    rows = rows_of(AvroType(reader).spark, framed_decoder(schemas, reader), data)
    assert [row and row["id"] for row in rows] == [5, 6, 7, *[None] * 6]
    assert [row and row["city"] for row in rows[:3]] == [None, {"zip": "8000"}, None]
    errors = [row[CORRUPT]["error"] for row in rows[3:8]]
    expected = [
        "no http",
        "PROTOBUF",
        "1 bytes are left over",
        "does not begin with a zero",
        "does not begin",
    ]
    assert [error for error, part in zip(errors, expected, strict=True) if part not in error] == []
    assert [row[CORRUPT]["data"] for row in rows[3:8]] == data[3:8]
    assert registry.asked.count("GET /schemas/ids/1") == 1


def test_a_registry_that_stumbles_is_asked_again_and_one_that_is_down_is_no_corrupt_record(
    registry: SchemaRegistry,
) -> None:
    registry.failures = 2
    assert avro.whole(open_schemas(registry.url).by_id(1)) == FIRST
    registry.failures = 100
    decode = framed_decoder(open_schemas(registry.url + "/"), FIRST)
    with pytest.raises(RegistryUnavailable, match=r"/schemas/ids/2: the registry answers 503"):
        rows_of(AvroType(FIRST).spark, decode, [framed(2, FIRST, {"id": 5})])


def test_a_directory_is_a_registry(tmp_path: Path) -> None:
    (tmp_path / "1.avsc").write_text(json.dumps(FIRST))
    (tmp_path / "users.avsc").write_text(json.dumps(WHOLE_SECOND))
    (tmp_path / "users-v1.avsc").write_text(json.dumps(FIRST))
    (tmp_path / "8.avsc").write_text("{")
    schemas = open_schemas(str(tmp_path))
    assert isinstance(schemas, Directory)
    assert avro.whole(schemas.by_subject("users", 1)) == FIRST
    reader = avro.whole(schemas.by_subject("users", "latest"))
    (row,) = rows_of(AvroType(reader).spark, framed_decoder(schemas, reader), [framed(1, FIRST, {"id": 5})])
    assert row == {"id": 5, "city": None, CORRUPT: None}
    with pytest.raises(UnknownSchema, match="does not exist"):
        schemas.by_id(2)
    with pytest.raises(SchemaError, match="no JSON"):
        avro.parsed(schemas.by_id(8))
    (tmp_path / "7.avsc").mkdir()
    with pytest.raises(RegistryUnavailable, match="cannot be read"):
        schemas.by_id(7)


def test_a_batch_query_decodes_and_leaves_out_what_cannot_be(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "1.avsc").write_text(json.dumps(FIRST))
    (tmp_path / "users.avsc").write_text(json.dumps(WHOLE_SECOND))
    packed = msgspec.msgpack.encode({"at": NOON, "n": 1})
    good = (bytearray(packed), bytearray(framed(1, FIRST, {"id": 5})))
    rows = [good, (bytearray(b"x"), bytearray(b"y")), (None, None)]
    frame = spark.createDataFrame(rows, "m binary, a binary").coalesce(1)
    decoded = frame.select(
        from_msgpack("m", "at timestamp, n int").alias("m"),
        from_avro(col("a"), registry=str(tmp_path), subject="users").alias("a"),
    )
    corrupt = decoded.select("m._corrupt.error", "a._corrupt.data").collect()
    assert [row.data for row in corrupt] == [None, b"y", None]
    assert corrupt[1].error == "TypeError: a map was expected, not int"
    kept = decoded.transform(drop_malformed("m", "a"))
    assert kept.schema["m"].dataType.simpleString() == "struct<at:timestamp,n:int>"
    found = kept.selectExpr("unix_micros(m.at)", "m.n", "a.id", "a.city").collect()
    micros = int(NOON.timestamp()) * 1_000_000 + NOON.microsecond
    assert [tuple(row) for row in found] == [(micros, 1, 5, None), (None, None, None, None)]
    with pytest.raises(Exception, match="Mode PERMISSIVE keeps such records"):
        frame.select(from_msgpack("m", "n int", mode="failfast")).collect()
