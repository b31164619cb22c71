"""The work on topics that are being opened or removed, a piece at a time.

A topic may have thousands of partitions, and a client may name a thousand topics. The log worker therefore
works on them for a while, in the order of the calls, and then appends producers' batches again. Openings and
removals take turns, so that a deletion does not wait for a large creation. A topic may wait for another topic
of the same name that is being removed, and for nothing else (`LogManager`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias

from mpbroker.ipc import calls
from mpbroker.ipc.slots import Call
from mpbroker.log.manager.log_manager import LogManager
from mpbroker.protocol.errors import ErrorCode

_log = logging.getLogger("mpbroker.log")

# Steps towards an answer, and the call to answer (None: no caller).
_Work: TypeAlias = tuple[Call | None, Generator[None, None, calls.Message]]


class TopicWork:
    """The openings and removals of topics that are under way. `answer` sends the answer to a call."""

    def __init__(self, manager: LogManager, answer: Callable[[Call, calls.Message], None]) -> None:
        self._manager = manager
        self._answer = answer
        # The first topic comes first.
        self._opening: deque[_Work] = deque()
        self._removing: deque[_Work] = deque()
        # Topics that are open, and not known to be on disk.
        self._opened: list[tuple[Call | None, calls.Message]] = []
        self._awaiting = 0

    def __bool__(self) -> bool:
        return bool(self._opening or self._removing or self._opened)

    @property
    def is_removing(self) -> bool:
        return bool(self._removing)

    @property
    def only_awaits_threads(self) -> bool:
        """Return whether all work waits for other threads, which need the GIL and will wake the loop."""
        return self._awaiting == bool(self._opening) + bool(self._removing)

    def open(self, call: Call, message: calls.EnsureTopic) -> None:
        self._manager.prefetch(message)
        self._opening.append((call, self._manager.ensuring(message)))

    def remove(self, call: Call, message: calls.RemoveTopic, before_renames: Iterable[None]) -> None:
        """Make the topic's partitions unreachable, and queue the topic for removal."""
        steps = self._manager.removing(message.name, message.topic_id, before_renames)
        self._removing.append((call, _removed(message, steps)))

    def follow(self, call: Call, steps: Generator[None, None, calls.Message]) -> None:
        """Queue steps of a call that is no opening or removal. They run after the openings queued before."""
        self._opening.append((call, steps))

    def advance(self) -> bool:
        """Do a piece of work on the oldest opening and the oldest removal. Return whether any was pending."""
        self._awaiting = 0
        had_work = bool(self)
        self._advance(self._opening, "opened")
        self._answer_opened()
        self._advance(self._removing, "removed")
        return had_work

    def _answer_opened(self) -> None:
        """Answer calls whose topics are synced. Begin to sync other open topics if no opening can advance."""
        creation = self._manager.creation
        creation.finish_sync()
        opened, self._opened = self._opened, []
        for call, answer in opened:
            # Other work (`follow`) waits for all topics before it.
            awaited = isinstance(answer, calls.EnsuredTopic) and creation.is_unsynced(answer.topic_id)
            if awaited or (self._opened and not isinstance(answer, calls.EnsuredTopic)):
                self._opened.append((call, answer))
            elif call is not None:
                self._answer(call, answer)
        if not self._opening or self._awaiting:
            creation.begin_sync()

    def advance_removals(self) -> None:
        """Do a piece of work on the first removal."""
        self._advance(self._removing, "removed")

    def _advance(self, waiting: deque[_Work], done: str) -> None:
        """Advance the first work in `waiting` for `stay_s` at most, or until a step waits for the I/O thread.

        Producers wait meanwhile: the log worker appends nothing until this returns.
        """
        if not waiting:
            return
        call, steps = waiting[0]
        leave_at = time.monotonic() + self._manager.recovery_scheduler.stay_s
        io_thread = self._manager.io_thread
        answer: calls.Message
        try:
            while True:
                io_thread.is_awaited = False
                next(steps)
                if io_thread.is_awaited or time.monotonic() >= leave_at:
                    self._awaiting += io_thread.is_awaited
                    return
        except StopIteration as end:
            answer = end.value
        except OSError as error:
            _log.error("a topic cannot be %s: %s", done, error)
            answer = calls.Failed(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        waiting.popleft()
        self._manager.say("running")
        if waiting is self._opening:
            self._opened.append((call, answer))
        elif call is not None:
            self._answer(call, answer)

    def drop(self, role: int) -> None:
        """Drop the calls of a dead process. A successor asks again for topics that it wants open.

        Removals that have begun are finished in any case: a topic must not remain half removed.
        """
        self._removing = deque(
            (None if call is None or call.owner == role else call, steps) for call, steps in self._removing
        )
        self._stop_opening([work for work in self._opening if work[0] is None or work[0].owner != role])
        self._opened = [
            (None if call is None or call.owner == role else call, answer) for call, answer in self._opened
        ]

    def stop_opening(self) -> None:
        """Drop the pending openings, before a stop."""
        self._stop_opening([])
        self._opened.clear()

    def _stop_opening(self, left: Iterable[_Work]) -> None:
        """Drop the openings not in `left`, and queue the removals that they had begun and not finished."""
        self._opening = deque(left)
        unfinished = self._manager.removal.unfinished()
        self._removing.extend((None, _finished(self._manager, topic_id)) for topic_id in unfinished)


def _removed(
    message: calls.RemoveTopic, steps: Generator[None, None, None]
) -> Generator[None, None, calls.Message]:
    yield from steps
    return calls.RemovedTopic(message.topic_id)


def _finished(manager: LogManager, topic_id: bytes) -> Generator[None, None, calls.Message]:
    yield from manager.removal.removing(topic_id)
    return calls.RemovedTopic(topic_id)
