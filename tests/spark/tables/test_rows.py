"""Rows of values whose schemas change in every way, in the files and as others read them; ids of schemas."""

from __future__ import annotations

import json
import random
import uuid
from decimal import Decimal
from itertools import count, repeat
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from mpbroker.registry import framing
from spark_integration.schema import HEADERS
from spark_integration.tables import rows as tables_rows
from spark_integration.tables.compaction import Rewriting
from spark_integration.tables.data_files import row_files
from spark_integration.tables.values import RECORD_COLUMNS, ValueSettings, created, plan_rows, schema_ids
from tests.spark.tables import made_tables
from tests.spark.tables.test_values import avro, good, record, records, rows
from tests.support.forms import each


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
    assert schema_ids(frame, ValueSettings("avro", registry="http://r")) == {7, guid}
    assert schema_ids(frame, ValueSettings()) == set()


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


def in_files(table: Table, urls: list[str]) -> pa.Table:
    """Read data files as they are, by the names of columns."""
    columns = pa.struct(list(schema_to_pyarrow(table.schema())))
    files = [pq.read_table(url.removeprefix("file://")) for url in urls]
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
    declared = ValueSettings("avro", registry=str(tmp_path))
    catalog = made_tables.lake(tmp_path / "lake")
    table = catalog.create_table(("lake", "walk"), created(declared))
    walk, schemas, written = Walk(seed, is_legal=is_legal), list[Any](), list[Written]()
    for _ in range(5):
        schemas.append(walk.step())
        (tmp_path / f"{len(schemas)}.avsc").write_text(json.dumps(schemas[-1]))
        ids = [walk.random.randint(1, len(schemas)) for _ in range(6)] + [len(schemas)]
        made = [(number, walk.value(schemas[number - 1])) for number in ids]
        batch = [(number, value, avro(schemas[number - 1], value, number)) for number, value in made]
        plan = plan_rows(declared, table.schema(), set(ids))
        if plan.changes:
            with table.update_schema() as update:
                update.union_by_name(plan.schema)
        named = records([data for _, _, data in batch], start=len(written))
        (file,) = row_files(table, plan.rows.of).files(iter([named]))
        made_tables.commit(table, file, {})
        written += batch
    urls = [task.file.file_path for task in table.scan().plan_files()]
    errors = check(in_files(table, urls), written)
    assert not (errors and is_legal)
    # pyiceberg 0.12 makes empty lists and maps of nulls, where they have records.
    check(table.scan().to_arrow(), written, (None, []))
    check(polars.scan_iceberg(table).collect().to_arrow(), written)
    compacted = Rewriting(row_files(table)).rewrite(urls)
    check(in_files(table, [compacted.url]), written)


def test_values_that_only_look_framed_ask_for_no_more_schemas_than_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_rows, "SCHEMAS_MAX", 2)
    (tmp_path / "1.avsc").write_text(json.dumps(record(id="int")))
    plan = plan_rows(
        ValueSettings("avro", registry=str(tmp_path)), RECORD_COLUMNS, {900, 1, uuid.uuid4(), 800}
    )
    found = rows(plan, [framing.prefix(number) + b"\x02" for number in (1, 800, 900)])
    assert found[0] == good(id=1)
    assert "800.avsc does not exist" in found[1]["_error"]
    assert found[2]["_error"] == "schema 900: values name more than 2 schemas at once"
