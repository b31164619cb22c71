"""Decides which tables get a commit next: several at once, of each table one at a time.

A table that is behind waits for its next turn until all others that are due have had theirs. So neither a
long backfill nor a table that fails holds up the rest. Knows nothing of Spark and of Iceberg.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_integration.tables.settings import TableSettings

POLL_EVERY_S: Final = 0.5


class Outcome(NamedTuple):
    """The result of a turn. `problem`: why it failed. `is_whole`: the table has all that there is."""

    is_whole: bool
    problem: str = ""


@dataclass
class _Next:
    """When a table is due, and how its last turn ended."""

    due_s: float = 0.0
    is_behind: bool = True
    problem: str = ""


class Turns:
    """The turns of all tables. `take` makes one commit to a table, one of so many at that time.

    Threads call `take`, at most `at_once` of them.
    """

    def __init__(
        self, take: Callable[[TableSettings, int], Outcome], at_once: int, interval_s: float
    ) -> None:
        self._take = take
        self._at_once = at_once
        self._interval_s = interval_s
        self._next: dict[str, _Next] = {}

    def run(
        self, look: Callable[[], Sequence[TableSettings]], is_stopped: Callable[[], bool], *, once: bool
    ) -> list[str]:
        """Go on until `is_stopped`; with `once`, until each table has all or has failed.

        Turns under way end first. `look` returns the tables of now, and is called once an interval. Returns
        why tables have failed. Raises what `look` raises.
        """
        tables: dict[str, TableSettings] = {}
        running: dict[Future[Outcome], str] = {}
        look_at_s = 0.0
        with ThreadPoolExecutor(self._at_once, "table") as threads:
            while not is_stopped():
                now_s = time.monotonic()
                if now_s >= look_at_s:
                    tables = {one.name: one for one in look()}
                    look_at_s = now_s + self._interval_s
                chosen = self._due(tables, running.values(), now_s, once=once)
                count = len(running) + len(chosen)
                for name in chosen:
                    self._next[name].due_s = now_s + self._interval_s
                    running[threads.submit(self._take, tables[name], count)] = name
                if once and not running and not any(self._next[name].is_behind for name in tables):
                    break
                if not running:
                    time.sleep(POLL_EVERY_S)
                for future in wait(running, POLL_EVERY_S, FIRST_COMPLETED).done:
                    self._ended(running.pop(future), future.result())
        for future, name in running.items():
            self._ended(name, future.result())
        return [problem for name in tables if (problem := self._next[name].problem)]

    def _due(
        self, tables: Mapping[str, TableSettings], busy: Collection[str], now_s: float, *, once: bool
    ) -> list[str]:
        """Return the tables whose turn it is, as many as there are threads for."""
        known = {name: self._next.setdefault(name, _Next()) for name in tables}
        # A round through all tables may take longer than the interval: with `once` it would never end.
        due = [name for name, one in known.items() if one.due_s <= now_s and (one.is_behind or not once)]
        due.sort(key=lambda name: self._next[name].due_s)
        return [name for name in due if name not in busy][: self._at_once - len(busy)]

    def _ended(self, name: str, outcome: Outcome) -> None:
        found = self._next[name]
        found.problem = outcome.problem
        found.is_behind = not (outcome.is_whole or outcome.problem)
        if found.is_behind:
            found.due_s = time.monotonic()
        elif outcome.problem:
            found.due_s = time.monotonic() + self._interval_s
