"""Whether the object store fails: one line of the log when that begins, one when it ends."""

from __future__ import annotations

import logging
import time
from typing import Final

from mpbroker.ipc.counters import Counter
from shm.clock import wall_ms
from shm.counters import CounterPage

FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 60.0
STORE_FAILS: Final = (
    "the object store fails: %s. This is tried again until it succeeds; sealed segments stay on this disk "
    "for as long"
)
STORE_ANSWERS: Final = "the object store answers again, after %.0f s"
log = logging.getLogger("mpbroker.remote")


class Outage:
    """Counts failures, and says how long to wait after each. Logs `begun` and `ended`."""

    def __init__(self, counters: CounterPage, begun: str = STORE_FAILS, ended: str = STORE_ANSWERS) -> None:
        self._counters = counters
        self._texts = begun, ended
        self._began = 0.0
        self._delay_s = 0.0
        # A predecessor may have died in an outage.
        counters.set(Counter.COUNT_REMOTE_DOWN_SINCE_MS, 0)

    def failed(self, error: Exception) -> float:
        """Note that a request has failed; return the seconds until the next try."""
        self._counters.add(Counter.COUNT_REMOTE_ERRORS)
        self._counters.set_last_error(str(error))
        if not self._delay_s:
            self._began = time.monotonic()
            self._counters.set(Counter.COUNT_REMOTE_DOWN_SINCE_MS, wall_ms())
            log.warning(self._texts[0], error)
        self._delay_s = min(self._delay_s * 2 or FIRST_DELAY_S, LONGEST_DELAY_S)
        return self._delay_s

    def succeeded(self) -> None:
        """Note that a request that changes the store has succeeded."""
        if self._delay_s:
            self._delay_s = 0.0
            self._counters.set(Counter.COUNT_REMOTE_DOWN_SINCE_MS, 0)
            log.info(self._texts[1], time.monotonic() - self._began)
