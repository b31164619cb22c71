"""JSON Schema: values are checked by the schema and those that it references, and by no other address."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mpbroker.registry.json_schema import checker, name_of
from mpbroker.registry.schemas import Kind, Schema, SchemaError

PLACE = json.dumps({"definitions": {"Zip": {"type": "string", "pattern": "^[0-9]+$"}}})


def schema(text: Any, *references: tuple[str, str]) -> Schema:
    return Schema(Kind.JSON, text if isinstance(text, str) else json.dumps(text), references)


@pytest.mark.parametrize(
    ("identity", "reference"),
    [
        ({}, "place.json"),
        ({"$id": "http://shop/schemas/order.json"}, "place.json"),
        ({}, "http://x/place.json"),
    ],
)
def test_references_are_found_by_their_name_and_by_the_address_of_the_schema(
    identity: dict[str, str], reference: str
) -> None:
    main = {**identity, "title": "T", "properties": {"zip": {"$ref": f"{reference}#/definitions/Zip"}}}
    found = schema(main, (reference, PLACE))
    check = checker(found)
    check({"zip": "8000"})
    with pytest.raises(ValueError, match=r"\$.zip: 'x' does not match"):
        check({"zip": "x"})
    assert name_of(found) == "T"


def test_a_reference_that_is_not_registered_is_not_fetched() -> None:
    check = checker(schema({"$ref": "http://127.0.0.1:1/x.json"}))
    with pytest.raises(SchemaError, match=r"it refers to http://127.0.0.1:1/x.json"):
        check({})


@pytest.mark.parametrize("draft", ["draft-04/schema#", "draft-07/schema#"])
def test_drafts_are_told_apart(draft: str) -> None:
    bound = {"exclusiveMinimum": True, "minimum": 1} if "04" in draft else {"exclusiveMinimum": 1}
    check = checker(schema({"$schema": f"http://json-schema.org/{draft}", **bound}))
    check(2)
    with pytest.raises(ValueError, match="1"):
        check(1)


@pytest.mark.parametrize("text", ["{", "[]", '{"type": 5}'])
def test_texts_that_are_no_schema_are_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="JSON Schema"):
        checker(schema(text))
    checker(schema("true"))({})
