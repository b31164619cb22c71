"""Makes a mirror the log directories of the ledger's owner.

The ledger has the claim already. Everything here begins with the cut anew, and is durable before the owner's
file says so: killed anywhere, a next start finds the claim or that file, and goes on. Then meta.properties
gets its name, and a broker may start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from mpbroker.remote.ledger.claim import Claim, ClaimFile
from mpbroker.remote.ledger.entries import LedgerDamaged, decode_header, encode_entry, entry_name
from mpbroker.remote.ledger.lease import RENEWALS
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.restore.files import begin_epochs, set_property, write_remote_files
from mpbroker.remote.restore.plan import Plan
from mpbroker.remote.restore.producer_ids import jump_ahead
from mpbroker.remote.restore.take_over import TakenLedger, write_owner
from mpbroker.remote.store.object_store import StoreError
from shm.clock import wall_ms

log = logging.getLogger("mpbroker.supervisor")


class ClaimLost(Exception):
    """Raised when another broker has taken the ledger over meanwhile."""


class Renewing:
    """Renews the lease of a new owner, by a thread, while its directories are finished."""

    def __init__(self, reader: LedgerReader, claim: Claim, lease_ms: int) -> None:
        self._reader = reader
        self._claim = claim
        self._every_s = lease_ms / RENEWALS / 1000
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="renewals", daemon=True)
        self.is_lost = False

    def __enter__(self) -> Renewing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def check(self) -> None:
        """Raise ClaimLost if another broker owns the ledger."""
        if self.is_lost:
            raise ClaimLost

    def _run(self) -> None:
        while not (self.is_lost or self._ends.wait(self._every_s)):
            try:
                self.is_lost = not renew(self._reader, self._claim)
            except StoreError as error:
                log.debug("the ledger cannot be renewed now: %s", error)
            except LedgerDamaged as error:
                # Who finishes the directories reads the ledger again, and says what is wrong with it.
                log.warning("the lease is not renewed: %s", error)
                self.is_lost = True


def renew(reader: LedgerReader, claim: Claim) -> bool:
    """Write an entry without events; return whether the claim's owner still owns the ledger.

    An entry that an earlier try has left there will do: it has no events either. Raises StoreError,
    LedgerDamaged.
    """
    reader.read_to_end()
    if reader.last is None or reader.last.owner != claim.writer.owner:
        return False
    seq = reader.seq + 1
    body = encode_entry(claim.writer, seq, reader.digest, wall_ms(), [])
    if reader.store.create(entry_name(seq), body):
        reader.follow(seq, body)
        return True
    found = reader.store.get(entry_name(seq))
    return decode_header(seq, found).owner == claim.writer.owner


def finish_directories(plan: Plan, log_dirs: Sequence[Path], node_id: int, check: Callable[[], None]) -> None:
    """Make a mirror of the plan's cut, and of what was shipped after it, a broker's directories.

    All but the owner's file and the name of meta.properties is durable then. `check()` raises to give up.
    Raises OSError.
    """
    ahead = plan.ledger.generation - plan.generation
    write_remote_files(plan, log_dirs)
    check()
    begin_epochs(plan, log_dirs)
    check()
    jump_ahead(plan.manifest.directories, log_dirs, ahead)
    set_property(log_dirs, "node.id", str(node_id))
    check()


def write_owner_file(reader: LedgerReader, claim: Claim, directory: Path) -> None:
    """Write the owner's file into the first log directory, then remove the claim. Raises OSError."""
    assert reader.last is not None
    # A renewal may come in late: so its number counts as tried.
    write_owner(directory, TakenLedger(claim.writer, reader.seq + 1), reader.state.standbys)
    ClaimFile(directory).remove()
