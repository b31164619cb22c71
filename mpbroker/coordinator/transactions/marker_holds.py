"""Holds delay a transaction's markers until its batches in flight are in the log.

A client of transaction version 1 (TV1) keeps its epoch in its next transaction, so only the order in the log
assigns a batch to a transaction. When the coordinator allows a handler to append a batch, it opens a hold,
which delays the markers until the handler has appended. A producer that appends as in TV2 needs holds, too,
until it has ended a transaction as in TV2. Until then it may end its transaction as in TV1. A hold belongs to
a request, not to a transactional id, so the hold remains when transactional ids are reloaded.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

from mpbroker.coordinator.runtime.requests import Waiter


class MarkerHolds:
    """Keeps the holds that delay markers of transactions.

    `released(transactional_id)` is called when the waiting markers of a transaction may be sent.
    """

    def __init__(self, released: Callable[[str], None]) -> None:
        self._released = released
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[str, Waiter]] = {}
        self._counts: Counter[str] = Counter()
        self._all_wait = False
        self._awaited: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, transactional_id: str, waiter: Waiter) -> int:
        """Open a hold for a request. Return the number of the hold, which is never 0."""
        number = next(self._numbers)
        self._open[number] = transactional_id, waiter
        self._counts[transactional_id] += 1
        return number

    def must_wait(self, transactional_id: str) -> bool:
        """Return whether the id's markers must wait. If so, `released` is called later."""
        held = self._all_wait or self._counts[transactional_id] > 0
        if held:
            self._awaited[transactional_id] = None
        return held

    def end(self, number: int) -> None:
        """End a hold. Ignore unknown numbers: the hold has ended, or is of an earlier coordinator."""
        found = self._open.pop(number, None)
        if found is None:
            return
        transactional_id, _ = found
        self._counts[transactional_id] -= 1
        if not self._counts[transactional_id]:
            del self._counts[transactional_id]
            self._release(transactional_id)

    def end_all_of(self, has_died: Callable[[Waiter], bool]) -> None:
        """End the holds of dead handlers. Call this when all batches that they published are in the log."""
        for number in [number for number, (_, waiter) in self._open.items() if has_died(waiter)]:
            self.end(number)

    def expect_earlier(self) -> None:
        """Make all markers wait, because an earlier coordinator may have opened holds for any id."""
        self._all_wait = True

    def earlier_ended(self) -> None:
        """Release waiting markers, because all holds of an earlier coordinator have ended."""
        self._all_wait = False
        for transactional_id in list(self._awaited):
            self._release(transactional_id)

    def _release(self, transactional_id: str) -> None:
        if transactional_id in self._awaited and not self._all_wait and not self._counts[transactional_id]:
            del self._awaited[transactional_id]
            self._released(transactional_id)
