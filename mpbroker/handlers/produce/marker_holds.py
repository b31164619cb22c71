"""Holds: until a handler ends its hold, the coordinator does not write the marker of a transaction.

A checked batch needs a hold only if the log would accept it after the marker too, as part of the next
transaction. A hold is ended exactly once, however the request ends. While a log worker is down, ended holds
are not reported: another log worker may still append batches of the same request. A dead coordinator's holds
are void. The next coordinator waits until each handler has reported that all batches checked by earlier
coordinators are appended or lost (HoldsEnded). Until then it writes none of the markers that a hold could
delay. The coordinator's side: `coordinator/transactions/marker_holds.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mpbroker.handlers.calls.patient_client import PatientClient
from mpbroker.ipc.calls import EndHold, Failed, HoldsEnded, Message
from mpbroker.protocol.errors import ErrorCode

NO_HOLD = 0


class Hold:
    """A promise of the coordinator not to end a transaction before checked batches are in the log.

    The owner of a hold must end it, also after an error.
    """

    __slots__ = ("_ended", "_owner", "number")

    def __init__(self, owner: MarkerHolds, number: int) -> None:
        self._owner = owner
        self._ended = False
        self.number = number

    def end(self) -> None:
        """Release the hold: the checked batches are appended, or never will be. Further calls do nothing."""
        if not self._ended:
            self._ended = True
            self._owner.ended(self)


class MarkerHolds:
    """The holds of this handler. `logs_are_up()` returns True if all log workers are up."""

    def __init__(self, coordinator: PatientClient, logs_are_up: Callable[[], bool]) -> None:
        self._coordinator = coordinator
        self._logs_are_up = logs_are_up
        self._open: set[Hold] = set()
        # Open holds of dead coordinators.
        self._earlier: set[Hold] = set()
        # Ended holds that are not reported to the coordinator yet.
        self._over: list[Hold] = []
        self._has_reported = False

    def open(self, number: int) -> Hold:
        """Return a new hold with this number. A hold with the number NO_HOLD is never reported as ended."""
        hold = Hold(self, number)
        if number != NO_HOLD:
            self._open.add(hold)
        return hold

    def ended(self, hold: Hold) -> None:
        """Report the hold's end to the coordinator, once all log workers are up. `Hold.end` calls this."""
        if hold.number != NO_HOLD:
            self._over.append(hold)
            self.flush()

    @property
    def has_unsent(self) -> bool:
        """True if `flush` can report something to the coordinator now."""
        return bool(self._over and self._logs_are_up()) or self._must_report

    @property
    def _must_report(self) -> bool:
        return not (self._has_reported or self._earlier) and self._coordinator.server_is_up

    def flush(self) -> None:
        """Report to the coordinator the ended holds that are not reported yet, if that is possible now."""
        if self._over and self._logs_are_up():
            over, self._over = self._over, []
            for hold in over:
                self._earlier.discard(hold)
                if hold in self._open:
                    self._open.remove(hold)
                    self._send(EndHold(hold.number), partial(self._send_again, hold))
        if self._must_report:
            self._has_reported = True
            self._send(HoldsEnded(), self._report_again)

    def _send(self, message: Message, again: Callable[[], None]) -> None:
        def answered(answer: Message) -> None:
            no_memory = isinstance(answer, Failed) and answer.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
            if no_memory and self._coordinator.server_is_up:
                again()

        self._coordinator.call(message, answered)

    def _send_again(self, hold: Hold) -> None:
        self._open.add(hold)
        self._over.append(hold)

    def _report_again(self) -> None:
        self._has_reported = False

    def coordinator_died(self) -> None:
        """Make the open holds void. When all have ended, `flush` sends HoldsEnded to the new coordinator."""
        self._earlier |= self._open
        self._open.clear()
        self._has_reported = False
