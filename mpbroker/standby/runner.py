"""The process of `mpbroker serve --standby`: follows, answers clients by its face, and takes over.

It ends by becoming the broker that owns the ledger, or by a signal.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.remote import REMOTE_URL, SYSTEM_ENABLE
from mpbroker.ipc import titles
from mpbroker.ipc.mirror import Mirror as ToldMirror
from mpbroker.ipc.nodes import Node, Nodes
from mpbroker.ipc.process import FatalError
from mpbroker.remote.ledger.claim import CLAIM_FILE, Claim, ClaimFile, new_claim, settle
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.events import TakenOver
from mpbroker.remote.ledger.lease import StandbyWatch
from mpbroker.remote.ledger.owner import OWNER_FILE, OwnerDamaged
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.registrations import Registration, addresses_of, register
from mpbroker.remote.restore.files import finish
from mpbroker.remote.restore.mirror import Mirror
from mpbroker.remote.restore.plan import RestoreRefused, make_plan, time_text
from mpbroker.remote.restore.take_over import take_over_events
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store
from mpbroker.standby.directories import is_mirror, owner_in, set_aside
from mpbroker.standby.face import Face, command_of
from mpbroker.standby.follower import CannotFollow, Follower
from mpbroker.standby.take_over import ClaimLost, Renewing, finish_directories, write_owner_file
from mpbroker.storage.directory_lock import LogDirLocks, restricted_new_files
from mpbroker.storage.names import STANDBY_FACE
from mpbroker.supervisor import logs
from mpbroker.supervisor.claim import EXIT_MISCONFIGURED, check_object_store
from mpbroker.supervisor.notify import Notifier
from shm.clock import wall_ms

# The ledger is asked for its next entry this often in a lease, and at least once a second.
POLLS: Final = 10
LONGEST_POLL_S: Final = 1.0
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

log = logging.getLogger("mpbroker.standby")


class Stopped(BaseException):
    """Raised when a signal ends the standby."""


def run(config: BrokerConfig, words: Sequence[str], log_format: logs.LogFormat) -> int | None:
    """Be the standby of a ledger's owner. Return the exit status, None to become the owner's broker.

    `words` are those of the command line that starts a broker with this configuration.
    """
    logs.configure(logs.wanted_level(os.environ), log_format)
    titles.name_broker(config)
    titles.entitle("standby")
    try:
        with restricted_new_files():
            return Runner(config, words).run()
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
    """The main loop. Single-threaded, but for what downloads and what renews a lease."""

    def __init__(self, config: BrokerConfig, words: Sequence[str]) -> None:
        if not config.remote_log_storage_system_enable:
            raise FatalError(f"--standby needs {SYSTEM_ENABLE}=true and {REMOTE_URL}", EXIT_MISCONFIGURED)
        check_object_store(config)
        self.config = config
        self.log_dirs = [Path(name).absolute() for name in config.log_dirs]
        self._notifier = Notifier()
        self._lease_ms = config.mpbroker_remote_lease_ms
        # A ledger that does not answer must be noticed within a lease; what is downloaded may take longer.
        timeout_ms = config.mpbroker_remote_request_timeout_ms
        self._objects = _opened(config, timeout_ms)
        self._reader = LedgerReader(_opened(config, min(timeout_ms, self._lease_ms // 3)))
        self._face = Face(self.log_dirs[0] / STANDBY_FACE, command_of(words))
        self._claims = ClaimFile(self.log_dirs[0])
        self._addresses = addresses_of(config)
        self._registered_at_s = -float("inf")
        self._problem = ""
        self._stops = False
        self._wakeup = -1

    def run(self) -> None:
        """Follow until this broker owns the ledger. Raises Stopped, and what ends a standby."""
        self._install_signals()
        locks = LogDirLocks(self.config)
        try:
            self._read_ledger()
            while not self._owns():
                self._follow()
        finally:
            self._face.stop()
            for fd in locks.fds:
                os.close(fd)
        self._notifier.give_back()

    # ---- what the log directories are

    def _read_ledger(self) -> None:
        """Read the ledger to its end; wait for a store that does not answer."""
        self._until_answered(self._reader.read_to_end)
        leader = self._reader.state.leader
        if leader is None:
            raise FatalError(
                f"{REMOTE_URL}={self.config.mpbroker_remote_url} has no ledger: start the broker first that "
                "this one stands by for"
            )

    def _owns(self) -> bool:
        """Return whether this broker owns the ledger, and its directories are finished.

        Otherwise leave directories that may become a mirror. Raises FatalError for those of another broker.
        """
        claim = self._claims.read()
        owner = owner_in(self.log_dirs)
        last = self._reader.last
        assert last is not None
        if owner is not None and owner.nonce == last.owner:
            finish(self.log_dirs)
            self._claims.remove()
            return True
        if owner is not None and owner.generation < last.generation:
            for path in set_aside(self.log_dirs, owner.generation):
                log.warning(
                    "another broker has taken the ledger over: what this one had in generation %d is in %s "
                    "now, and is not used. Delete it when nobody misses anything",
                    owner.generation,
                    path,
                )
            owner = None
        if owner is not None or not is_mirror(self.log_dirs):
            raise FatalError(
                f"log.dirs: {', '.join(map(str, self.log_dirs))} have data of a broker that is not the owner "
                f"of the ledger in {self.config.mpbroker_remote_url}: name empty directories for a standby",
                EXIT_MISCONFIGURED,
            )
        if claim is not None:
            return self._claimed(claim)
        leader = self._leader
        if leader.broker_id == self.config.node_id:
            raise FatalError(
                f"node.id={self.config.node_id} is the id of the ledger's owner, on {leader.host}: a standby "
                "needs one of its own",
                EXIT_MISCONFIGURED,
            )
        return False

    # ---- following

    def _follow(self) -> None:
        """Follow until this broker has claimed the ledger, or a claim is settled otherwise."""
        self._face.directory.mkdir(0o750, exist_ok=True)
        follower = self._begin()
        told = False
        while True:
            asleep_s = self._poll(follower)
            if follower.is_up_to_date:
                if self._face_ready(follower) and not told:
                    told = True
                    self._announce(follower)
                self._register()
                if follower.may_claim() and self._claim(follower):
                    return
            self._wait(asleep_s)

    def _begin(self) -> Follower:
        mirror = Mirror(self._objects, self.log_dirs, self._seen, (CLAIM_FILE,))
        watch = StandbyWatch(self.config.node_id, self._lease_ms)
        return Follower(self._reader, self._objects, self.log_dirs, mirror, watch)

    @property
    def _leader(self):
        leader = self._reader.state.leader
        assert leader is not None
        return leader
