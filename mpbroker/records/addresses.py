"""Addresses of Arrow's buffers, from which `mpbroker.records.encode` reads rows."""

from typing import TypeAlias

Numbers: TypeAlias = tuple[int, int, int]
"""A column of numbers: addresses of the validity bitmap (0: none) and of the values; the first row."""
Binary: TypeAlias = tuple[int, int, int, int]
"""A column of bytes or text: addresses of the validity bitmap (0: none), offsets and data; the first row."""
Headers: TypeAlias = tuple[int, int, int, int, int, Binary, Binary]
"""A column of headers, each row a list of structs (key, value).

The items are: the addresses of the lists' validity bitmap and offsets, the first row; the address of the
structs' validity bitmap, their first row; the columns of keys and of values.
"""
