"""A few bytes of Avro whose decoding would use up the stack, the memory or the time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from mpbroker.registry.avro import parsed
from mpbroker.registry.avro_bounds import DECIMAL_BYTES_MAX, DEPTH_MAX, EMPTY_ELEMENTS_MAX, bounds_of
from mpbroker.registry.rest import Directory
from spark_integration.avro import framed_decoder, plain_decoder
from spark_integration.decoding import AvroSchemas, avro_decoding
from spark_integration.values import CORRUPT, Mode
from tests.spark.test_values import FIRST, LOGICAL, ORDER, WHOLE_SECOND, encoded, framed

HUGE = 1 << 27
EMPTY_RECORD = {"type": "record", "name": "Empty", "fields": []}
NULLS = {
    "type": "record",
    "name": "Nulls",
    "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": EMPTY_RECORD}],
}
NOTHING = {"type": "fixed", "name": "Nothing", "size": 0}
NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}, {"name": "b", "type": "int"}],
}
TREE = {"type": "record", "name": "Node", "fields": [
    {"name": "inner", "type": {"type": "array", "items": {"type": "map", "values": "Node"}}},
    {"name": "b", "type": "int"},
]}  # fmt: skip
ONLY_B = [{"name": "b", "type": "int"}]


def number(value: int) -> bytes:
    return encoded("long", value)


def record(a: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": a}, *ONLY_B]}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def as_corrupt(schema: Any, reader: Any, data: bytes, tmp_path: Path) -> str:
    """Decode with the framing of a registry, and return the error."""
    (tmp_path / "1.avsc").write_text(json.dumps(schema))
    whole = b"\0\0\0\0\1" + data
    decoding = avro_decoding(AvroSchemas(registry=str(tmp_path), schema=json.dumps(reader)), Mode.PERMISSIVE)
    (row,) = decoding.decode(pa.array([whole], pa.binary())).to_pylist()
    assert row[CORRUPT]["data"] == whole
    return str(row[CORRUPT]["error"])


@pytest.mark.parametrize("items", ["null", NOTHING, EMPTY_RECORD, NULLS, {"type": "null"}])
@pytest.mark.parametrize("block", [number(HUGE), number(-HUGE) + number(0)])
@pytest.mark.parametrize("is_skipped", [True, False])
def test_elements_without_bytes_are_bounded(
    items: Any, block: bytes, is_skipped: bool, tmp_path: Path
) -> None:
    schema = record(array(items))
    reader = {**schema, "fields": ONLY_B} if is_skipped else schema
    error = as_corrupt(schema, reader, block + number(0) + number(5), tmp_path)
    assert error == f"arrays have more than {EMPTY_ELEMENTS_MAX} elements that take no bytes"


def test_elements_without_bytes_are_counted_in_all_arrays_of_a_value() -> None:
    schema = array(array("null"))
    decode = plain_decoder(schema, None)
    inner = number(64) + number(0)
    most = EMPTY_ELEMENTS_MAX // 64
    assert decode(number(most) + most * inner + number(0)) == {"value": [[None] * 64] * most}
    with pytest.raises(ValueError, match="take no bytes"):
        decode(number(most + 1) + (most + 1) * inner + number(0))


@pytest.mark.parametrize("items", ["boolean", "float", "double", {"type": "fixed", "name": "F", "size": 4}])
def test_a_block_that_is_skipped_ends_with_the_value(items: Any, tmp_path: Path) -> None:
    schema = record(array(items))
    error = as_corrupt(schema, {**schema, "fields": ONLY_B}, number(HUGE) + number(0) + number(5), tmp_path)
    assert "ends too early" in error


@pytest.mark.parametrize("kind", [array("int"), {"type": "map", "values": "int"}])
def test_a_block_that_is_skipped_does_not_lead_back(kind: Any, tmp_path: Path) -> None:
    schema = record(kind)
    inner = number(7) if kind["type"] == "array" else number(0) + number(7)
    block = number(-1) + number(-2) + inner + number(0) + number(5)
    error = as_corrupt(schema, {**schema, "fields": ONLY_B}, block, tmp_path)
    assert error == "a block of an array or a map has another size than its -2 bytes"


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 1_000_000])
@pytest.mark.parametrize("node", [NODE, TREE])
def test_a_schema_that_contains_itself_is_skipped_to_some_depth(
    node: Any, depth: int, tmp_path: Path
) -> None:
    reader = {**node, "fields": ONLY_B}
    level = number(1) if node is NODE else number(1) + number(1) + number(0)
    error = as_corrupt(node, reader, depth * level + number(0) + number(5), tmp_path)
    assert error == f"it is nested deeper than {DEPTH_MAX} records"
    decode = framed_decoder(Directory(tmp_path), reader)
    value: dict[str, Any] = {"next": None, "inner": [], "b": 5}
    for _ in range(DEPTH_MAX):
        value = {"next": value, "inner": [{"": value}], "b": 5} if node is NODE else {
            "inner": [{"": value}], "b": 5,
        }  # fmt: skip
    assert decode(framed(1, node, value)) == {"b": 5}


@pytest.mark.parametrize("size", [DECIMAL_BYTES_MAX + 1, 1 << 20])
def test_a_decimal_of_many_digits_is_refused(size: int) -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    with pytest.raises(ValueError, match=f"a decimal has {size} bytes"):
        plain_decoder(schema, None)(number(size) + bytes(size))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", b"\xff" * 11, b"\xff" * 9 + b"\x7f", number(2), number(-1), number(1) + number(5) + b"ab"],
)
def test_what_is_no_value_of_the_schema_is_out_of_bounds(data: bytes) -> None:
    bounds = bounds_of(parsed(array(["null", "string"])), is_resolved=True)
    assert bounds is not None
    with pytest.raises(ValueError, match=r"ends|bits|no branch"):
        bounds(number(1) + data, 0)


def test_values_within_their_bounds_are_decoded(tmp_path: Path) -> None:
    """The walk ends where fastavro does, in a schema with all types, and in blocks that have their size."""
    bounds = bounds_of(parsed(LOGICAL), is_resolved=True)
    assert bounds is not None
    data = encoded(LOGICAL, ORDER)
    bounds(b"ab" + data, 2)
    for end in range(len(data)):
        with pytest.raises(ValueError, match=r"ends|no branch"):
            bounds(data[:end], 0)
    schema = record(array("int"))
    (tmp_path / "1.avsc").write_text(json.dumps(schema))
    block = number(-2) + number(2) + number(7) + number(8) + number(0) + number(5)
    for fields in (schema["fields"], ONLY_B):
        decode = framed_decoder(Directory(tmp_path), {**schema, "fields": fields})
        assert decode(b"\0\0\0\0\1" + block)["b"] == 5


@pytest.mark.parametrize(
    "schema", [FIRST, WHOLE_SECOND, record(array("int")), record({"type": "map", "values": "null"})]
)
def test_most_schemas_need_no_walk(schema: Any) -> None:
    assert bounds_of(parsed(schema), is_resolved=False) is None
