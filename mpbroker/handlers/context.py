"""The context of a request, which is the argument of its API's function. (Kafka: RequestContext.)"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from mpbroker.handlers.broker import Broker
from mpbroker.handlers.requests.limits import LOOKUPS_PER_PIECE, SEARCHES_PER_PIECE
from mpbroker.handlers.requests.permissions import Need
from mpbroker.handlers.requests.response import PendingRequest

T = TypeVar("T")
Named = TypeVar("Named")


class RequestContext(PendingRequest):
    """A request with its broker, and the methods that end the request."""

    broker: Broker

    def allows(self, need: Need, name: str) -> bool:
        """Return True if the client has the permission `need` for the resource of this name."""
        return self.broker.authorization.allows(self, need, name)

    def should_yield(self, done: int, at_once: int | None = None) -> bool:
        """Return True, and set `takes_long`, if the caller must yield after `done` items.

        `at_once` is the number of items between yields; the default suits items that may need a disk read.
        """
        if done % (SEARCHES_PER_PIECE if at_once is None else at_once):
            return False
        self.takes_long = True
        return True

    def pausing(self, pieces: Generator[None, None, T]) -> Generator[None, None, T]:
        """Do work in pieces; return its result. Sets `takes_long` if there is more than one piece."""
        try:
            while True:
                next(pieces)
                self.takes_long = True
                yield
        except StopIteration as end:
            result: T = end.value
            return result

    def split(
        self, need: Need, named: Iterable[Named], name_of: Callable[[Named], str | None]
    ) -> Generator[None, None, tuple[list[Named], list[Named]]]:
        """Return (things that the client may use, things that it may not use); do the work in pieces.

        A thing whose name is None does not exist. It counts as allowed, and its API reports the error.
        """
        allowed: list[Named] = []
        denied: list[Named] = []
        for looked_up, one in enumerate(named, start=1):
            name = name_of(one)
            may = name is None or self.allows(need, name)
            (allowed if may else denied).append(one)
            if self.should_yield(looked_up, LOOKUPS_PER_PIECE):
                yield
        return allowed, denied
