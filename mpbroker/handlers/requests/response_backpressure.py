"""Responses and appends that wait for room in the handler's reply arena.

Clients that do not read their responses fill the arena, and must not delay other clients for long. So while
anything waits, this handler's word of `replies_out` is set, and processors close connections that have not
read for long. (Kafka has no counterpart: responses are in the heap of the JVM.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from mpbroker.ipc.process import FatalError
from mpbroker.ipc.slots import Request
from shm.arena import ArenaFull

log = logging.getLogger("mpbroker.handlers")

# Longer than processors let a connection stall that holds memory others wait for.
PATIENCE_MS = 15_000
# Limit of the bytes that wait, which are held in this process's own memory.
BYTES_MAX = 64 << 20


class _Entry(NamedTuple):
    request: Request
    size: int
    until_ms: int
    attempt: Callable[[], None]
    give_up: Callable[[], None]
    forget: Callable[[], None]


def nothing() -> None:
    """Do nothing."""


class ResponseBackpressure:
    """A queue of responses and appends that wait for room in the reply arena.

    `notify(True)` is called when a first attempt waits, `notify(False)` when no attempt waits any more.
    `whose` returns the name of a request's connection.
    """

    def __init__(
        self, notify: Callable[[bool], None], clock_ms: Callable[[], int], whose: Callable[[Request], str]
    ) -> None:
        self._notify = notify
        self._clock_ms = clock_ms
        self._whose = whose
        self._entries: deque[_Entry] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def run(
        self,
        request: Request,
        size: int,
        attempt: Callable[[], None],
        give_up: Callable[[], None],
        forget: Callable[[], None] = nothing,
    ) -> None:
        """Call `attempt`, or queue it for `retry` if other attempts wait or `attempt` raises ArenaFull.

        `give_up` is called if there is no room for PATIENCE_MS, `forget` if the request's processor dies.
        Raises ArenaFull if the queued attempts have too many bytes already.
        """
        if not self._entries:
            with suppress(ArenaFull):
                attempt()
                return
        elif self._bytes + size > BYTES_MAX:
            raise ArenaFull(f"{self._bytes} bytes wait for room already")
        self._put(_Entry(request, size, self._clock_ms() + PATIENCE_MS, attempt, give_up, forget))

    def retry(self, now_ms: int) -> None:
        """Repeat queued attempts while there is room, and give up attempts that have waited too long."""
        while self._entries:
            entry = self._entries[0]
            try:
                entry.attempt()
            except ArenaFull:
                if now_ms < entry.until_ms:
                    return
                entry.give_up()
            except FatalError:
                raise
            except Exception:
                log.exception(
                    "closing %s: a response or append that waited failed", self._whose(entry.request)
                )
                entry.give_up()
            self._remove(entry)

    def forget_processor(self, processor: int) -> None:
        """Forget the requests of a dead processor: they are in an arena that is about to be emptied."""
        for entry in [entry for entry in self._entries if entry.request.processor == processor]:
            self._remove(entry)
            entry.forget()

    def give_up(self) -> None:
        """Give up all queued attempts, because the handler stops."""
        while self._entries:
            self._entries[0].give_up()
            self._remove(self._entries[0])

    def _put(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._bytes += entry.size
        if len(self._entries) == 1:
            self._notify(True)

    def _remove(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._bytes -= entry.size
        if not self._entries:
            self._notify(False)
