"""Limits of the integers in Kafka's requests and settings."""

INT_MAX = 2**31 - 1
INT_MIN = -(2**31)
LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)


def parse_decimal(text: str) -> int | None:
    """Return the number in a text of decimal digits; None for other texts and for more than LONG_MAX."""
    digits = text.lstrip("0") if text.isdecimal() else ""
    # Python refuses to parse thousands of digits.
    if not text.isdecimal() or len(digits) > len(str(LONG_MAX)):
        return None
    number = int(digits or "0")
    return number if number <= LONG_MAX else None
