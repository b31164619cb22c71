"""Addresses of Arrow's buffers, from which `mpbroker.records.encode` reads rows."""

from typing import TypeAlias

Numbers: TypeAlias = tuple[int, int, int]
"""A column of numbers: addresses of validity (0 for none) and values, and the first row."""
Binary: TypeAlias = tuple[int, int, int, int]
"""A column of bytes or text: addresses of validity (0 for none), offsets and data, and the first row."""
Headers: TypeAlias = tuple[int, int, int, int, int, Binary, Binary]
"""Addresses of validity and offsets, first row; validity of the structs, their first row; key and value."""
