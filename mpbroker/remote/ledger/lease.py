"""The lease: how long an owner may answer, and when a standby may claim the ledger.

Both sides read CLOCK_BOOTTIME of their own machine, and times are never compared between machines. The rates
of two clocks may differ by five percent. The owner's lease is ten percent shorter than what the standby
waits, so the owner has stopped before the standby's entry can be in the ledger.

Nothing here waits or asks the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mpbroker.remote.ledger.events import TakenOver
from mpbroker.remote.ledger.state import RemoteState
from shm.clock import boot_ns

_NS_PER_MS: Final = 1_000_000
# The part of a lease that the owner does not use, because clocks differ.
MARGIN: Final = 0.1
# How often an owner writes in a lease. A standby claims only after the store has answered for one interval.
RENEWALS: Final = 3
# A standby waits so many leases for the first start of a new owner. Otherwise two brokers that take long to
# start would take over from each other for ever.
TO_START: Final = 4


class OwnerLease:
    """The owner's side. `lease_ms` is what the entry of its start says."""

    def __init__(self, lease_ms: int, clock_ns: Callable[[], int] = boot_ns) -> None:
        self._lease_ns = lease_ms * _NS_PER_MS
        self._clock_ns = clock_ns
        self._tried_ns: int | None = None

    def renewed(self, tried_ns: int) -> None:
        """Begin the lease anew, by an entry that is in the ledger. `tried_ns`: when its *first* try began.

        The standby may have received the entry right then, although no try had an answer.
        """
        self._tried_ns = max(tried_ns, self._tried_ns or 0)

    @property
    def valid_until_ns(self) -> int:
        """Return until when the owner may answer; 0 before its first entry is in."""
        return 0 if self._tried_ns is None else self._tried_ns + round(self._lease_ns * (1 - MARGIN))

    @property
    def due_ns(self) -> int:
        """Return when the next entry has to be written."""
        return 0 if self._tried_ns is None else self._tried_ns + self._lease_ns // RENEWALS

    def is_due(self) -> bool:
        """Return whether the next entry has to be written now."""
        return self._clock_ns() >= self.due_ns


class StandbyWatch:
    """The standby's side: broker `broker_id` waits `lease_ms`, or the owner's lease if that is longer."""

    def __init__(self, broker_id: int, lease_ms: int) -> None:
        self._broker_id = broker_id
        self._lease_ms = lease_ms
        self._applied_ns = 0
        # When the last request was sent to which the store said that no further entry is there.
        self._absent_ns: int | None = None
        # When the first request was sent of those that were answered without a gap.
        self._answers_ns: int | None = None
        self._answered_ns = 0

    def applied(self, now_ns: int) -> None:
        """Begin to wait: an entry was received, and what it names is on this disk."""
        self._applied_ns = now_ns
        self._answered(now_ns)
        self._absent_ns = None

    def absent(self, asked_ns: int) -> None:
        """Note an answer of the store: the next entry is not there. `asked_ns`: when the store was asked."""
        self._answered(asked_ns)
        self._absent_ns = asked_ns

    def failed(self) -> None:
        """Note a request without an answer. The owner may have met the same, so it gets time to write."""
        self._answers_ns = self._absent_ns = None

    def may_claim(self, state: RemoteState) -> bool:
        """Return whether the ledger may be claimed, by the answers so far. `state` is what was read of it."""
        if state.exported is not None:
            return False
        if self._broker_id not in state.standbys or self._absent_ns is None or self._answers_ns is None:
            return False
        if state.is_released:
            return self._absent_ns >= self._applied_ns
        lease_ns = self._lease_ns(state)
        return (
            self._absent_ns >= self._applied_ns + lease_ns
            and self._absent_ns >= self._answers_ns + lease_ns // RENEWALS
        )

    def _lease_ns(self, state: RemoteState) -> int:
        theirs_ms = 0 if state.leader is None else state.leader.lease_ms
        leases = TO_START if isinstance(state.leader, TakenOver) else 1
        return max(self._lease_ms, theirs_ms) * leases * _NS_PER_MS

    def _answered(self, asked_ns: int) -> None:
        """Count an answer. After a gap the answers begin anew: this process may have slept."""
        gap_ns = self._lease_ms * _NS_PER_MS // (2 * RENEWALS)
        if self._answers_ns is None or asked_ns - self._answered_ns > gap_ns:
            self._answers_ns = asked_ns
        self._answered_ns = asked_ns
