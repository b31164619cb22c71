"""Standard output whose failures say that they are its own: Python's name no file."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from mpbroker.cli.errors import naming

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NAME = "standard output"


class _Buffered(io.BufferedWriter):
    """Above the buffer: Ctrl-C between a write and the buffer's note of it would have that written twice."""

    def write(self, data: ReadableBuffer, /) -> int:
        with naming(NAME):
            return super().write(data)

    def flush(self) -> None:
        with naming(NAME):
            super().flush()


class _Unbuffered(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        with naming(NAME):
            return super().write(data)


def name_failures() -> None:
    """Of what this process prints from now on. What somebody else has put in its place stays."""
    before = sys.stdout
    if before is None or before is not sys.__stdout__ or not isinstance(before, io.TextIOWrapper):
        return
    # Told not to buffer, Python has none there.
    is_buffered = isinstance(before.buffer, io.BufferedWriter)
    kind = io.FileIO if is_buffered else _Unbuffered
    raw = kind(before.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        _Buffered(raw) if is_buffered else raw,
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


def flush() -> None:
    """What is still to be written. Raises OSError: at the exit of Python nobody could say it well."""
    if sys.stdout is not None:
        sys.stdout.flush()


def give_up() -> None:
    """What could not be written goes nowhere, or Python would try and complain again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
