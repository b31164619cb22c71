"""Records become rows of a table: each format, errors as rows, schemas that change in every way."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import inf
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pytest

from mpbroker.reading.errors import OptionError
from mpbroker.registry import framing
from mpbroker.registry.schemas import RegistryUnavailable
from spark_integration.tables.values import (
    RECORD_COLUMNS,
    RowPlan,
    ValueSettings,
    created,
    plan_rows,
    value_settings,
)
from tests.support.schema_registry import serving

NOON = datetime(2026, 11, 30, 12, 0, 0, 5, UTC)
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/duration.proto";
message Item { string name = 1; int32 count = 2; }
message Order {
  int32 id = 1;
  repeated Item items = 2;
  google.protobuf.Duration took = 3;
  map<string, int32> by = 4;
}
"""


def records(
    values: list[bytes | None],
    headers: Mapping[int, list[tuple[str, bytes]]] | None = None,
    start: int = 10,
) -> pa.RecordBatch:
    """Return a batch as the source gives it, of the partition 3, from the offset `start`."""
    size = len(values)
    named = [
        [{"key": k, "value": v} for k, v in (headers or {})[n]] if n in (headers or {}) else None
        for n in range(size)
    ]
    columns = {
        "_topic_id": pa.array(["id"] * size),
        "partition": pa.array([3] * size, pa.int32()),
        "offset": pa.array(range(start, start + size), pa.int64()),
        "timestamp": pa.array([NOON] * size, pa.timestamp("us", "Europe/Zurich")),
        "headers": pa.array(named, HEADERS_TYPE),
        "key": pa.array([b"k"] * size, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


def rows(plan: RowPlan, values: list[bytes | None], **more: Any) -> list[dict[str, Any]]:
    """Return the rows, without the columns that each table has, but for the error and the raw value."""
    made = plan.rows.of(records(values, **more))
    assert made.schema.names == [field.name for field in plan.schema.fields]
    found: list[dict[str, Any]] = made.drop_columns(
        [
            name
            for name in RECORD_COLUMNS.column_names
            if name in made.schema.names and name not in ("_error", "_raw")
        ]
    ).to_pylist()
    return found


def good(**columns: Any) -> dict[str, Any]:
    return {"_error": None, "_raw": None, **columns}


def test_raw_values_are_bytes_beside_what_a_record_has() -> None:
    plan = plan_rows(ValueSettings(), RECORD_COLUMNS)
    found = plan.rows.of(records([b"x", None], headers={1: [("h", b"v")]}))
    first = {
        "_topic_id": "id",
        "_partition_index": 3,
        "_offset": 10,
        "_timestamp": NOON,
        "_headers": None,
        "_key": b"k",
    }
    second = {**first, "_offset": 11, "_headers": [{"key": "h", "value": b"v"}]}
    assert found.to_pylist() == [{**first, **good(value=b"x")}, {**second, **good(value=None)}]
    assert plan.changes == ("value binary is added",)
    assert created(ValueSettings()) == plan.schema


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("kind", "encode"), [("json", msgspec.json.encode), ("msgpack", msgspec.msgpack.encode)]
)
def test_declared_columns_and_what_does_not_fit_them(kind: Any, encode: Any) -> None:
    declared = ValueSettings(
        kind, "id bigint, at timestamp, price decimal(6,2), inner struct<q: double, text: string>"
    )
    value = {"id": 7, "at": NOON, "price": "12.50", "inner": {"q": 2}, "more": 1}
    data = [encode(value), encode({"id": "x"}), encode([1]), b"\xff{", None, encode({})]
    found = rows(plan_rows(declared, RECORD_COLUMNS), data)
    nulls = {"id": None, "at": None, "price": None, "inner": None}
    assert found[0] == good(id=7, at=NOON, price=Decimal("12.50"), inner={"q": 2.0, "text": None})
    assert [row["_raw"] for row in found] == [None, *data[1:4], None, None]
    assert all(row["_error"] and row | good(**nulls) == good(**nulls) for row in found[1:4])
    assert found[4:] == [good(**nulls)] * 2


@pytest.mark.usefixtures("spark")
def test_numbers_are_exact_or_an_error() -> None:
    ddl = "d decimal(20,2), f double, g float, id bigint, text string"
    plan = plan_rows(ValueSettings("json", ddl), RECORD_COLUMNS)
    value = b'{"d": 123456789012345678.91, "f": 1e3, "g": 0.5, "id": 4.0, "text": {"a": [1.50]}}'
    wrong = [
        b'{"f": 1e999}',
        b'{"d": 0.001}',
        b'{"f": true}',
        b'{"g": 1e300}',
        b'{"id": 1.5}',
        b'{"id": 1e99999}',
        b'{"id": 1e-999999999}',
        b'{"id": 1e999999999}',
    ]
    first, *others = rows(plan, [value, *wrong])
    assert first == good(d=Decimal("123456789012345678.91"), f=1000.0, g=0.5, id=4, text='{"a":[1.50]}')
    assert [row["_raw"] for row in others if row["_error"]] == wrong
    packed = [msgspec.msgpack.encode(one) for one in ({"id": 1.5}, {"g": 1e300}, {"id": 2.0, "g": inf})]
    *others, last = rows(plan_rows(ValueSettings("msgpack", ddl), RECORD_COLUMNS), packed)
    assert [row["_raw"] for row in others if row["_error"]] == packed[:2]
    assert (last["id"], last["g"]) == (2, inf)


@pytest.mark.usefixtures("spark")
def test_a_declaration_that_has_no_place_in_the_table_is_refused() -> None:
    current = created(ValueSettings("json", "id int"))
    assert plan_rows(ValueSettings("json", "id bigint"), current).changes == ("id int becomes long",)
    for ddl, why in (
        ("id string", "id is string, in the table int"),
        ("_raw binary", "_raw is taken"),
        ("bigint", "columns are needed"),
        ("id bigin", "BIGIN"),
    ):
        with pytest.raises(OptionError, match=why):
            plan_rows(ValueSettings("json", ddl), current)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"format": "csv"}, "csv"),
        ({"forma": "raw"}, "forma"),
        ({"schema": "id int"}, "format raw keeps values as bytes"),
        ({"format": "json"}, "needs either schema"),
        ({"format": "avro", "schema": '"int"', "registry": "http://r"}, "needs either schema"),
        ({"format": "avro", "schema_file": "none.avsc"}, "none.avsc"),
        ({"format": "avro", "schema": "{}", "schema_file": "some.avsc"}, "exclude each other"),
        ({"format": "msgpack", "registry": "http://r"}, "msgpack needs a schema"),
        ({"format": "json", "schema": "id int", "message": "M"}, "message names a message of Protobuf"),
    ],
)  # fmt: skip
def test_declarations_that_make_no_sense_are_refused(given: dict[str, Any], why: str, tmp_path: Path) -> None:
    (tmp_path / "some.avsc").write_text("{}")
    with pytest.raises(OptionError, match=why):
        value_settings(given, tmp_path)


