"""Hands over at the end of a clean stop: makes a last cut, then writes `Released` into the ledger.

So a standby does not wait for the lease to run out, and a restore brings back all records. With a standby the
hand-over is tried for HAND_OVER_S; without one it is tried once, for ALONE_S at most.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from mpbroker.ipc.process import HAND_OVER_S
from mpbroker.remote.cuts.instant import CutSkipped
from mpbroker.remote.ledger.events import Released
from mpbroker.remote.ledger.ledger import Fenced
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.tier.cutting import Cutting
from mpbroker.remote.tier.renewing import Renewing
from mpbroker.remote.tier.tier_store import TierStore

# The longest time that it takes without a standby.
ALONE_S: Final = 10.0
_RETRY_S: Final = 1.0
log = logging.getLogger("mpbroker.remote")


class HandOver:
    """The work of a thread, which may take `limit_s`. All processes but tier and exporter have ended.

    `cuts` is the thread that makes cuts, which was told to stop.
    """

    def __init__(self, tier: TierStore, cutting: Cutting, renewing: Renewing, cuts: threading.Thread) -> None:
        self._tier = tier
        self._cutting = cutting
        self._renewing = renewing
        self._cuts = cuts
        self._is_cut = False
        self.limit_s = HAND_OVER_S if renewing.has_lease else ALONE_S

    def run(self) -> None:
        """Hand over, or log why not."""
        until = time.monotonic() + self.limit_s
        self._cuts.join()
        while not self._is_done(is_last=not self._renewing.has_lease or time.monotonic() + _RETRY_S > until):
            time.sleep(_RETRY_S)

    def _is_done(self, *, is_last: bool) -> bool:
        try:
            self._hand_over()
        except (StoreError, CutSkipped, OSError) as error:
            if is_last:
                self.give_up(str(error))
            return is_last
        except Fenced as error:
            self.give_up(str(error))
        return True

    def _hand_over(self) -> None:
        began, book, store = time.monotonic(), self._tier.book, self._tier.objects
        assert book is not None
        assert store is not None
        if not self._is_cut:
            self._cutting.last(book, store)
            self._is_cut = True
            if self._renewing.has_lease:
                self._renewing.stop()
                book.add([Released()])
        book.commit()
        took_ms = (time.monotonic() - began) * 1000
        who = "; a standby may take over at once" if self._renewing.has_lease else ""
        log.info("the object store has all that this broker had, after %.0f ms%s", took_ms, who)

    def give_up(self, why: str) -> None:
        """Log that the store may lack the last changes."""
        log.warning(
            "the last cut of this stop was given up: %s. What was written since the newest cut is on this "
            "disk alone: start this broker again before a standby takes over or a restore is made",
            why,
        )
