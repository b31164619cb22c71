"""A standby: follows the ledger (`following`) and takes it over. It ends when it owns the ledger.

One that is read-only lets consumers read instead, and never takes over (`replica`).
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.otlp import without_secrets
from mpbroker.config.remote import REMOTE_URL, SYSTEM_ENABLE
from mpbroker.ipc import titles
from mpbroker.ipc.process import FatalError
from mpbroker.remote.ledger.claim import Claim, ClaimFile, settle
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.events import Started, TakenOver
from mpbroker.remote.ledger.lease import RENEWALS
from mpbroker.remote.ledger.owner import Owner, OwnerDamaged, read_owner
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.restore.files import finish
from mpbroker.remote.restore.plan import RestoreRefused, make_plan, time_text
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store
from mpbroker.standby.directories import become_mirror, has_handed_over, is_mirror, set_aside
from mpbroker.standby.face import Face, command_of
from mpbroker.standby.follower import CannotFollow
from mpbroker.standby.following import Following
from mpbroker.standby.replica import Replica
from mpbroker.standby.take_over import ClaimLost, Renewing, finish_directories, write_owner_file
from mpbroker.standby.waiting import Stopped, Waiting
from mpbroker.storage.directory_lock import LogDirLocks, restricted_new_files
from mpbroker.storage.names import STANDBY_FACE
from mpbroker.supervisor import logs
from mpbroker.supervisor.claim import EXIT_MISCONFIGURED, check_object_store
from mpbroker.supervisor.notify import Notifier

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

log = logging.getLogger("mpbroker.supervisor")


def follow(
    config: BrokerConfig, words: Sequence[str], notifier: Notifier, *, read_only: bool = False
) -> int | None:
    """Be the standby of a ledger's owner. Return the exit status, None if this broker owns it now.

    `words` are those of the command line that starts a broker with this configuration.
    """
    logs.set_process_name("standby")
    titles.entitle("standby")
    try:
        with restricted_new_files():
            runner = Runner(config, words, notifier, read_only=read_only)
            runner.waiting.install_signals()
            runner.run()
            return None
    except Stopped:
        log.info("stopped")
        return EXIT_OK
    except FatalError as error:
        log.error("%s", error)
        return error.status
    except (CannotFollow, LedgerDamaged, OwnerDamaged, RestoreRefused) as error:
        log.error("%s", error)
    except OSError as error:
        log.error("the standby cannot go on: %s", error)
    return EXIT_FAILED


class Runner:
    """The main loop. One thread, but for those that download and the one that renews a lease."""

    def __init__(
        self, config: BrokerConfig, words: Sequence[str], notifier: Notifier, *, read_only: bool = False
    ) -> None:
        if not config.remote_log_storage_system_enable:
            raise FatalError(f"--standby needs {SYSTEM_ENABLE}=true and {REMOTE_URL}", EXIT_MISCONFIGURED)
        check_object_store(config)
        if any(one.port == 0 and not one.path for one in config.listeners):
            raise FatalError(
                "a standby needs listeners with ports: clients know it before and after it takes over",
                EXIT_MISCONFIGURED,
            )
        self.config = config
        self.log_dirs = [Path(name).absolute() for name in config.log_dirs]
        self.waiting = Waiting(notifier, self.log_dirs)
        self._claims = ClaimFile(self.log_dirs[0])
        self._face = Face(self.log_dirs[0] / STANDBY_FACE, command_of(words))
        self._is_read_only = read_only
        # A ledger that does not answer has to be noticed within a lease; downloads may take longer.
        timeout_ms = config.mpbroker_remote_request_timeout_ms
        self._lease_ms = config.mpbroker_remote_lease_ms
        self._objects = _opened(config, timeout_ms)
        reader = LedgerReader(_opened(config, max(1, min(timeout_ms, self._lease_ms // RENEWALS))))
        self._following = Following(config, reader, self._objects, self._face, self.waiting)
        self._since_cut = ": what was acknowledged later is lost"

    def run(self) -> None:
        """Follow until this broker owns the ledger. Raises Stopped, and what ends a standby."""
        locks = LogDirLocks(self.config)
        # This removes what a former replica has left.
        replica, following = Replica(self.log_dirs), self._following
        following.replica = replica if self._is_read_only else None
        try:
            self.waiting.until_answered(self._read_ledger)
            while not self._owns():
                try:
                    following.run()
                except LedgerDamaged as error:
                    # Where entries were trimmed, a late request may have left one: that is no damage.
                    log.warning("the ledger is read anew: %s", error)
                    following.read_anew()
                    self.waiting.until_answered(self._read_ledger)
        finally:
            self._face.stop()
            if self._is_read_only:
                replica.clear()
                following.unregister()
            for fd in locks.fds:
                os.close(fd)
        shutil.rmtree(self._face.directory, ignore_errors=True)

    def _read_ledger(self) -> None:
        """Read the ledger to its end. Raises StoreError, also for one that has not begun."""
        self._reader.read_to_end()
        if self._reader.last is None:
            url = without_secrets(self.config.mpbroker_remote_url)
            raise StoreError(f"{url} has no ledger yet: start the broker that is to lead")

    def _owns(self) -> bool:
        """Return whether this broker owns the ledger, and its directories are finished.

        If not, leave directories that may be made a mirror. Raises FatalError for those of another broker.
        """
        assert self._reader.last is not None, "the ledger has entries"
        owner, claim = read_owner(self.log_dirs[0]), self._claims.read()
        is_owner = owner is not None and owner.nonce == self._reader.last.owner
        if self._is_read_only and (is_owner or claim is not None):
            raise FatalError(
                f"log.dirs={','.join(self.config.log_dirs)} has the data of the broker that leads, or is "
                "about to: start it without --read-only, or name other directories",
                EXIT_MISCONFIGURED,
            )
        if is_owner:
            self._claims.remove()
            finish(self.log_dirs)
            return True
        if owner is not None and owner.generation < self._reader.generation:
            self._leave(owner)
        elif owner is not None or not is_mirror(self.log_dirs):
            raise FatalError(
                f"log.dirs={','.join(self.config.log_dirs)} has data of another broker than the owner of the "
                f"ledger in {without_secrets(self.config.mpbroker_remote_url)}: name empty directories",
                EXIT_MISCONFIGURED,
            )
        if claim is not None and self._wins(claim):
            return True
        if self._leader.broker_id == self.config.node_id:
            raise FatalError(
                f"node.id={self.config.node_id} is that of the ledger's owner, which runs on "
                f"{self._leader.host}: give the standby one of its own",
                EXIT_MISCONFIGURED,
            )
        return False

    def _leave(self, owner: Owner) -> None:
        """Make room for a mirror in the directories of a former owner."""
        if self.waiting.until_answered(lambda: has_handed_over(self._objects, owner)):
            self.waiting.until_answered(lambda: become_mirror(self.log_dirs))
            return
        for path in self.waiting.until_answered(lambda: set_aside(self.log_dirs, owner)):
            log.warning(
                "broker %d on %s has taken over: what this broker had is in %s now, and nobody reads it; "
                "delete it when it is not missed",
                self._leader.broker_id,
                self._leader.host,
                path,
            )

    def _wins(self, claim: Claim) -> bool:
        """Have the ledger decide about a claim; return whether this broker owns it.

        If so, the directories are finished.
        """
        before = self._leader
        if self._reader.state.is_released:
            self._since_cut = ", its last one"
        elif before.acks == "ledger":
            self._since_cut = ", and all that was acknowledged since"
        if self.waiting.until_answered(lambda: settle(self._reader, claim)):
            self.waiting.what = "the take-over"
            self._face.ask_to_stop()
            lease_ms = min(self._lease_ms, before.lease_ms or self._lease_ms)
            with Renewing(LedgerReader(self._reader.store), claim, lease_ms) as renewing, suppress(ClaimLost):
                self.waiting.until_answered(lambda: self._finish(renewing.check))
            if self.waiting.until_answered(lambda: self._become_owner(claim)):
                return True
            self.waiting.what = "this standby"
        log.warning(
            "entry %d of the ledger is broker %d's on %s, who leads: this broker's claim is lost",
            claim.seq,
            self._leader.broker_id,
            self._leader.host,
        )
        self._claims.remove()
        self._following.forget_mirror()
        return False

    def _become_owner(self, claim: Claim) -> bool:
        """Name the directories this broker's, if the ledger is. Raises StoreError, OSError."""
        self._reader.read_to_end()
        assert self._reader.last is not None, "the ledger has entries"
        if self._reader.last.owner != claim.writer.owner:
            return False
        write_owner_file(self._reader, claim, self.log_dirs[0])
        finish(self.log_dirs)
        return True

    def _finish(self, check: Callable[[], None]) -> None:
        """Make the directories the owner's, but for their names. After an error call it again."""
        following = self._following
        # Changes below go beyond the mirror: after an error a new follower compares all files.
        follower, following.follower = following.follower or following.new_follower(), None
        plan, following.plan = following.plan or make_plan(self._objects, ledger=self._reader), None
        plan = follower.complete(plan)
        check()
        finish_directories(plan, self.log_dirs, self.config.node_id, check)
        log.info(
            "broker %d leads as generation %d, %.1f s after its claim: as of the cut of %s%s",
            self.config.node_id,
            self._reader.generation,
            time.monotonic() - self._following.claimed_at_s,
            time_text(plan.cut.taken_ms),
            self._since_cut,
        )

    @property
    def _reader(self) -> LedgerReader:
        return self._following.reader

    @property
    def _leader(self) -> Started | TakenOver:
        return self._following.leader


def _opened(config: BrokerConfig, timeout_ms: int) -> ObjectStore:
    """Open the object store. Raises FatalError."""
    try:
        return open_store(config.mpbroker_remote_url, timeout_ms)
    except StoreRefused as error:
        raise FatalError(str(error)) from error