def avro(schema: Any, value: Any, number: int | None = None) -> bytes:
    out = io.BytesIO()
    out.write(b"" if number is None else framing.prefix(number))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas={}), value)
    return out.getvalue()


def record(**fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }


def test_a_schema_in_a_file_decodes_values_that_name_none(tmp_path: Path) -> None:
    schema = record(id="int")
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    declared = value_settings({"format": "avro", "schema_file": "r.avsc"}, tmp_path)
    found = rows(plan_rows(declared, RECORD_COLUMNS), [avro(schema, {"id": 5}), b""])
    assert found[0] == good(id=5)
    assert found[1]["_error"]
    assert found[1]["_raw"] == b""


def test_protobuf_by_a_declared_schema_has_durations_as_microseconds() -> None:
    from mpbroker.registry.protobuf import messages_of, new, write
    from mpbroker.registry.schemas import Kind
    from mpbroker.registry.schemas import Schema as ValueSchema

    message = new(messages_of(ValueSchema(Kind.PROTOBUF, PROTO)).named("Order"))
    message.id, message.by["a"] = 4, 2  # type: ignore[attr-defined]
    message.items.add(name="n", count=1)  # type: ignore[attr-defined]
    message.took.FromTimedelta(timedelta(seconds=2))  # type: ignore[attr-defined]
    plan = plan_rows(ValueSettings("protobuf", PROTO, message="Order"), RECORD_COLUMNS)
    found = rows(plan, [write(message), b"\xff"])
    assert found[0] == good(id=4, items=[{"name": "n", "count": 1}], took=2_000_000, by=[("a", 2)])
    assert found[1]["_error"]
    assert found[1]["_raw"] == b"\xff"


