"""Ctrl-C as a flag, for commands that have something to finish."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any


class Interrupt:
    """While entered, Ctrl-C asks for the end of a command, which finishes what it has begun.

    A second one ends it at once. It sets a flag, because an exception could leave anything half done. While
    `raises` is true nothing is begun: the first one is an exception then, too.
    """

    def __init__(self, wakeup: Callable[[], None]) -> None:
        self.came = False
        self.raises = False
        self._wakeup = wakeup
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_exception: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, *_: object) -> None:
        self.came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.raises:
            raise KeyboardInterrupt
        self._wakeup()
