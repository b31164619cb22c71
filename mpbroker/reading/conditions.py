"""Turns conditions of a query on its rows into a smaller plan: fewer partitions, shorter ranges.

A pruned plan gives every row that fulfils the conditions. It may give other rows too, so `pruning_of` returns
for each condition whether the plan alone fulfils it; the caller evaluates the others.

* topic, partition: constants of a range, so any condition on them is decided exactly.
* offset: ranges are cut at the offset. `in` cuts at its least and largest value.
* timestamp, from below: before the first record at that time or later there are only earlier ones, so the
  range starts there. Later records may be earlier ones all the same: producers choose timestamps, and with
  LogAppendTime the broker's clock may be set back.
* timestamp, from above: nothing. The end could only be cut after the last record of that time or earlier, and
  neither the time index nor a batch's header knows it: both have largest timestamps, no least ones.

Comparisons follow SQL: one with null is never true, neither is its negation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

Operator = Literal["=", "<=>", "<", "<=", ">", ">=", "in", "null", "starts", "ends", "contains"]

END_OF_OFFSETS: Final = 1 << 63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEGATED: Final[dict[Operator, Operator]] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_CONSTANT_TYPES: Final = {"topic": str, "partition": int}


class Condition(NamedTuple):
    """A condition `column operator value`, or its negation. `value`: a sequence for `in`, none for `null`."""

    column: str
    operator: Operator
    value: Any = None
    negated: bool = False


@dataclass(frozen=True)
class Pruning:
    """The rows that may be wanted: of which partitions, at which offsets, since when.

    Offsets are in [low_offset, high_offset). Rows before a partition's first record of `since_ms` or later
    are not wanted.
    """

    constants: tuple[Condition, ...] = ()
    low_offset: int = 0
    high_offset: int = END_OF_OFFSETS
    since_ms: int | None = None

    def wants(self, topic: str, partition: int) -> bool:
        """Return whether any row of a partition may be wanted."""
        if self.low_offset >= self.high_offset:
            return False
        values = {"topic": topic, "partition": partition}
        return all(holds(one, values[one.column]) for one in self.constants)


EVERYTHING: Final = Pruning()


def pruning_of(conditions: Sequence[Condition]) -> tuple[Pruning, list[bool]]:
    """Return the pruning by all conditions, and for each condition whether a pruned plan alone fulfils it."""
    constants: list[Condition] = []
    low, high, since_ms = 0, END_OF_OFFSETS, None
    exact = []
    for one in conditions:
        decided = False
        if one.column in _CONSTANT_TYPES:
            decided = _comparable(one, _CONSTANT_TYPES[one.column])
            if decided:
                constants.append(one)
        elif one.column == "offset" and _comparable(one, int):
            first, end, decided = _offsets(one)
            low, high = max(low, first), min(high, end)
        elif one.column == "timestamp":
            time_ms = _since(one)
            if time_ms is not None:
                since_ms = time_ms if since_ms is None else max(since_ms, time_ms)
        exact.append(decided)
    return Pruning(tuple(constants), low, high, since_ms), exact


def holds(condition: Condition, value: Any) -> bool:
    """Return whether a value that is not null fulfils the condition; False if that is unknown."""
    known = _compared(condition.operator, value, condition.value)
    return known is not None and known != condition.negated


def _compared(operator: Operator, value: Any, other: Any) -> bool | None:
    """Return a comparison's result in SQL; None is SQL's unknown."""
    if operator == "null":
        return False
    if operator == "<=>":
        return bool(value == other)
    if operator == "in":
        if value in other:
            return True
        return None if None in other else False
    if other is None:
        return None
    return bool(_COMPARE[operator](value, other))


_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": lambda value, other: value == other,
    "<": lambda value, other: value < other,
    "<=": lambda value, other: value <= other,
    ">": lambda value, other: value > other,
    ">=": lambda value, other: value >= other,
    "starts": lambda value, other: value.startswith(other),
    "ends": lambda value, other: value.endswith(other),
    "contains": lambda value, other: other in value,
}


def _comparable(condition: Condition, wanted: type) -> bool:
    """Return whether the condition compares with values of the column's own type, or with null."""
    if condition.operator == "null":
        return True
    if condition.operator in ("starts", "ends", "contains") and wanted is not str:
        return False
    values = condition.value if condition.operator == "in" else (condition.value,)
    return all(value is None or type(value) is wanted for value in values)


def _offsets(condition: Condition) -> tuple[int, int, bool]:
    """Return [low, high) with all offsets that fulfil the condition, and whether it has no others."""
    operator, value = condition.operator, condition.value
    if condition.negated:
        if operator in _NEGATED:
            operator = _NEGATED[operator]
        elif operator == "null" or (operator == "<=>" and value is None):
            return 0, END_OF_OFFSETS, True
        elif (operator == "in" and None in value) or (operator == "=" and value is None):
            return 0, 0, True
        else:
            return 0, END_OF_OFFSETS, False
    if operator == "in":
        offsets = {one for one in value if one is not None}
        if not offsets:
            return 0, 0, True
        low, high = min(offsets), max(offsets) + 1
        return low, high, len(offsets) == high - low
    if value is None:
        return 0, 0, True
    low = {"=": value, "<=>": value, ">": value + 1, ">=": value}.get(operator, 0)
    high = {"=": value + 1, "<=>": value + 1, "<": value, "<=": value + 1}.get(operator, END_OF_OFFSETS)
    return low, high, True


def _since(condition: Condition) -> int | None:
    """Return a time before which no record fulfils the condition, in ms since 1970; None if there is none."""
    operator, value = condition.operator, condition.value
    if condition.negated:
        operator = _NEGATED.get(operator, "null")
    if operator == "in" and value and all(_is_instant(one) for one in value):
        operator, value = ">=", min(value)
    if operator not in ("=", "<=>", ">", ">=") or not _is_instant(value):
        return None
    microseconds = (value - _EPOCH) // timedelta(microseconds=1)
    # Records have milliseconds: round to the first that is not before, or to the next for `>`.
    time_ms: int = microseconds // 1000 + 1 if operator == ">" else -(-microseconds // 1000)
    # Negative numbers mean special offsets in ListOffsets, and a record without a timestamp has -1.
    return time_ms if time_ms > 0 else None


def _is_instant(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None
