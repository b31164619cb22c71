"""Sizes as text for people.

Reports have exact bytes (`1,234 bytes`). Narrow columns have binary units for sizes that users compare with
settings, and decimal units for bytes in use and throughput, as is common for disks and networks.
"""

from __future__ import annotations

from typing import Final

_DECIMAL: Final = ("", "k", "M", "G", "T", "P")


def binary_size(count: float) -> str:
    """Return a number of bytes as text in binary units, as settings have them: 64 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"


def decimal_size(value: float) -> str:
    """Return a number of bytes as text in decimal units: 870 B, 1.2 MB."""
    number, unit = scaled(value)
    digits = 0 if not unit or number >= 99.95 else 1
    return f"{number:.{digits}f} {unit}B"


def scaled(value: float) -> tuple[float, str]:
    """Return the value in the largest unit in which it rounds to at least 1, and the unit ("", "k" …)."""
    unit = 0
    while abs(value) >= 999.5 and unit < len(_DECIMAL) - 1:
        value /= 1000
        unit += 1
    return value, _DECIMAL[unit]
