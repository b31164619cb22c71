"""Two threads for the lease: one renews it, the other has the ledger name who stands by.

Nothing that takes long holds up the first one: it asks the store for one small entry at a time.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from mpbroker.remote.ledger.lease import RENEWALS
from mpbroker.remote.ledger.ledger import Fenced
from mpbroker.remote.ledger.registrations import read_registrations, registration_name
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.tier.leadership import Leadership
from mpbroker.remote.tier.tier_store import LOOK_S, Stopped, TierStore

# How often in a lease a renewal is looked at, and tried again after a failure.
_TRIES: Final = 30
log = logging.getLogger("mpbroker.remote")


class Renewing:
    """Both threads' work. The lease is renewed until `stop`, also after the tier was stopped."""

    def __init__(self, tier: TierStore, leadership: Leadership, lease_ms: int) -> None:
        self._tier = tier
        self._leadership = leadership
        self._lease_s = lease_ms / 1000
        self._stops = threading.Event()
        self._is_failing = False

    @property
    def has_lease(self) -> bool:
        """Return whether a standby may wait for this broker's end."""
        return self._leadership.has_lease

    def stop(self) -> None:
        self._stops.set()

    def renew(self) -> None:
        """Renew the lease until `stop`. Raises FatalError when another broker has taken over."""
        while not self._stops.is_set():
            self._stops.wait(self.turn())

    def turn(self) -> float:
        """Renew the lease if that is due; return the seconds until the next look. Raises as `renew`."""
        book = self._tier.book
        if book is None:
            return LOOK_S
        try:
            if book.ledger.fenced is not None:
                raise book.ledger.fenced
            if self._leadership.is_due:
                book.renew()
                self._is_failing = False
        except Fenced as fenced:
            self._tier.end_if_taken_over(fenced)
            self.stop()
        except StoreError as error:
            if not self._is_failing:
                log.warning("the lease cannot be renewed: %s. This is tried again until it succeeds", error)
            self._is_failing = True
        return min(LOOK_S, self._lease_s / _TRIES)

    def follow_standbys(self) -> None:
        """Have the ledger name the brokers that stand by, until the tier is stopped or the ledger is lost."""
        try:
            while True:
                self.look()
                # Once a lease is enough while nobody stands by: each look costs a request.
                leadership = self._leadership
                looks_often = self._tier.book is None or leadership.has_lease or leadership.has_replicas
                self._tier.wait(self._lease_s / (RENEWALS if looks_often else 1))
        except (Stopped, Fenced):
            return

    def look(self) -> None:
        """Look once who stands by. Raises Fenced."""
        book, store = self._tier.book, self._tier.objects
        if book is None or store is None:
            return
        try:
            gone = book.follow_standbys(read_registrations(store), self._tier.started())
            # A later start does not know for how long a standby was silent, and would name it again.
            store.delete(map(registration_name, gone))
        except (StoreError, OSError) as error:
            # Other threads log that the store fails.
            log.debug("who stands by cannot be read or noted: %s", error)
