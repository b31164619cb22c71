"""Logs, once, what clients have waited for too long: whose change it is, and which process owes what to it.

The coordinator itself waits for nothing. Its callers wait for other processes: a log worker that is at its
disk, a reader that does not follow the bulletin. Without a line here nobody could tell a slow disk from a
broker that hangs. (Kafka: EventPerformanceMonitor logs slow events of the controller.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mpbroker.coordinator.log_link import LogLink
from mpbroker.coordinator.metadata.state import Topic
from mpbroker.coordinator.waiting import Awaited, Caller, Change, Pending, Token, WaitingCallers
from mpbroker.ipc.hangs import Patience
from mpbroker.ipc.topology import log_worker, name_of
from mpbroker.protocol.uuids import uuid_text

LOOK_EVERY_S: Final = 1.0
TOLD_AFTER_S: Final = 5.0
# Kinds of waits beside those of callers whose change is durable; each is logged on its own.
ROUND, CALLS = "round", "calls"
# The kinds of news, in an operator's words.
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
    is_told: bool = False


@dataclass(frozen=True)
class Now:
    """The calls that are under way.

    `written` names the calls whose round is on its way into the metadata log. `undecided` counts the calls
    that wait behind it; `away` says why none is decided at all.
    """

    topics: Mapping[bytes, Topic]
    written: Iterable[str]
    undecided: int
    away: str | None


@dataclass(eq=False)
class Delays:
    """Watches for long waits. `behind` returns the readers that keep bulletins from being written anew."""

    _link: LogLink
    _waiting: WaitingCallers
    _behind: Callable[[], Iterable[int]]
    _clock: Callable[[], float] = time.monotonic
    _next_look_s: float = field(default=0.0, init=False)
    _waits: dict[Caller | str, _Wait] = field(default_factory=dict, init=False)
    _longest_s: float = field(default=0.0, init=False)

    def look(self, now: Callable[[], Now]) -> None:
        """Look for long waits, at most once a second. The loop calls it on every turn."""
        time_s = self._clock()
        if time_s < self._next_look_s:
            return
        self._next_look_s = time_s + LOOK_EVERY_S
        seen = now()
        there: dict[Caller | str, Pending | None] = {one.caller: one for one in self._waiting.pending}
        if seen.written:
            there[ROUND] = None
        if seen.undecided and seen.away is not None:
            there[CALLS] = None
        self._forget_but(there, time_s)
        overdue = []
        for what in there:
            wait = self._waits.setdefault(what, _Wait(time_s, Patience(TOLD_AFTER_S, self._clock)))
            if wait.patience.is_over() and not wait.is_told:
                wait.is_told = True
                overdue.append(what)
        if overdue:
            self._tell(overdue[0], there[overdue[0]], len(overdue) - 1, seen)

    def _forget_but(self, there: Mapping[Caller | str, object], time_s: float) -> None:
        told_before = any(wait.is_told for wait in self._waits.values())
        for what in [what for what in self._waits if what not in there]:
            wait = self._waits.pop(what)
            if wait.is_told:
                self._longest_s = max(self._longest_s, time_s - wait.since_s)
        if told_before and not any(wait.is_told for wait in self._waits.values()):
            _log.info("what was waited for has come, after %.0f s at most", self._longest_s)
            self._longest_s = 0.0

    def _tell(self, what: Caller | str, pending: Pending | None, more: int, now: Now) -> None:
        """Log one line, however many wait: mostly they all wait for the same."""
        if pending is not None:
            who = f"{type(pending.answer).__name__} for {name_of(pending.caller.handler)}"
            why = now.away or self._why(next(iter(pending.missing)), now.topics)
        elif what == ROUND:
            who = ", ".join(sorted(set(now.written)))
            why = now.away or f"{name_of(log_worker(0))} has not made the change of metadata durable"
        else:
            who, why = f"what clients ask the coordinator for ({now.undecided} calls)", f"{now.away}"
        _log.warning(
            "%s has waited for %.0f s%s: %s. `mpbroker ctl status` tells what each process is at",
            who,
            TOLD_AFTER_S,
            f", as {more} more" if more else "",
            why,
        )

    def _why(self, token: Token, topics: Mapping[bytes, Topic]) -> str:
        kind, topic_id = (None, token.topic_id) if isinstance(token, Change) else token
        if kind is Awaited.SETTINGS:
            return "the supervisor has not followed what was altered of the broker's settings"
        if kind in _NEWS:
            return f"news of {_NEWS[kind]} are not out{self._for_readers()}"
        topic = topics.get(topic_id)
        name = topic.name if topic is not None else uuid_text(topic_id)
        owing = [name_of(log_worker(worker)) for worker in sorted(self._link.owing(topic_id))]
        if owing:
            done = "removed" if kind is Awaited.GONE else "opened"
            return f"partitions of topic {name} are not {done} by {', '.join(owing)}"
        return f"news of topic {name} are not out{self._for_readers()}"

    def _for_readers(self) -> str:
        behind = [name_of(reader) for reader in self._behind()]
        return f", {', '.join(behind)} did not read the last ones" if behind else ""
