"""Ctrl-C and SIGTERM as a flag, for commands that have something to finish."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, Final

from mpbroker.cli.errors import INTERRUPTED

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While entered, Ctrl-C or SIGTERM sets `came`, so that the command finishes its current work and ends.

    An exception could leave work half done, so the first signal raises one only while `raises` is true
    (before work has begun). A second signal ends the command at once.
    """

    def __init__(self, wakeup: Callable[[], None]) -> None:
        self.came = False
        # The code that a shell reports: 128 plus the number of the signal.
        self.exit_code = INTERRUPTED
        self.raises = False
        self._wakeup = wakeup
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._interrupted) for number in _SIGNALS}
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _interrupted(self, number: int, _frame: object) -> None:
        self.came, self.exit_code = True, 128 + number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.raises:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(self.exit_code)
        self._wakeup()
