"""Deadlines by name, each with an action (Kafka: CoordinatorTimer).

Setting a timer again moves its deadline. The heap keeps old entries of moved and cancelled timers until their
deadlines, and is rebuilt when most of its entries are old.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Protocol, TypeAlias

Action: TypeAlias = Callable[[], None]

DEAD_ENTRIES_MAX = 1024
# How long timers that expire together, such as the sessions of a large group, may delay requests.
RUN_S = 0.01

log = logging.getLogger("mpbroker.coordinator")


class Clock(Protocol):
    def monotonic_ms(self) -> int:
        """Return the time for timers in milliseconds. It never goes back."""

    def wall_ms(self) -> int:
        """Return the time for timestamps of records, in milliseconds since 1970."""


class Timers:
    """Timers by name. Deadlines are milliseconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._live: dict[Hashable, tuple[int, int, Action]] = {}
        self._heap: list[tuple[int, int, Hashable]] = []
        self._order = itertools.count()
        self._kinds: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._live

    def count(self, kind: str) -> int:
        """Return how many timers are set whose name is this kind or a tuple that begins with the kind."""
        return self._kinds[kind]

    def set(self, name: Hashable, deadline_ms: int, action: Action) -> None:
        number = next(self._order)
        if name not in self._live:
            self._kinds[_kind_of(name)] += 1
        self._live[name] = deadline_ms, number, action
        heapq.heappush(self._heap, (deadline_ms, number, name))
        if len(self._heap) > DEAD_ENTRIES_MAX + 2 * len(self._live):
            self._heap = [(at, number, name) for name, (at, number, _) in self._live.items()]
            heapq.heapify(self._heap)

    def pass_on(self, name: Hashable, action: Action) -> bool:
        """Give a timer another action, and keep its deadline. Return False if no such timer is set."""
        if name not in self._live:
            return False
        self._live[name] = *self._live[name][:2], action
        return True

    def postpone(self, name: Hashable, deadline_ms: int) -> bool:
        """Move a timer's deadline further away, and keep its action. Return False if no such timer is set.

        It costs less than `set`: the heap keeps the former deadline, and takes the new one when that is over.
        """
        found = self._live.get(name)
        if found is None:
            return False
        self._live[name] = deadline_ms, found[1], found[2]
        return True

    def cancel(self, name: Hashable) -> None:
        self._pop(name)

    def next_deadline_ms(self) -> int | None:
        while self._heap:
            at_ms, number, name = self._heap[0]
            found = self._live.get(name)
            if found is None or found[1] != number:
                heapq.heappop(self._heap)
            elif found[0] > at_ms:
                heapq.heapreplace(self._heap, (found[0], number, name))
            else:
                return at_ms
        return None

    def due(self, now_ms: int) -> Iterator[tuple[Hashable, Action]]:
        """Remove the expired timers one by one, the earliest deadline first. Yield (name, action) of each.

        Timers that are set meanwhile are left for the next call.
        """
        first_new = next(self._order)
        while (at_ms := self.next_deadline_ms()) is not None and at_ms <= now_ms:
            if self._heap[0][1] >= first_new:
                break
            name = heapq.heappop(self._heap)[2]
            action = self._live[name][2]
            self._pop(name)
            yield name, action

    def run(self, now_ms: int, noun: str, on_fault: Callable[[str], None]) -> None:
        """Run the actions of expired timers, for RUN_S at most; the others wait for the next call.

        An exception in one action does not affect the others.

        A timer's name is a kind, or a tuple of a kind and an object's name, such as a group id. `noun`: the
        word for the object in log messages. If an action raises, `on_fault` gets the object's name.
        """
        if not self._heap or self._heap[0][0] > now_ms:
            return
        until = time.perf_counter() + RUN_S
        for name, action in self.due(now_ms):
            try:
                action()
            except Exception:
                if isinstance(name, tuple):
                    log.exception("%s %s: a timer failed (%s)", noun, name[1], name[0])
                    on_fault(name[1])
                else:
                    log.exception("the timer for every %s failed (%s)", noun, name)
            if time.perf_counter() >= until:
                break

    def _pop(self, name: Hashable) -> None:
        if self._live.pop(name, None) is not None:
            self._kinds[_kind_of(name)] -= 1


def _kind_of(name: Hashable) -> Hashable:
    return name[0] if isinstance(name, tuple) else name
