"""Turns conditions of a query on its rows into a smaller plan: fewer partitions, shorter ranges.

A pruned plan reads every row that fulfils the conditions. It may read other rows too, so `pruning_of` returns
for each condition whether all rows of the plan fulfil it; the caller evaluates the other conditions.

* topic, partition: each range has one topic and partition, so a condition on them is decided exactly.
* offset: ranges are cut at the offset. `in` cuts at its smallest and largest value.
* timestamp, lower bound: a range starts at the first record of that time or later. Records after it may have
  earlier timestamps: producers choose timestamps, and with LogAppendTime the broker's clock may be set back.
* timestamp, upper bound: no cut. A range would have to end after its last record of that time or earlier, and
  neither the time index nor a batch's header has that record: both contain largest timestamps only.

Comparisons follow SQL: neither a comparison with null nor its negation is true.
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
    """A condition `column operator value`, or its negation. `null` means IS NULL; `in` takes a sequence."""

    column: str
    operator: Operator
    value: Any = None
    negated: bool = False


@dataclass(frozen=True)
class Pruning:
    """The rows that may fulfil the conditions, by partition, offset and time.

    `constants` are conditions on topic and partition. Offsets are in [low_offset, high_offset). In each
    partition, rows before the first record with timestamp `since_ms` or later are excluded.
    """

    constants: tuple[Condition, ...] = ()
    low_offset: int = 0
    high_offset: int = END_OF_OFFSETS
    since_ms: int | None = None

    def wants(self, topic: str, partition: int) -> bool:
        """Return whether any row of the partition may fulfil the conditions."""
        if self.low_offset >= self.high_offset:
            return False
        values = {"topic": topic, "partition": partition}
        return all(holds(one, values[one.column]) for one in self.constants)


EVERYTHING: Final = Pruning()


def pruning_of(conditions: Sequence[Condition]) -> tuple[Pruning, list[bool]]:
    """Return the pruning by all conditions, and for each condition whether all rows of the plan fulfil it."""
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
    """Return whether a value that is not null fulfils the condition; False if SQL's result is unknown."""
    known = _compared(condition.operator, value, condition.value)
    return known is not None and known != condition.negated


def _compared(operator: Operator, value: Any, other: Any) -> bool | None:
    """Return the result of SQL's comparison `value operator other`; None means unknown."""
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
    """Return whether each value of the condition is null or has the column's type, which is `wanted`."""
    if condition.operator == "null":
        return True
    if condition.operator in ("starts", "ends", "contains") and wanted is not str:
        return False
    values = condition.value if condition.operator == "in" else (condition.value,)
    return all(value is None or type(value) is wanted for value in values)


def _offsets(condition: Condition) -> tuple[int, int, bool]:
    """Return (low, high, exact): matching offsets are in [low, high); if exact, all offsets there match."""
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
    """Return the earliest time that can fulfil the condition, in ms since 1970; None if there is no limit."""
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
