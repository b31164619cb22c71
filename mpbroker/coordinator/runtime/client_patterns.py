"""Regular expressions of clients, for RE2: its time is linear, while Python's `re` can take hours.

RE2 is imported by its first use: few brokers need it, and no process but the coordinator.
"""

from __future__ import annotations

from typing import Any, Final

from mpbroker.protocol.errors import ApiError, ErrorCode

MEMORY_BYTES: Final = 256 << 10
"""The most memory that a compiled pattern takes. RE2 keeps the last 128."""


def re2() -> Any:
    """Return the module `re2` (as Any, since it has no type annotations)."""
    import re2  # type: ignore[import-untyped]

    return re2


def options(*, is_latin: bool = False) -> Any:
    """Return the options of a pattern that is Latin-1 or UTF-8."""
    made = re2().Options()
    # Groups that capture make a match a thousand times slower at worst.
    made.never_capture, made.log_errors, made.max_mem = True, False, MEMORY_BYTES
    made.encoding = made.Encoding.LATIN1 if is_latin else made.Encoding.UTF8
    return made


def compile_pattern(text: str, length_max: int, *, is_for_ascii: bool = False) -> Any:
    """Return RE2's compiled pattern. Raises ApiError if it is invalid or too large.

    `is_for_ascii`: it is matched with ASCII texts only. A class such as \\pL then takes far less memory.
    """
    if len(text) > length_max:
        raise _invalid(f"The pattern has more than {length_max} characters.")
    if is_for_ascii:
        try:
            return re2().compile(text.encode("latin-1"), options(is_latin=True))
        except (UnicodeEncodeError, re2().error):
            pass
    try:
        return re2().compile(text, options())
    except re2().error as error:
        raise _invalid(error.args[0].decode()) from error


def _invalid(reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, reason)
