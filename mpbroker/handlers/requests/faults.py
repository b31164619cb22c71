"""Faults on demand, for tests: requests that are delayed, failed, or lose their connection (ipc/faults.py).

While there are faults, the native turn leaves every request to Python, by the same flag as for the request
log. Without faults the turn does no extra work.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable

from mpbroker.handlers.requests.response import PendingRequest
from mpbroker.ipc.faults import Fault, read
from mpbroker.protocol.errors import error_code


class Faults:
    """The faults of one handler, and the requests that they delay. Only brokers of tests have faults."""

    def __init__(self, block: memoryview, monotonic_ms: Callable[[], int]) -> None:
        self._block = block
        self._monotonic_ms = monotonic_ms
        self._numbers = itertools.count()
        self._faults: list[Fault] = []
        # When each is due, oldest first.
        self._delayed: list[tuple[int, int, Fault, PendingRequest]] = []
        self.refresh()

    def __bool__(self) -> bool:
        return bool(self._faults)

    @property
    def has_delayed(self) -> bool:
        """Return True if requests are delayed."""
        return bool(self._delayed)

    def refresh(self) -> None:
        """Read the faults that the supervisor has written. Delayed requests stay delayed."""
        self._faults = read(self._block)

    def meets(self, request: PendingRequest) -> bool:
        """Apply the first fault that matches the request; return True if the request is not to be served now.

        The request is then ended here, or delayed until `take_due` returns it.
        """
        fault = next((one for one in self._faults if _is_about(one, request) and _counts(one)), None)
        if fault is None:
            return False
        if fault.delay_ms:
            due_ms = self._monotonic_ms() + fault.delay_ms
            heapq.heappush(self._delayed, (due_ms, next(self._numbers), fault, request))
            return True
        return _ends(fault, request)

    def next_deadline_ms(self) -> int | None:
        return self._delayed[0][0] if self._delayed else None

    def take_due(self, *, all_of_them: bool = False) -> list[PendingRequest]:
        """Return the requests to serve now: those whose delay is over, or all if `all_of_them`.

        A request whose fault is an error or a lost connection is ended here. It is returned only if a long
        response must still be encoded for it (it has `pieces`).
        """
        now_ms = self._monotonic_ms()
        served = []
        while self._delayed and (all_of_them or self._delayed[0][0] <= now_ms):
            _, _, fault, request = heapq.heappop(self._delayed)
            # It may have ended: its connection is closed or a process that it needs has died.
            if not request.done and (not _ends(fault, request) or request.pieces is not None):
                served.append(request)
        return served

    def close_delayed(self, api_key: int) -> None:
        """Close the connections of an API's delayed requests."""
        for _, _, _, request in self._delayed:
            if request.slot.api_key == api_key:
                request.close()


def _is_about(fault: Fault, request: PendingRequest) -> bool:
    if fault.api_key != request.slot.api_key:
        return False
    return fault.client_id is None or fault.client_id == request.client_id


def _counts(fault: Fault) -> bool:
    """Count a request for the fault; return False if the fault has been applied as often as it should be.

    All handlers count in one file by appending a byte: the kernel gives each append its own position. A
    handler that is killed leaves a byte or none. A missing file belongs to a fault that was removed.
    """
    try:
        fd = os.open(fault.hits, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not fault.times:
            os.write(fd, b".")
            return True
        if os.fstat(fd).st_size >= fault.times:
            return False
        os.write(fd, b".")
        return os.lseek(fd, 0, os.SEEK_CUR) <= fault.times
    finally:
        os.close(fd)


def _ends(fault: Fault, request: PendingRequest) -> bool:
    """Close or fail the request if the fault says so; return True if it does."""
    if fault.closes:
        request.close()
    elif fault.error_code:
        request.guard(lambda: request.fail(error_code(fault.error_code)))
    else:
        return False
    return True
