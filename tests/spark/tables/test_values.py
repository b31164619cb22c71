"""Records become rows of a table: each format, errors as rows, schemas that change in every way."""

from __future__ import annotations

import io
import json
import random
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count, repeat
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from mpbroker.reading.errors import OptionError
from mpbroker.registry import framing
from mpbroker.registry.schemas import RegistryUnavailable
from spark_integration.schema import HEADERS
from spark_integration.tables import values as tables_values
from spark_integration.tables.data_files import row_files
from spark_integration.tables.values import (
    RECORD_COLUMNS,
    Declaration,
    Plan,
    created,
    declaration,
    planned,
    schema_ids,
)
from tests.spark.tables import made_tables
from tests.support.forms import each
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


def rows(plan: Plan, values: list[bytes | None], **more: Any) -> list[dict[str, Any]]:
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
    plan = planned(Declaration(), RECORD_COLUMNS)
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
    assert created(Declaration()) == plan.schema


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("kind", "encode"), [("json", msgspec.json.encode), ("msgpack", msgspec.msgpack.encode)]
)
def test_declared_columns_and_what_does_not_fit_them(kind: Any, encode: Any) -> None:
    declared = Declaration(
        kind, "id bigint, at timestamp, price decimal(6,2), inner struct<q: double, text: string>"
    )
    value = {"id": 7, "at": NOON, "price": "12.50", "inner": {"q": 2}, "more": 1}
    data = [encode(value), encode({"id": "x"}), encode([1]), b"\xff{", None, encode({})]
    found = rows(planned(declared, RECORD_COLUMNS), data)
    nulls = {"id": None, "at": None, "price": None, "inner": None}
    assert found[0] == good(id=7, at=NOON, price=Decimal("12.50"), inner={"q": 2.0, "text": None})
    assert [row["_raw"] for row in found] == [None, *data[1:4], None, None]
    assert all(row["_error"] and row | good(**nulls) == good(**nulls) for row in found[1:4])
    assert found[4:] == [good(**nulls)] * 2


@pytest.mark.usefixtures("spark")
def test_numbers_of_json_are_exact() -> None:
    declared = Declaration("json", "d decimal(20,2), f double, text string")
    values = [
        b'{"d": 123456789012345678.91, "f": 1e3, "text": {"a": [1.50]}}',
        b'{"f": 1e999}',
        b'{"d": 0.001}',
        b'{"f": true}',
    ]
    found = rows(planned(declared, RECORD_COLUMNS), list(values))
    assert found[0] == good(d=Decimal("123456789012345678.91"), f=1000.0, text='{"a":[1.50]}')
    assert [bool(row["_error"]) for row in found] == [False, True, True, True]


@pytest.mark.usefixtures("spark")
def test_a_declaration_that_has_no_place_in_the_table_is_refused() -> None:
    current = created(Declaration("json", "id int"))
    assert planned(Declaration("json", "id bigint"), current).changes == ("id int becomes long",)
    for ddl, why in (
        ("id string", "id is string, in the table int"),
        ("_raw binary", "_raw is taken"),
        ("bigint", "columns are needed"),
        ("id bigin", "BIGIN"),
    ):
        with pytest.raises(OptionError, match=why):
            planned(Declaration("json", ddl), current)


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
        declaration(given, tmp_path)


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
    declared = declaration({"format": "avro", "schema_file": "r.avsc"}, tmp_path)
    found = rows(planned(declared, RECORD_COLUMNS), [avro(schema, {"id": 5}), b""])
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
    plan = planned(Declaration("protobuf", PROTO, message="Order"), RECORD_COLUMNS)
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
        plan = planned(
            Declaration("avro", registry=registry.url), RECORD_COLUMNS, {three, two, 99, one, guid}
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


def test_values_that_only_look_framed_ask_for_no_more_schemas_than_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_values, "SCHEMAS_MAX", 2)
    (tmp_path / "1.avsc").write_text(json.dumps(record(id="int")))
    plan = planned(Declaration("avro", registry=str(tmp_path)), RECORD_COLUMNS, {900, 1, uuid.uuid4(), 800})
    found = rows(plan, [framing.prefix(number) + b"\x02" for number in (1, 800, 900)])
    assert found[0] == good(id=1)
    assert "800.avsc does not exist" in found[1]["_error"]
    assert found[2]["_error"] == "schema 900: values name more than 2 schemas at once"


