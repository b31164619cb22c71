"""Walks through Avro's binary encoding before fastavro decodes it, where fastavro has no bounds of its own.

A few bytes can make fastavro 1.13 use up the stack (a schema that contains itself), the memory (an array
whose elements take no bytes) or the time (a decimal of many digits, or a block with a negative size). If the
reader's schema lacks a field, fastavro skips the blocks of that field by their sizes; with a negative size it
jumps back and reads the same bytes again. Schemas without any of these need no walk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mpbroker.registry.framing import read_varint

DEPTH_MAX: Final = 100
"""The most records of one schema that may be nested."""
EMPTY_ELEMENTS_MAX: Final = 1024
"""The most elements of a value's arrays that take no bytes."""
DECIMAL_BYTES_MAX: Final = 64
"""The most bytes of a decimal. (The 38 digits of Spark's decimals fit into 16.)"""

_LONG_BITS: Final = 64
_SIZES: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}

Bounds = Callable[[bytes, int], None]


def bounds_of(written: Any, *, is_resolved: bool) -> Bounds | None:
    """Return a function that checks bytes from a position on; None if the schema needs no check.

    `written` is the writer's schema as fastavro parses it. `is_resolved`: the reader has another schema,
    and fastavro skips the fields that are missing there. The returned function raises ValueError.
    """
    plan = _Plan(is_resolved=is_resolved)
    step = plan.of(written).step
    return (lambda data, start: step(_Walk(data, start))) if plan.is_needed else None


class _Walk:
    """A position in encoded bytes."""

    __slots__ = ("at", "data", "depth", "empty_elements")

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at
        self.depth = 0
        self.empty_elements = 0

    def skip(self, size: int) -> None:
        self.at += size
        if size < 0 or self.at > len(self.data):
            raise ValueError(f"it ends too early, or has a wrong size: {size}")

    def long(self) -> int:
        """Read a number of variable length, in zigzag."""
        number, self.at = read_varint(self.data, self.at, _LONG_BITS)
        return number


Step = Callable[[_Walk], None]


class _Planned(NamedTuple):
    """A function that steps over a value of a schema, and whether such a value takes no bytes."""

    step: Step
    is_empty: bool = False


class _Plan:
    """Makes the functions that step over values of a schema. `is_needed`: a value could exceed a bound."""

    def __init__(self, *, is_resolved: bool) -> None:
        self._is_resolved = is_resolved
        self._named: dict[str, _Planned] = {}
        self._open: set[str] = set()
        self.is_needed = False

    def of(self, schema: Any) -> _Planned:
        if isinstance(schema, list):
            return _Planned(_over_branch([self.of(branch).step for branch in schema]))
        if isinstance(schema, str):
            return _PLAIN[schema] if schema in _PLAIN else self._of_name(schema)
        match schema["type"]:
            case "record" | "error":
                return self._of_record(schema)
            case "array":
                return self._of_array(schema)
            case "map":
                self.is_needed |= self._is_resolved
                return _Planned(_over_blocks(_in_order([_over_bytes, self.of(schema["values"]).step])))
            case "enum":
                return self._named.setdefault(schema["name"], _PLAIN["int"])
            case "fixed":
                size = schema["size"]
                return self._named.setdefault(schema["name"], _Planned(_over(size), size == 0))
            case "bytes" if schema.get("logicalType") == "decimal":
                self.is_needed = True
                return _Planned(_over_decimal)
        return _PLAIN[schema["type"]]

    def _of_name(self, name: str) -> _Planned:
        if name not in self._open:
            return self._named[name]
        self.is_needed = True
        return _Planned(self._over_itself(name))

    def _of_record(self, schema: Mapping[str, Any]) -> _Planned:
        name = schema["name"]
        self._open.add(name)
        fields = [self.of(field["type"]) for field in schema["fields"]]
        self._open.remove(name)
        planned = _Planned(_in_order([one.step for one in fields]), all(one.is_empty for one in fields))
        self._named[name] = planned
        return planned

    def _of_array(self, schema: Mapping[str, Any]) -> _Planned:
        items = self.of(schema["items"])
        self.is_needed |= self._is_resolved or items.is_empty
        return _Planned(_over_blocks(items.step))

    def _over_itself(self, name: str) -> Step:
        def step(walk: _Walk) -> None:
            walk.depth += 1
            if walk.depth > DEPTH_MAX:
                raise ValueError(f"it is nested deeper than {DEPTH_MAX} records")
            self._named[name].step(walk)
            walk.depth -= 1

        return step


def _over(size: int) -> Step:
    return lambda walk: walk.skip(size)


def _over_number(walk: _Walk) -> None:
    walk.long()


def _over_bytes(walk: _Walk) -> None:
    walk.skip(walk.long())


def _over_decimal(walk: _Walk) -> None:
    size = walk.long()
    if size > DECIMAL_BYTES_MAX:
        raise ValueError(f"a decimal has {size} bytes, and may have {DECIMAL_BYTES_MAX}")
    walk.skip(size)


def _in_order(steps: list[Step]) -> Step:
    def step(walk: _Walk) -> None:
        for one in steps:
            one(walk)

    return step


def _over_branch(branches: list[Step]) -> Step:
    def step(walk: _Walk) -> None:
        number = walk.long()
        if not 0 <= number < len(branches):
            raise ValueError(f"a union of {len(branches)} has no branch {number}")
        branches[number](walk)

    return step


def _over_blocks(element: Step) -> Step:
    """Return a step over blocks of elements.

    A block begins with its number of elements. If that is negative, the block's size in bytes comes next.
    fastavro skips a block by that size, so a wrong size would make it jump elsewhere, even backwards.
    """

    def step(walk: _Walk) -> None:
        while count := walk.long():
            end = None
            if count < 0:
                size = walk.long()
                end, count = walk.at + size, -count
            for _ in range(count):
                before = walk.at
                element(walk)
                if walk.at == before:
                    walk.empty_elements += 1
                    if walk.empty_elements > EMPTY_ELEMENTS_MAX:
                        raise ValueError(
                            f"arrays have more than {EMPTY_ELEMENTS_MAX} elements that take no bytes"
                        )
            if end is not None and end != walk.at:
                raise ValueError(f"a block of an array or a map has another size than its {size} bytes")

    return step


_PLAIN: Final[Mapping[str, _Planned]] = {
    **{kind: _Planned(_over(size), size == 0) for kind, size in _SIZES.items()},
    **dict.fromkeys(("int", "long"), _Planned(_over_number)),
    **dict.fromkeys(("bytes", "string"), _Planned(_over_bytes)),
}
