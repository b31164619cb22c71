"""Makes texts of clients, such as names, safe for logs, terminals and error messages.

Such a text may have line breaks, which would forge lines of a log, or escape sequences for a terminal.
"""

from __future__ import annotations

# More than any text of the broker's own.
ERROR_TEXT_LENGTH_MAX = 2000


def printable(text: str) -> str:
    """Return the text with its unprintable characters escaped as in Python literals: `\\n`, `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def shortened(text: str, length_max: int) -> str:
    """Return the text, with a note in place of its middle if it has more than `length_max` characters."""
    if len(text) <= length_max:
        return text
    half = length_max // 2
    return f"{text[:half]}… ({len(text) - 2 * half} characters left out) …{text[-half:]}"


def error_text(text: str) -> str:
    """Shorten a response's error message if it is long, since it may quote names of up to 32,767 bytes."""
    return shortened(text, ERROR_TEXT_LENGTH_MAX)


def counted(count: int, one: str, many: str = "") -> str:
    """Return the number and its noun: `one` for 1, otherwise `many` (default: `one` and "s")."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def spelt(value: object) -> str:
    """Return a value as settings and options spell it: `true` or `false` for a bool, else `str(value)`."""
    return str(value).lower() if isinstance(value, bool) else str(value)
