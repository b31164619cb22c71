"""Makes, from the schema, the program with which `elements.pyx` counts the elements of a message."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cache
from typing import Final

from mpbroker.protocol import elements, schema
from mpbroker.protocol.messages import Message
from mpbroker.protocol.schema import FIXED_SIZE, Field, StructType
from mpbroker.protocol.wire import Buffer

END, FIXED, SHORT_SIZED, INT_SIZED, COMPACT_SIZED, NUMBERS, COMPACT_NUMBERS = range(7)
ARRAY, COMPACT_ARRAY, NULLABLE, TAGS = range(7, 11)
ALL: Final = 1 << 62


def count_elements(api_key: int, version: int, buf: Buffer, pos: int, most: int = ALL) -> int:
    """Return the number of array elements and tagged fields in a request, without decoding the request.

    The count stops when it exceeds `most`. In malformed bytes, elements before the first fault are counted.
    """
    return elements.count(_program_of(api_key, version), buf, pos, most)


@cache
def _program_of(api_key: int, version: int) -> array[int]:
    message = schema.message_for("request", api_key)
    assert message is not None
    return array("i", _Writer(version, flexible=version in message.flexible).struct(message))


class _Writer:
    def __init__(self, version: int, *, flexible: bool) -> None:
        self._version = version
        self._flexible = flexible

    def struct(self, struct: StructType) -> list[int]:
        plain, tagged = struct.at(self._version)
        ops = [op for field in plain for op in self._field(field)]
        if self._flexible:
            known = [op for f in tagged for op in _block(f.tag + 1, self._field(f))]
            ops += _block(TAGS, [*known, END], ends=False)
        return [*ops, END]

    def _field(self, field: Field) -> list[int]:
        if field.is_array and field.fixed_format is not None:
            return [COMPACT_NUMBERS if self._flexible else NUMBERS, FIXED_SIZE[field.fixed_format]]
        if field.is_array:
            return _block(COMPACT_ARRAY if self._flexible else ARRAY, self._value(field))
        if field.struct is not None and self._version in field.nullable:
            return _block(NULLABLE, self._value(field))
        return self._value(field)

    def _value(self, field: Field) -> list[int]:
        """Return the program that walks over one value of the field."""
        if field.fixed_format is not None:
            return [FIXED, FIXED_SIZE[field.fixed_format]]
        if field.struct is not None:
            return self.struct(field.struct)[:-1]
        if self._flexible:
            return [COMPACT_SIZED]
        return [SHORT_SIZED if field.type == "string" else INT_SIZED]


def _block(op: int, inner: Iterable[int], *, ends: bool = True) -> list[int]:
    body = [*inner, END] if ends else [*inner]
    return [op, len(body) + 2, *body]


def has_many_elements(message: Message, most: int) -> bool:
    """Return whether the total length of all lists in a message exceeds `most`.

    Lists in nested messages count, too. Counting stops when the total exceeds `most`.
    """
    left = [message]
    while left:
        one = left.pop()
        for name in one.__struct_fields__:
            value = getattr(one, name)
            if type(value) is not list or not value:
                continue
            most -= len(value)
            if most < 0:
                return True
            if isinstance(value[0], Message):
                left += value
    return False
