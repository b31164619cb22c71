"""Keeps a connection's produces in order if the native code (the turn) leaves some of them to Python.

A connection may have several produces under way. The turn passes produces on in the order in which they came.
A produce that the turn leaves to Python takes longer. So later produces go to Python too, and wait here until
that produce is in the rings to its log workers, or has its response. Rings are FIFO, so no later produce
overtakes it there. After a produce that closes its connection, no later produce of that connection is begun.
"""

from __future__ import annotations

from collections import deque

from mpbroker.handlers.hot_path.turn import HandlerTurn
from mpbroker.ipc.slots import Request


class ProduceOrder:
    """Produces that were left to Python, by connection: one under way, and later produces that wait."""

    def __init__(self, turn: HandlerTurn) -> None:
        self._turn = turn
        # By processor and channel, the connection whose produces are refused. The turn knows it, too.
        self._refused: dict[tuple[int, int], int] = {}
        self._under_way: dict[int, Request] = {}
        self._later: dict[int, deque[Request]] = {}
        # Requests whose turn has come. They count as under way.
        self.ready: deque[Request] = deque()

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return len(self.ready) + sum(map(len, self._later.values()))

    def refuses(self, request: Request) -> bool:
        """Return True if an earlier produce has closed the connection of this request.

        The caller must then answer this request with CLOSE, too.
        """
        place = request.processor, request.channel
        refused = self._refused.get(place)
        if refused is None:
            return False
        self._turn.produce_passed_on(*place)
        if refused == request.connection:
            return True
        # Another connection has the channel now: one of the counts is the refused connection's.
        del self._refused[place]
        return False

    def begin(self, request: Request) -> bool:
        """Return True if the request may be served now; else queue it: `end` moves it to `ready` later."""
        if request.connection in self._under_way:
            self._later.setdefault(request.connection, deque()).append(request)
            return False
        self._under_way[request.connection] = request
        return True

    def end(self, request: Request) -> None:
        """Make the connection's next produce ready, since `request` is with the log workers or answered.

        Further calls for the same request do nothing.
        """
        if self._under_way.get(request.connection) is not request:
            return
        del self._under_way[request.connection]
        self._turn.produce_passed_on(request.processor, request.channel)
        later = self._later.get(request.connection)
        if later:
            following = self._under_way[request.connection] = later.popleft()
            self.ready.append(following)
            if not later:
                del self._later[request.connection]

    def refuse(self, request: Request) -> list[Request]:
        """Refuse all later produces of the connection that `request` closes; remove and return waiting ones.

        The caller must answer the returned requests with CLOSE, too.
        """
        self.end(request)
        taken = [one for one in self.ready if one.connection == request.connection]
        for one in taken:
            self.ready.remove(one)
            del self._under_way[one.connection]
        taken += self._later.pop(request.connection, ())
        for one in taken:
            self._turn.produce_passed_on(one.processor, one.channel)
        place = request.processor, request.channel
        if place not in self._refused:
            self._turn.hold_produces(*place)
        self._refused[place] = request.connection
        return taken

    def take_waiting(self) -> list[Request]:
        """Remove and return all requests that wait. The caller must answer them."""
        taken = [*self.ready, *(request for later in self._later.values() for request in later)]
        for request in self.ready:
            del self._under_way[request.connection]
        for request in taken:
            self._turn.produce_passed_on(request.processor, request.channel)
        self.ready.clear()
        self._later.clear()
        return taken

    def forget_processor(self, processor: int) -> None:
        """Forget the requests of a dead processor."""
        self.ready = deque(one for one in self.ready if one.processor != processor)
        self._refused = {place: of for place, of in self._refused.items() if place[0] != processor}
        for connection, request in list(self._under_way.items()):
            if request.processor == processor:
                del self._under_way[connection]
                self._later.pop(connection, None)
