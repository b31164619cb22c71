"""Replaces sys.stdout by a stream whose errors name standard output. Python's own stream names no file."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpbroker.cli.errors import file_named

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NAME = "standard output"


class ReaderGone(Exception):
    """The reader of standard output has ended (`| head`). Typer would exit with 1 at a BrokenPipeError."""


@contextmanager
def _named() -> Iterator[None]:
    try:
        with file_named(NAME):
            yield
    except BrokenPipeError as error:
        raise ReaderGone from error


# Not a subclass of the raw stream: if Ctrl-C came after its write, the buffer would write the bytes again.
class _Buffered(io.BufferedWriter):
    """A buffered stream whose errors name standard output."""

    def write(self, data: ReadableBuffer, /) -> int:
        with _named():
            return super().write(data)

    def flush(self) -> None:
        with _named():
            super().flush()


class _Unbuffered(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        with _named():
            return super().write(data)


def name_failures() -> None:
    """Replace Python's own sys.stdout by a stream whose errors name standard output."""
    before = sys.stdout
    if before is None or before is not sys.__stdout__ or not isinstance(before, io.TextIOWrapper):
        return
    # Under `python -u`, `before.buffer` is no buffered writer.
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
    """Write the buffered output. Raises OSError, which Python would report badly at its exit."""
    if sys.stdout is not None:
        sys.stdout.flush()


def give_up_errors() -> None:
    """Flush standard error. If that fails, discard the buffer, or Python would exit with code 120."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def give_up() -> None:
    """Discard the buffered output. Otherwise Python would try to write it again at exit, and fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
