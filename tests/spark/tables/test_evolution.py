"""How the columns of a table change for other values. What pyiceberg makes of it: test_values."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyspark.sql.types import ArrayType, DayTimeIntervalType, MapType, NullType, StructType

from spark_integration.tables.evolution import Unfit, evolve


def struct(**fields: Any) -> StructType:
    found = StructType()
    for name, kind in fields.items():
        found = found.add(name, kind)
    return found


NOTHING = Schema()
FIRST = struct(
    a="integer",
    f="float",
    d="decimal(10,2)",
    s=struct(x="integer"),
    items=ArrayType(struct(q="integer")),
    by=MapType(struct(k="integer"), struct(v="float")),  # type: ignore[arg-type]
)


def table(*wanted: StructType) -> Schema:
    schema = NOTHING
    for one in wanted:
        schema = evolve(schema, one).schema
    return schema


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        (FIRST, []),
        (struct(a="short", d="decimal(8,2)"), []),
        (struct(new="string", a="long"), ["new string is added", "a int becomes long"]),
        (struct(f="double"), ["f float becomes double"]),
        (struct(d="decimal(12,2)"), ["d decimal(10, 2) becomes decimal(12, 2)"]),
        (struct(s=struct(y="date", x="long")), ["s.y date is added", "s.x int becomes long"]),
        (struct(items=ArrayType(struct(q="long"))), ["items.element.q int becomes long"]),
        (struct(items=ArrayType(struct(r="binary"))), ["items.element.r binary is added"]),
        (struct(by=MapType(struct(k="integer"), struct(v="double"))), ["by.value.v float becomes double"]),  # type: ignore[arg-type]
        (struct(a=NullType(), nothing=NullType(), empty=struct(), list=ArrayType(NullType())), []),
        (struct(took=DayTimeIntervalType()), ["took interval day to second is added"]),
    ],
)  # fmt: skip
def test_what_is_wider_or_new_changes_columns(wanted: StructType, changes: list[str]) -> None:
    found = evolve(table(FIRST), wanted)
    assert list(found.changes) == changes
    assert not evolve(found.schema, wanted).changes, "the same values change nothing a second time"


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (struct(a="string"), "a is string, in the table int"),
        (struct(a="float"), "a is float, in the table int"),
        (struct(f="decimal(10,2)"), "f is decimal(10, 2), in the table float"),
        (struct(d="decimal(12,3)"), "d is decimal(12, 3), in the table decimal(10, 2)"),
        (struct(s="integer"), "s is int, in the table struct"),
        (struct(a=struct(x="integer")), "a is struct<x:int>, in the table int"),
        (struct(s=struct(x="boolean")), "s.x is boolean, in the table int"),
        (struct(items=ArrayType(ArrayType(NullType()))), "items.element is array<void>, in the table struct"),
        (struct(by=MapType(struct(k="long"), struct(v="float"))), "keys of maps keep their type"),  # type: ignore[arg-type]
        (struct(A="integer"), "A is a in the table; engines ignore case"),
        (struct(Q="integer", q="integer"), "q is the name of two fields"),
        (struct(**{"x.y": "integer"}), "'x.y' is no name for a column"),
        (struct(_Offset="long"), "the name of the field _Offset is taken"),
        (struct(_partition="integer"), "the name of the field _partition is taken"),
    ],
)  # fmt: skip
def test_what_is_not_wider_is_refused_with_the_field(wanted: StructType, why: str) -> None:
    with pytest.raises(Unfit) as raised:
        evolve(table(FIRST), wanted, {"_offset"})
    assert why in str(raised.value)


def test_required_columns_become_optional_whether_values_have_them_or_not() -> None:
    current = table(struct(a="integer", b="string"))
    required = Schema(*(field.model_copy(update={"required": True}) for field in current.fields))
    found = evolve(required, struct(a="integer"))
    assert found.changes == ("a becomes optional", "b becomes optional")
    assert found.schema == current