def test_a_registry_that_does_not_answer_makes_no_errors_of_records() -> None:
    with serving() as registry:
        registry.failures = 100
        with pytest.raises(RegistryUnavailable):
            planned(Declaration("avro", registry=registry.url), RECORD_COLUMNS, {1})


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
        plan = planned(Declaration("json", registry=registry.url), RECORD_COLUMNS, ids)
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
        plan = planned(Declaration("protobuf", registry=registry.url), RECORD_COLUMNS, ids)
    values = [
        framing.prefix(ids[0], (0,)) + b"\x08\x05",
        framing.prefix(ids[1], (0,)) + b"\x08\x06\x12\x01x",
        framing.prefix(ids[1], (1,)),
    ]
    *whole, another = rows(plan, values)
    assert whole == [good(n=5, s=None), good(n=6, s="x")]
    assert another["_error"] == "it is a message B, not A"
    assert another["_raw"] == values[2]


def test_the_ids_of_a_batch_are_found(spark: SparkSession) -> None:
    guid = uuid.uuid4()
    headers = [{"key": framing.VALUE_HEADER, "value": b"\1" + guid.bytes}]
    made = [
        (framing.prefix(7) + b"x", None),
        (framing.prefix(7), []),
        (None, headers),
        (b"?", None),
        (b"y", headers),
    ]
    frame = spark.createDataFrame(made, f"value binary, headers {HEADERS.simpleString()}")
    assert schema_ids(frame, Declaration("avro", registry="http://r")) == {7, guid}
    assert schema_ids(frame, Declaration()) == set()


# The id of a schema, a value, and what a record has of it.
Written = tuple[int, Any, bytes]


class Walk:
    """Schemas of one subject that change at random, each with values. `is_legal`: only as Iceberg allows."""

    def __init__(self, seed: int, *, is_legal: bool) -> None:
        self.random = random.Random(seed)
        self._is_legal = is_legal
        self._names = count()
        self.fields: dict[str, Any] = {"a": "int"}

    def step(self) -> Any:
        """Change the schema and return it."""
        names = list(self.fields)
        change = self.random.choice(["add", "add", "widen", "widen", "remove", "replace", "swap"])
        if change == "widen":
            self.fields = {name: self._wider(kind) for name, kind in self.fields.items()}
        elif change == "remove" and names:
            # The name never comes back with another type, unless it is anything goes.
            del self.fields[self.random.choice(names)]
        elif change == "replace" and names and not self._is_legal:
            self.fields[self.random.choice(names)] = self._kind(2)
        else:
            # Of "value" and "key" the table has no columns; the last three are refused.
            odd = ["value", "key", "a", "A", "_offset", "_partition"]
            name = f"f{next(self._names)}" if self._is_legal else self.random.choice([*odd, "b", "c"])
            self.fields[name] = self._kind(2)
        return self._schema({"record": self.fields})

    def _kind(self, depth: int) -> Any:
        plain = ["int", "long", "float", "double", "string", "bytes", "boolean", ("decimal", 6)]
        if depth == 2:
            plain.append("null")
        kind = self.random.choice([*plain, "list", "map", "record"] if depth else plain)
        if kind == "list":
            return {"list": self._kind(depth - 1)}
        if kind == "map":
            return {"map": self._kind(depth - 1)}
        if kind == "record":
            return {"record": {name: self._kind(depth - 1) for name in self.random.sample("pqr", 2)}}
        return {"optional": kind} if kind != "null" and self.random.random() < 0.3 else kind

    def _wider(self, kind: Any) -> Any:
        """Widen a type, or parts of it, or leave it, or add a field."""
        if self.random.random() < 0.3:
            return kind
        if isinstance(kind, dict):
            if "record" not in kind:
                return {form: self._wider(inner) for form, inner in kind.items()}
            inner = {name: self._wider(one) for name, one in kind["record"].items()}
            return {"record": {**inner, f"f{next(self._names)}": self._kind(1)}}
        if isinstance(kind, tuple):
            return (kind[0], min(38, kind[1] + 7))
        return {"int": "long", "float": "double"}.get(kind, kind)

    def _schema(self, kind: Any) -> Any:
        match kind:
            case {"record": fields}:
                made = [{"name": name, "type": self._schema(one)} for name, one in fields.items()]
                return {"type": "record", "name": f"R{next(self._names)}", "fields": made}
            case {"list": inner}:
                return {"type": "array", "items": self._schema(inner)}
            case {"map": inner}:
                return {"type": "map", "values": self._schema(inner)}
            case {"optional": inner}:
                return ["null", self._schema(inner)]
            case ("decimal", digits):
                return {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 2}
        return kind

    def value(self, schema: Any) -> Any:
        """Return a value of a schema."""
        pick = self.random
        if isinstance(schema, list):
            return None if pick.random() < 0.5 else self.value(schema[1])
        match schema if isinstance(schema, str) else schema["type"]:
            case "record":
                return {field["name"]: self.value(field["type"]) for field in schema["fields"]}
            case "array":
                return [self.value(schema["items"]) for _ in range(pick.randrange(3))]
            case "map":
                return {key: self.value(schema["values"]) for key in pick.sample("xyz", pick.randrange(3))}
            case "bytes" if not isinstance(schema, str):
                return Decimal(pick.randrange(10 ** schema["precision"])).scaleb(-2)
            case "int" | "long" as kind:
                bits = 31 if kind == "int" else 63
                return pick.choice([-(1 << bits), (1 << bits) - 1, pick.randrange(100)])
            case "float" | "double" as kind:
                return pick.choice([0.5, 2.0**-24, 1e300 if kind == "double" else -(2.0**100)])
            case "string":
                return pick.choice(["", "é"])
            case "bytes":
                return pick.choice([b"", b"\xff"])
            case "boolean":
                return pick.random() < 0.5
        return None


