"""Batches of TV1 on their way into the log, whose transaction must not end before they are there.

A client of TV1 has the same epoch in its next transaction, so nothing but the order in the log says to which
one a batch belongs. Whoever was told that it may append holds the markers back until it has. As long as a
producer has ended no transaction in the way of TV2 it may be one that produces in that way and ends in the
other. What is held belongs to a request, not to what is known of its id: it stays while the log is read
again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

from mpbroker.coordinator.runtime.answers import Waiter


class Holds:
    """`ended` hears of a transactional id of which nothing is held any more."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended = ended
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[str, Waiter]] = {}
        self._counts: Counter[str] = Counter()
        self._all_wait = False
        self._wanted: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, transactional_id: str, waiter: Waiter) -> int:
        """-> its number, which is never 0."""
        number = next(self._numbers)
        self._open[number] = transactional_id, waiter
        self._counts[transactional_id] += 1
        return number

    def must_wait(self, transactional_id: str) -> bool:
        """Whether its markers must. If so `ended` follows."""
        held = self._all_wait or self._counts[transactional_id] > 0
        if held:
            self._wanted[transactional_id] = None
        return held

    def end(self, number: int) -> None:
        """One that is not known was of an earlier coordinator."""
        found = self._open.pop(number, None)
        if found is None:
            return
        transactional_id, _ = found
        self._counts[transactional_id] -= 1
        if not self._counts[transactional_id]:
            del self._counts[transactional_id]
            self._tell(transactional_id)

    def end_all_of(self, is_gone: Callable[[Waiter], bool]) -> None:
        for number in [number for number, (_, waiter) in self._open.items() if is_gone(waiter)]:
            self.end(number)

    def expect_earlier(self) -> None:
        """What an earlier coordinator has granted is not known: it may be of any id."""
        self._all_wait = True

    def earlier_ended(self) -> None:
        self._all_wait = False
        for transactional_id in list(self._wanted):
            self._tell(transactional_id)

    def _tell(self, transactional_id: str) -> None:
        if transactional_id in self._wanted and not self._all_wait and not self._counts[transactional_id]:
            del self._wanted[transactional_id]
            self._ended(transactional_id)
