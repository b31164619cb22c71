"""Addresses of Arrow's buffers, from which `mpbroker.records.encode` reads rows."""

from typing import TypeAlias

Numbers: TypeAlias = tuple[int, int, int]
"""A column of numbers: addresses of validity (0 for none) and values, and the first row."""
Binary: TypeAlias = tuple[int, int, int, int]
"""A column of bytes or text: addresses of validity (0 for none), offsets and data, and the first row."""
Headers: TypeAlias = tuple[int, int, int, int, int, Binary, Binary]
"""A column of headers.

It has the addresses of validity and offsets, the first row, the address of the structs' validity, their first
row, and the key and value columns.
"""
