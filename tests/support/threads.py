"""Work that threads do while a test goes on, and that ends with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self


@contextmanager
def concurrently(*works: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run each in a thread of its own; the event that it gets is set when it has to end."""
    ends = threading.Event()
    threads = [threading.Thread(target=work, args=(ends,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


class InThread:
    """Runs `_run` in a thread while it is entered, until `_ends` is set."""

    def __init__(self) -> None:
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
