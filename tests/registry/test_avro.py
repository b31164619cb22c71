"""Avro schemas with the definitions of what they reference, and values as JSON has them."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.registry import avro
from mpbroker.registry.schemas import Kind, Schema, SchemaError


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": one, "type": kind} for one, kind in fields.items()],
    }


def schema(main: Any, **needed: Any) -> Schema:
    references = tuple((name.replace("__", "."), json.dumps(one)) for name, one in needed.items())
    return Schema(Kind.AVRO, json.dumps(main), references)


def test_a_definition_that_several_need_is_included_once() -> None:
    """A and B need C; the second mention stays a name, or fastavro would refuse a second definition."""
    main = record("Main", a="A", b={"type": "array", "items": "B"})
    found = schema(main, C=record("C", n="int"), A=record("A", c="C"), B=record("B", c=["null", "C"]))
    parsed = avro.parsed(found)
    value = {"a": {"c": {"n": 1}}, "b": [{"c": None}, {"c": {"n": 2}}]}
    assert avro.reader(parsed)(avro.writer(parsed)(value, b""), 0) == value


def test_names_are_found_in_their_namespaces() -> None:
    """A name without dots is of the namespace around it; a definition without one keeps being without."""
    main = {**record("Main", p="Place", f="Free", q=record("q.Q", z="Zip")), "namespace": "s"}
    found = schema(
        main,
        s__Place={**record("Place", n="int"), "namespace": "s"},
        Free=record("Free", n="int"),
        q__Zip=record("q.Zip", n="int"),
    )
    fields = {one["name"]: one["type"] for one in avro.parsed(found)["fields"]}
    assert [fields["p"]["name"], fields["f"]["name"]] == ["s.Place", "Free"]
    assert fields["q"]["fields"][0]["type"]["name"] == "q.Zip"


@pytest.mark.parametrize("text", ["{", '{"type": "record"}', '["nosuch"]', "[[[", '{"type": 5}', "5"])
def test_texts_that_are_no_schema_are_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="Avro schema"):
        avro.parsed(Schema(Kind.AVRO, text))


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=5),
    "string": st.text(max_size=5),
    "date": st.dates(),
    "timestamp-micros": st.datetimes(timezones=st.just(UTC)),
    "local-timestamp-micros": st.datetimes(),
    "time-micros": st.times(),
    "uuid": st.uuids(),
}
OF_LOGICAL = {"date": "int", "uuid": "string"}


@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_a_value_is_the_same_after_json(data: st.DataObject, kind: str) -> None:
    """Alone, in a union with null, in an array and in a map."""
    one: Any = kind
    if kind not in ("null", "boolean", "int", "long", "double", "bytes", "string"):
        one = {"type": OF_LOGICAL.get(kind, "long"), "logicalType": kind}
    branch = [one] if kind == "null" else ["null", one]
    several = {"type": "array", "items": one}
    parsed = avro.parsed(
        record("R", one=one, maybe=branch, several=several, by={"type": "map", "values": branch})
    )
    value = data.draw(KINDS[kind])
    row = {"one": value, "maybe": value, "several": [value], "by": {"k": value, "": None}}
    encoded = avro.writer(parsed)(row, b"")
    decoded = avro.reader(parsed)(encoded, 0)
    again = avro.Values(parsed)(json.loads(avro.to_json(decoded)))
    assert avro.writer(parsed)(again, b"") == encoded