def test_each_schema_of_a_registry_decodes_its_own_values() -> None:
    first, second, other = (
        record(id="int", gone="string"),
        record(id="long", city=["null", "string"]),
        record(id="string"),
    )
    with serving() as registry:
        one, two, three = (registry.add("s", schema)["id"] for schema in (first, second, other))
        guid = uuid.UUID(registry.version("s", 2)["guid"])
        plan = plan_rows(
            ValueSettings("avro", registry=registry.url), RECORD_COLUMNS, {three, two, 99, one, guid}
        )
    assert plan.changes == (
        "id int is added",
        "gone string is added",
        "id int becomes long",
        "city string is added",
    )
    written = avro(second, {"id": 1 << 40, "city": "Bern"})
    values = [
        avro(second, {"id": 2, "city": None}, two),
        avro(first, {"id": 1, "gone": "g"}, one),
        avro(other, {"id": "x"}, three),
        framing.prefix(99) + b"?",
        b"no frame",
        avro(first, {"id": 1, "gone": "g"}, one) + b"!",
        written,
        b"\1" + guid.bytes + written,
        None,
    ]  # fmt: skip
    # A header names the schema of the seventh.
    found = rows(
        plan, values, headers={6: [(framing.VALUE_HEADER, b"\1" + guid.bytes)], 1: [("h", b"\1" + bytes(16))]}
    )
    nulls = {"id": None, "gone": None, "city": None}
    assert [row for row in found if row["_error"] is None] == [
        good(id=2, gone=None, city=None), good(id=1, gone="g", city=None),
        *[good(id=1 << 40, gone=None, city="Bern")] * 2, good(**nulls),
    ]  # fmt: skip
    errors = {n: row["_error"] for n, row in enumerate(found) if row["_error"] is not None}
    assert errors[2] == f"schema {three}: id is string, in the table long"
    assert errors[3] == f"schema 99: the registry has no {registry.url}/schemas/ids/99"
    assert "does not begin with a zero" in errors[4]
    assert "1 bytes are left over" in errors[5]
    assert [(found[n]["_raw"], *(found[n][name] for name in nulls)) for n in errors] == [
        (values[n], None, None, None) for n in (2, 3, 4, 5)
    ]


def test_a_registry_that_does_not_answer_makes_no_errors_of_records() -> None:
    with serving() as registry:
        registry.failures = 100
        with pytest.raises(RegistryUnavailable):
            plan_rows(ValueSettings("avro", registry=registry.url), RECORD_COLUMNS, {1})


def test_json_and_protobuf_of_a_registry_evolve_too() -> None:
    objects = [
        {"type": "object", "properties": properties}
        for properties in (
            {"n": {"type": "integer"}},
            {"n": {"type": "integer"}, "at": {"type": "string", "format": "date"}},
        )
    ]
    with serving() as registry:
        ids = [registry.add("j", schema, "JSON")["id"] for schema in objects]
        plan = plan_rows(ValueSettings("json", registry=registry.url), RECORD_COLUMNS, ids)
        values: list[bytes | None] = [
            framing.prefix(ids[0]) + b'{"n": 1}',
            framing.prefix(ids[1]) + b'{"at": "2026-01-02"}',
        ]
        assert rows(plan, values) == [good(n=1, at=None), good(n=None, at=date(2026, 1, 2))]
        texts = [
            'syntax = "proto3"; message A { int32 n = 1; }',
            'syntax = "proto3"; message A { int64 n = 1; string s = 2; } message B {}',
        ]
        ids = [registry.add("p", text, "PROTOBUF")["id"] for text in texts]
        plan = plan_rows(ValueSettings("protobuf", registry=registry.url), RECORD_COLUMNS, ids)
    values = [
        framing.prefix(ids[0], (0,)) + b"\x08\x05",
        framing.prefix(ids[1], (0,)) + b"\x08\x06\x12\x01x",
        framing.prefix(ids[1], (1,)),
    ]
    *whole, another = rows(plan, values)
    assert whole == [good(n=5, s=None), good(n=6, s="x")]
    assert another["_error"] == "it is a message B, not A"
    assert another["_raw"] == values[2]
