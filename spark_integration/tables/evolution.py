"""Says how the columns of an Iceberg table change for values of another schema. Sans-I/O.

Iceberg's own rules hold: columns are added, int becomes long, float double, a decimal gets more digits, a
required column becomes optional. Every column of a value is optional, since any record may lack it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from typing import Final, NamedTuple

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyspark.sql import types as spark

_PLAIN: Final[Mapping[type[spark.DataType], iceberg.IcebergType]] = {
    spark.BooleanType: iceberg.BooleanType(),
    spark.ByteType: iceberg.IntegerType(),
    spark.ShortType: iceberg.IntegerType(),
    spark.IntegerType: iceberg.IntegerType(),
    spark.LongType: iceberg.LongType(),
    spark.FloatType: iceberg.FloatType(),
    spark.DoubleType: iceberg.DoubleType(),
    spark.DateType: iceberg.DateType(),
    spark.TimestampType: iceberg.TimestamptzType(),
    spark.TimestampNTZType: iceberg.TimestampType(),
    spark.StringType: iceberg.StringType(),
    spark.BinaryType: iceberg.BinaryType(),
    # Iceberg has no intervals: these are microseconds.
    spark.DayTimeIntervalType: iceberg.LongType(),
}
_WIDENED: Final = ((iceberg.IntegerType, iceberg.LongType), (iceberg.FloatType, iceberg.DoubleType))
# Columns that engines add to each Iceberg table. They refuse to read a table with a column of that name.
_OF_ICEBERG: Final = frozenset(
    ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
)


class Unfit(ValueError):
    """Values of a schema have no place in a table; the text names the field."""


class Evolution(NamedTuple):
    """The schema of a table that has room for the values, and a sentence for each change that it needs.

    The ids of new columns are placeholders: the commit of the schema gives them.
    """

    schema: Schema
    changes: tuple[str, ...]


def evolve(current: Schema, wanted: spark.StructType, reserved: Collection[str] = ()) -> Evolution:
    """Return the table's schema with room for values of the type `wanted`.

    No field of a value may have a name of `reserved`. Raises Unfit.
    """
    taken = _OF_ICEBERG.union(name.lower() for name in reserved)
    for field in wanted.fields:
        if field.name.lower() in taken:
            raise Unfit(f"the name of the field {field.name} is taken by a column that each table has")
    merge = _Merge(current.highest_field_id)
    merged = merge.struct("", current.as_struct(), wanted)
    schema = Schema(*merged.fields, identifier_field_ids=current.identifier_field_ids)
    return Evolution(schema, tuple(merge.changes))


class _Merge:
    """Walks over the type of a table and the type of values, by the names of fields."""

    def __init__(self, highest_id: int) -> None:
        self._ids = count(highest_id + 1)
        self.changes: list[str] = []

    def struct(
        self, path: str, current: iceberg.StructType | None, wanted: spark.StructType
    ) -> iceberg.StructType:
        there = {field.name.lower(): field for field in (current.fields if current is not None else ())}
        merged = {name: field.model_copy(update={"required": False}) for name, field in there.items()}
        self.changes += [f"{path}{field.name} becomes optional" for field in there.values() if field.required]
        for name in (lowered := [field.name.lower() for field in wanted.fields]):
            if lowered.count(name) > 1:
                raise Unfit(f"{path}{name} is the name of two fields; engines ignore case")
        for name, field in zip(lowered, wanted.fields, strict=True):
            here, known = f"{path}{field.name}", there.get(name)
            if not name or "." in name:
                raise Unfit(f"{here!r} is no name for a column: it is empty or has a dot")
            if known is not None and known.name != field.name:
                raise Unfit(f"{here} is {path}{known.name} in the table; engines ignore case")
            kind = self._of(here, None if known is None else known.field_type, field.dataType)
            if kind is None:
                continue
            if known is None:
                merged[name] = iceberg.NestedField(next(self._ids), field.name, kind, required=False)
                if current is not None:
                    self.changes.append(f"{here} {field.dataType.simpleString()} is added")
            else:
                merged[name] = merged[name].model_copy(update={"field_type": kind})
        return iceberg.StructType(*merged.values())

    def _of(
        self, path: str, current: iceberg.IcebergType | None, wanted: spark.DataType
    ) -> iceberg.IcebergType | None:
        """Merge two types. Return None for a type without values, which has no column."""
        if isinstance(wanted, spark.StructType) and isinstance(current, iceberg.StructType | None):
            found = self.struct(f"{path}.", current, wanted)
            return found if found.fields else None
        if isinstance(wanted, spark.ArrayType) and isinstance(current, iceberg.ListType | None):
            element = self._of(f"{path}.element", current and current.element_type, wanted.elementType)
            if element is None:
                return None
            number = next(self._ids) if current is None else current.element_id
            return iceberg.ListType(number, element, element_required=False)
        if isinstance(wanted, spark.MapType) and isinstance(current, iceberg.MapType | None):
            return self._map(path, current, wanted)
        return self._plain(path, current, wanted)

    def _map(
        self, path: str, current: iceberg.MapType | None, wanted: spark.MapType
    ) -> iceberg.IcebergType | None:
        key = self._of(f"{path}.key", current and current.key_type, wanted.keyType)
        value = self._of(f"{path}.value", current and current.value_type, wanted.valueType)
        if key is None or value is None:
            return None
        if current is None:
            return iceberg.MapType(next(self._ids), key, next(self._ids), value, value_required=False)
        if key != current.key_type:
            raise Unfit(f"{path}.key is {key}, in the table {current.key_type}: keys of maps keep their type")
        return iceberg.MapType(current.key_id, key, current.value_id, value, value_required=False)

    def _plain(
        self, path: str, current: iceberg.IcebergType | None, wanted: spark.DataType
    ) -> iceberg.IcebergType | None:
        found: iceberg.IcebergType
        if isinstance(wanted, spark.NullType):
            return current
        if isinstance(wanted, spark.DecimalType):
            found = iceberg.DecimalType(wanted.precision, wanted.scale)
        elif type(wanted) in _PLAIN:
            found = _PLAIN[type(wanted)]
        elif current is not None:
            raise Unfit(f"{path} is {wanted.simpleString()}, in the table {current}")
        else:
            raise Unfit(f"{path} is {wanted.simpleString()}, which Iceberg does not have")
        if current is None or current == found or _is_wider(current, found):
            return found if current is None else current
        if not _is_wider(found, current):
            raise Unfit(f"{path} is {found}, in the table {current}")
        self.changes.append(f"{path} {current} becomes {found}")
        return found


def _is_wider(one: iceberg.IcebergType, other: iceberg.IcebergType) -> bool:
    """Return whether a column of the type `other` may become one of the type `one`."""
    if isinstance(one, iceberg.DecimalType) and isinstance(other, iceberg.DecimalType):
        return one.scale == other.scale and one.precision > other.precision
    return (type(other), type(one)) in _WIDENED
