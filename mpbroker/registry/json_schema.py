"""JSON Schema: values are JSON, checked against their schema before they are written."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

from mpbroker.registry.schemas import Schema, SchemaError, needs_packages

_SHOWN_MAX = 200


def document(text: str) -> Any:
    """Parse a schema. Raises SchemaError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"JSON Schema: no JSON: {error}") from error
    if not isinstance(found, (dict, bool)):
        raise SchemaError("JSON Schema: a schema is an object, true or false")
    return found


def checker(schema: Schema) -> Callable[[Any], None]:
    """Return a function that raises ValueError for parsed JSON that the schema does not allow.

    The schema may refer only to the documents in `schema.references`: none is fetched. Raises SchemaError.
    """
    try:
        from jsonschema.exceptions import SchemaError as Malformed
        from jsonschema.validators import Draft7Validator, validator_for
        from referencing import Registry, Resource
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT7
    except ModuleNotFoundError as error:
        raise needs_packages("JSON Schema", error) from error
    main = document(schema.text)
    base = main.get("$id", "") if isinstance(main, dict) else ""
    known: Registry[Any] = Registry()
    for name, text in schema.references:
        resource = Resource.from_contents(document(text), default_specification=DRAFT7)
        known = known.with_resources([(name, resource), (urljoin(str(base), name), resource)])
    kind = validator_for(main, default=Draft7Validator)
    try:
        kind.check_schema(main)
    except Malformed as error:
        raise SchemaError(f"JSON Schema: {error.message[:_SHOWN_MAX]}") from error
    validator = kind(main, registry=known)

    def check(value: Any) -> None:
        try:
            error = next(validator.iter_errors(value), None)
        except Unresolvable as why:
            raise SchemaError(f"JSON Schema: it refers to {why.ref}, which it does not reference") from why
        if error is not None:
            raise ValueError(f"{error.json_path}: {error.message[:_SHOWN_MAX]}")

    return check


def name_of(schema: Schema) -> str:
    """Return the title of a schema, "" if it has none."""
    found = document(schema.text)
    return str(found.get("title", "")) if isinstance(found, dict) else ""
