"""Counts the error codes in a response, for ErrorsPerSec (Kafka: AbstractResponse.errorCounts).

Every error code in any struct of a response counts. The fields to count are determined once per class.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from mpbroker.protocol.messages import Message

Walk: TypeAlias = Callable[[Any, dict[int, int]], None]

CODES = ("error_code", "partition_error_code")


def error_counts(response: Message) -> dict[int, int]:
    counts: dict[int, int] = {}
    walk = _walk_of(type(response))
    if walk is not None:
        walk(response, counts)
    return counts


@cache
def _walk_of(cls: type[Message]) -> Walk | None:
    """Return a function that adds an instance's error codes to counts; None if the class has no codes."""
    codes = [name for name in CODES if name in cls.__struct_fields__]
    inner: list[tuple[str, bool, Walk]] = []
    for name, hint in typing.get_type_hints(cls).items():
        element, many = _message_in(hint)
        walk = _walk_of(element) if element is not None else None
        if walk is not None:
            inner.append((name, many, walk))
    if not codes and not inner:
        return None

    def walk_all(message: Any, counts: dict[int, int]) -> None:
        for name in codes:
            code = getattr(message, name)
            counts[code] = counts.get(code, 0) + 1
        for name, many, walk in inner:
            value = getattr(message, name)
            for one in (value or ()) if many else (value,) if value is not None else ():
                walk(one, counts)

    return walk_all


def _message_in(hint: Any) -> tuple[type[Message] | None, bool]:
    """Return the struct class in a field's type hint, or None, and whether the field is a list."""
    for option in typing.get_args(hint) if typing.get_origin(hint) is not list else (hint,):
        if typing.get_origin(option) is list:
            (element,) = typing.get_args(option)
            return (element if _is_message(element) else None), True
        if _is_message(option):
            return option, False
    return (hint if _is_message(hint) else None), False


def _is_message(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Message)
