"""Makes texts that clients have chosen safe for logs, terminals and error messages.

A name may have line breaks, which would forge lines of a log, and escape sequences, which a terminal obeys.
"""

from __future__ import annotations

# More than any text of the broker's own.
ERROR_TEXT_LENGTH_MAX = 2000


def printable(text: str) -> str:
    """Return the text, unprintable characters escaped as in Python literals: `\\n`, `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def shortened(text: str, length_max: int) -> str:
    """Return a text without its middle if it exceeds `length_max` characters, with a note of the cut."""
    if len(text) <= length_max:
        return text
    half = length_max // 2
    return f"{text[:half]}… ({len(text) - 2 * half} characters left out) …{text[-half:]}"


def error_text(text: str) -> str:
    """Return an error message of a response without its middle: it may quote names of up to 32,767 bytes."""
    return shortened(text, ERROR_TEXT_LENGTH_MAX)


def counted(count: int, one: str, many: str = "") -> str:
    """Return the number with the singular or plural that goes with it."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def spelt(value: object) -> str:
    """Write a value as settings and options spell it: `true`, `false`, or as `str` does."""
    return str(value).lower() if isinstance(value, bool) else str(value)
