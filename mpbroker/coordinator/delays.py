"""Log each delayed change once, with the process it waits for.

The coordinator itself waits for nothing. Its callers wait for other processes, for instance for a log worker
with a slow disk, or for a process that does not read its bulletin. The log lines distinguish a slow disk from
a hung broker. (Kafka: EventPerformanceMonitor logs slow events of the controller.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mpbroker.coordinator.log_link import LogLink
from mpbroker.coordinator.metadata.state import Topic
from mpbroker.coordinator.runtime.requests import Caller
from mpbroker.coordinator.waiting import Awaited, Change, Pending, Token, WaitingCallers
from mpbroker.ipc.hangs import Patience
from mpbroker.ipc.topology import log_worker, name_of
from mpbroker.protocol.uuids import uuid_text

CHECK_EVERY_S: Final = 1.0
LOG_AFTER_S: Final = 5.0
# The kinds of waits of callers whose change is not durable yet.
ROUND, CALLS = "round", "calls"
# The kinds of announcements, in an operator's words.
_NEWS = {
    Awaited.QUOTAS: "quotas",
    Awaited.ACLS: "access control entries",
    Awaited.CREDENTIALS: "credentials",
    Awaited.RATES: "rates of addresses",
}
_log = logging.getLogger("mpbroker.coordinator")


@dataclass
class _Wait:
    since_s: float
    patience: Patience
    is_logged: bool = False


@dataclass(frozen=True)
class Progress:
    """The calls under way.

    `written`: the names of the calls whose records are being written to the metadata log.
    `undecided`: how many calls are not decided yet. `away`: why no call can be decided now, or None.
    """

    topics: Mapping[bytes, Topic]
    written: Iterable[str]
    undecided: int
    away: str | None


@dataclass(eq=False)
class Delays:
    """Logs long waits. `_lagging` returns the processes that have not read the last base of a bulletin."""

    _link: LogLink
    _waiting: WaitingCallers
    _lagging: Callable[[], Iterable[int]]
    _clock: Callable[[], float] = time.monotonic
    _next_check_s: float = field(default=0.0, init=False)
    _waits: dict[Caller | str, _Wait] = field(default_factory=dict, init=False)
    _longest_s: float = field(default=0.0, init=False)

    def check(self, progress: Callable[[], Progress]) -> None:
        """Check for long waits, at most once a second; further calls within the second do nothing."""
        time_s = self._clock()
        if time_s < self._next_check_s:
            return
        self._next_check_s = time_s + CHECK_EVERY_S
        current = progress()
        there: dict[Caller | str, Pending | None] = {one.caller: one for one in self._waiting.pending}
        if current.written:
            there[ROUND] = None
        if current.undecided and current.away is not None:
            there[CALLS] = None
        self._drop_ended(there, time_s)
        overdue = []
        for what in there:
            wait = self._waits.setdefault(what, _Wait(time_s, Patience(LOG_AFTER_S, self._clock)))
            if wait.patience.is_over() and not wait.is_logged:
                wait.is_logged = True
                overdue.append(what)
        if overdue:
            self._warn(overdue[0], there[overdue[0]], len(overdue) - 1, current)

    def _drop_ended(self, there: Mapping[Caller | str, object], time_s: float) -> None:
        logged_before = any(wait.is_logged for wait in self._waits.values())
        for what in [what for what in self._waits if what not in there]:
            wait = self._waits.pop(what)
            if wait.is_logged:
                self._longest_s = max(self._longest_s, time_s - wait.since_s)
        if logged_before and not any(wait.is_logged for wait in self._waits.values()):
            _log.info("delayed changes completed; longest wait %.0f s", self._longest_s)
            self._longest_s = 0.0

    def _warn(self, what: Caller | str, pending: Pending | None, more: int, progress: Progress) -> None:
        """Log one line: the wait of `what`, and how many `more` are overdue, usually for the same cause."""
        if pending is not None:
            who = f"{type(pending.answer).__name__} for {name_of(pending.caller.handler)}"
            why = progress.away or self._why(next(iter(pending.missing)), progress.topics)
        elif what == ROUND:
            who = ", ".join(sorted(set(progress.written)))
            why = progress.away or f"{name_of(log_worker(0))} has not made the change of metadata durable"
        else:
            who, why = f"{progress.undecided} calls to the coordinator", f"{progress.away}"
        _log.warning(
            "%s has waited for %.0f s%s: %s. `mpbroker ctl status` has the status of each process",
            who,
            LOG_AFTER_S,
            f", as {more} more" if more else "",
            why,
        )

    def _why(self, token: Token, topics: Mapping[bytes, Topic]) -> str:
        kind, topic_id = (None, token.topic_id) if isinstance(token, Change) else token
        if kind is Awaited.SETTINGS:
            return "the supervisor has not applied the altered broker settings"
        if kind in _NEWS:
            return f"{_NEWS[kind]} are not announced{self._for_readers()}"
        topic = topics.get(topic_id)
        name = topic.name if topic is not None else uuid_text(topic_id)
        owing = [name_of(log_worker(worker)) for worker in sorted(self._link.owing(topic_id))]
        if owing:
            done = "removed" if kind is Awaited.REMOVED else "opened"
            return f"partitions of topic {name} are not {done} by {', '.join(owing)}"
        return f"topic {name} is not announced{self._for_readers()}"

    def _for_readers(self) -> str:
        lagging = [name_of(reader) for reader in self._lagging()]
        return f", {', '.join(lagging)} did not read the last announcements" if lagging else ""
