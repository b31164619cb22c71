"""Standard output whose failures say that they are its own: Python's name no file."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NAME = "standard output"


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = NAME
            raise


def name_failures() -> None:
    """Of what this process prints from now on. What somebody else has put in its place stays."""
    before = sys.stdout
    if before is None or before is not sys.__stdout__ or not isinstance(before, io.TextIOWrapper):
        return
    raw = _Output(before.fileno(), "wb", closefd=False)
    # Told not to buffer, Python has none there.
    is_buffered = isinstance(before.buffer, io.BufferedWriter)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw) if is_buffered else raw,
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
