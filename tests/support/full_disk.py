"""A disk that is full, for the kernel or for one call, and calls that fail with other errors."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


@contextmanager
def files_take(most_bytes: int) -> Iterator[None]:
    """A write across that size is cut there, one behind it fails (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def failing_with(number: int) -> Callable[..., NoReturn]:
    """Return what can stand in for a call: it raises this error, and names the path that it is given."""

    def fail(*given: object, **_: object) -> NoReturn:
        path = next((str(one) for one in given if isinstance(one, Path)), None)
        raise OSError(number, os.strerror(number), path)

    return fail