def is_same(written: Any, read: Any, nulls: tuple[Any, ...]) -> bool:
    """Compare a written value with a row: fields that it lacks are null there, maps may be pairs."""
    if written is None:
        return read in nulls
    if isinstance(written, dict) and isinstance(read, list):
        read = dict(read)
    if isinstance(written, dict):
        names = written.keys() | (read or {}).keys()
        return read is not None and all(is_same(written.get(name), read.get(name), nulls) for name in names)
    if isinstance(written, list):
        return len(written) == len(read) and all(map(is_same, written, read, repeat(nulls)))
    return bool(written == read)


def in_files(table: Table) -> pa.Table:
    """Read the data files as they are, by the names of columns."""
    columns = pa.struct(list(schema_to_pyarrow(table.schema())))
    files = [pq.read_table(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()]
    return pa.concat_tables(
        pa.Table.from_struct_array(file.to_struct_array().cast(columns)) for file in files
    )


def check(
    rows: pa.Table, written: list[tuple[int, Any, bytes]], nulls: tuple[Any, ...] = (None,)
) -> list[Any]:
    """Check that each record is equal to its row, or has an error there. Return the rows with errors."""
    found = rows.sort_by("_offset").to_pylist()
    assert [row["_offset"] for row in found] == list(range(len(written)))
    for (number, value, data), row in zip(written, found, strict=True):
        columns = {name: row[name] for name in row.keys() - set(RECORD_COLUMNS.column_names)}
        is_good = row["_error"] is None
        assert is_same(value if is_good else {}, columns, nulls)
        assert row["_raw"] == (None if is_good else data)
        assert is_good or row["_error"].startswith(f"schema {number}: ")
    return [row for row in found if row["_error"] is not None]


@each("seed", short=[1], long=range(200))
@pytest.mark.parametrize("is_legal", [True, False])
def test_a_record_is_a_row_equal_to_it_or_with_an_error(
    seed: int, is_legal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    declared = Declaration("avro", registry=str(tmp_path))
    catalog = made_tables.lake(tmp_path / "lake")
    table = catalog.create_table(("lake", "walk"), created(declared))
    walk, schemas, written = Walk(seed, is_legal=is_legal), list[Any](), list[Written]()
    for _ in range(5):
        schemas.append(walk.step())
        (tmp_path / f"{len(schemas)}.avsc").write_text(json.dumps(schemas[-1]))
        ids = [walk.random.randint(1, len(schemas)) for _ in range(6)] + [len(schemas)]
        made = [(number, walk.value(schemas[number - 1])) for number in ids]
        batch = [(number, value, avro(schemas[number - 1], value, number)) for number, value in made]
        plan = planned(declared, table.schema(), set(ids))
        if plan.changes:
            with table.update_schema() as update:
                update.union_by_name(plan.schema)
        named = records([data for _, _, data in batch], start=len(written))
        (file,) = row_files(table, plan.rows.of).files(iter([named]))
        made_tables.commit(table, file, {})
        written += batch
    errors = check(in_files(table), written)
    assert not (errors and is_legal)
    # pyiceberg 0.12 makes empty lists and maps of nulls, where they have records.
    check(table.scan().to_arrow(), written, (None, []))
    check(polars.scan_iceberg(table).collect().to_arrow(), written)
