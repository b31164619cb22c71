"""The scheduler, which works on heavy and long requests, a piece at a time, when nothing else waits.

A heavy request is announced as heavy by its processor, and waits until the requests before it are done. A
long request came as a light request, and turned out to take long. One heavy and one long request are under
way at a time, so that the memory of many does not add up. Their pieces alternate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from mpbroker.handlers.requests.response import PendingRequest
from mpbroker.ipc.slots import Request


class Scheduler:
    """Serves the heavy and long requests of a handler, one piece at a time.

    `begin` starts to serve a heavy request. `long_work` has the long requests that wait. `announce(True)`
    lets processors know that this handler has such work.
    """

    def __init__(
        self,
        begin: Callable[[Request], PendingRequest | None],
        long_work: deque[PendingRequest],
        announce: Callable[[bool], None],
    ) -> None:
        self._begin = begin
        self._announce = announce
        # Heavy requests that wait, oldest first, and the one that is under way.
        self.heavy: deque[Request] = deque()
        self._heavy: PendingRequest | None = None
        self._waiting = long_work
        self._long: PendingRequest | None = None
        self._was_long = False

    def has_work(self) -> bool:
        return bool(self._heavy or self.heavy or self._long or self._waiting)

    def work(self) -> None:
        """Do one piece of a heavy or a long request; the two kinds alternate."""
        has_long, has_heavy = self._long or self._waiting, self._heavy or self.heavy
        self._was_long = bool(has_long and not (self._was_long and has_heavy))
        if self._was_long:
            self._work_on_long()
        else:
            self._work_on_heavy()
        self._announce(self.has_work())

    def _work_on_heavy(self) -> None:
        if self._heavy is None:
            self._heavy = self._begin(self.heavy.popleft())
        else:
            self._heavy.work()
        if self._heavy is not None and self._heavy.pieces is None:
            self._heavy = None

    def _work_on_long(self) -> None:
        request = self._long or self._waiting.popleft()
        pieces = request.pieces
        self._long = request if request.work() and request.pieces is pieces else None
        if self._long is None and request.pieces is not None:
            # It continues with other work: a fetch that polls again, or a response that is encoded.
            self._waiting.append(request)

    def begun(self) -> Iterator[PendingRequest]:
        """Yield the requests under way."""
        yield from self._waiting
        yield from filter(None, (self._heavy, self._long))

    def take_heavy(self, is_taken: Callable[[Request], bool]) -> list[Request]:
        """Remove and return the heavy requests that have not begun and for which `is_taken` returns True."""
        taken = [request for request in self.heavy if is_taken(request)]
        for request in taken:
            self.heavy.remove(request)
        return taken

    def forget_ended(self) -> None:
        """Stop work on ended requests: their frames may be in an arena that is about to be emptied."""
        waiting = [request for request in self._waiting if not request.done]
        self._waiting.clear()
        self._waiting.extend(waiting)
        if self._heavy is not None and self._heavy.done:
            self._heavy = None
        if self._long is not None and self._long.done:
            self._long = None
        self._announce(self.has_work())
