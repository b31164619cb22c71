"""A standby: follows, has its face answer clients, and takes over. It ends when it owns the ledger.

One that is read-only lets consumers read instead, and never takes over (`replica`).
"""

from __future__ import annotations

import logging
import math
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.otlp import without_secrets
from mpbroker.config.remote import REMOTE_URL, SYSTEM_ENABLE
from mpbroker.ipc import titles
from mpbroker.ipc.disk_problems import mebibytes
from mpbroker.ipc.mirror import MirrorPointer
from mpbroker.ipc.nodes import Node, Nodes
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.standby_lag import write_lag
from mpbroker.remote.ledger.claim import Claim, ClaimFile, new_claim, settle
from mpbroker.remote.ledger.entries import LedgerDamaged
from mpbroker.remote.ledger.events import Started, TakenOver
from mpbroker.remote.ledger.lease import RENEWALS, StandbyWatch
from mpbroker.remote.ledger.owner import Owner, OwnerDamaged, read_owner
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.registrations import Registration, addresses_of, register
from mpbroker.remote.restore.files import finish
from mpbroker.remote.restore.mirror import Mirror
from mpbroker.remote.restore.plan import Plan, RestoreRefused, make_plan, time_text
from mpbroker.remote.restore.take_over import take_over_events
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.remote.store.opening import StoreRefused, open_store
from mpbroker.standby.directories import become_mirror, has_handed_over, is_mirror, set_aside
from mpbroker.standby.face import Face, command_of
from mpbroker.standby.follower import CannotFollow, Follower
from mpbroker.standby.replica import Replica
from mpbroker.standby.take_over import ClaimLost, Renewing, finish_directories, write_owner_file
from mpbroker.storage.directory_lock import LogDirLocks, restricted_new_files
from mpbroker.storage.disk_errors import NO_ROOM
from mpbroker.storage.names import FENCED, REMOTE_CLAIM, STANDBY_FACE
from mpbroker.supervisor import logs
from mpbroker.supervisor.claim import EXIT_MISCONFIGURED, check_object_store
from mpbroker.supervisor.notify import Notifier
from shm.clock import wall_ms

T = TypeVar("T")

# The ledger is asked for its next entry this often in a lease, and at least once a second.
POLLS: Final = 10
LONGEST_POLL_S: Final = 1.0
NOTE_EVERY_S: Final = 60.0
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

log = logging.getLogger("mpbroker.supervisor")


class Stopped(BaseException):
    """Raised when a signal ends the standby."""


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
            runner.install_signals()
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
        # A look-up of names may take long.
        self._addresses = addresses_of(config)
        self.log_dirs = [Path(name).absolute() for name in config.log_dirs]
        self._lease_ms = config.mpbroker_remote_lease_ms
        # A ledger that does not answer has to be noticed within a lease; downloads may take longer.
        timeout_ms = config.mpbroker_remote_request_timeout_ms
        self._objects = _opened(config, timeout_ms)
        self._reader = LedgerReader(_opened(config, max(1, min(timeout_ms, self._lease_ms // RENEWALS))))
        self._claims = ClaimFile(self.log_dirs[0])
        self._face = Face(self.log_dirs[0] / STANDBY_FACE, command_of(words))
        self._follower: Follower | None = None
        # The plan of this process's claim: the entry keeps the segments of this plan, and no others.
        self._plan: Plan | None = None
        self._notifier = notifier
        self._is_read_only = read_only
        # What consumers read; None unless this standby is read-only.
        self._replica: Replica | None = None
        self._registered_at_s = self._lag_told_at_s = -math.inf
        self._claimed_at_s = time.monotonic()
        self._since_cut = ": what was acknowledged later is lost"
        # Who waits, what for, and when that was logged.
        self._what, self._problem, self._noted_at_s = "this standby", "", -math.inf
        self._stops = False
        self._signals = select.poll()

    def run(self) -> None:
        """Follow until this broker owns the ledger. Raises Stopped, and what ends a standby."""
        locks = LogDirLocks(self.config)
        # This removes what a former replica has left.
        replica = Replica(self.log_dirs)
        self._replica = replica if self._is_read_only else None
        try:
            self._until_answered(self._read_ledger)
            while not self._owns():
                try:
                    self._follow()
                except LedgerDamaged as error:
                    # Where entries were trimmed, a late request may have left one: that is no damage.
                    log.warning("the ledger is read anew: %s", error)
                    self._follower, self._reader = None, LedgerReader(self._reader.store)
                    self._until_answered(self._read_ledger)
        finally:
            self._face.stop()
            if self._replica is not None:
                replica.clear()
                if self._registered_at_s > -math.inf:
                    # Otherwise clients are sent here until a lease is over.
                    with suppress(StoreError):
                        self._objects.delete([self._registration().name])
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
        if self._replica is not None and (is_owner or claim is not None):
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
        if self._until_answered(lambda: has_handed_over(self._objects, owner)):
            self._until_answered(lambda: become_mirror(self.log_dirs))
            return
        for path in self._until_answered(lambda: set_aside(self.log_dirs, owner)):
            log.warning(
                "broker %d on %s has taken over: what this broker had is in %s now, and nobody reads it; "
                "delete it when it is not missed",
                self._leader.broker_id,
                self._leader.host,
                path,
            )

    # ---- following

    def _follow(self) -> None:
        """Follow the ledger until a claim of it is on disk."""
        self._face.directory.mkdir(0o750, exist_ok=True)
        follower = self._follower = self._follower or self._new_follower()
        has_begun = False
        while True:
            try:
                follower.poll()
                if not has_begun:
                    has_begun = self._begin(follower)
                pointer = MirrorPointer(follower.version, list(map(str, self.log_dirs)), follower.partitions)
                self._face.tell(self._nodes(), pointer)
                self._register()
                if self._replica is None and follower.may_claim() and self._claim(follower):
                    return
                self._settled()
            except (StoreError, OSError, RestoreRefused) as error:
                self._note(error)
            if has_begun:
                self._face.step()
            self._wait(min(self._lease_ms / POLLS / 1000, LONGEST_POLL_S))

    def _new_follower(self) -> Follower:
        is_read = self._replica is not None
        mirror = Mirror(self._objects, self.log_dirs, self._seen, (REMOTE_CLAIM,), is_read=is_read)
        watch = StandbyWatch(self.config.node_id, self._lease_ms)
        return Follower(self._reader, self._objects, self.log_dirs, mirror, watch, replica=self._replica)

    def _begin(self, follower: Follower) -> bool:
        """Say that the mirror follows, and make ready to answer clients."""
        self._face.stop()
        self._face.prepare(self.config, self._cluster_id())
        # The directory is new. From its start the face answers questions about the standby by this file.
        self._lag_told_at_s = -math.inf
        self._tell_lag()
        log.info(
            "broker %d %s broker %d on %s (%s), %s",
            self.config.node_id,
            "serves reads for" if self._is_read_only else "follows",
            self._leader.broker_id,
            self._leader.host,
            without_secrets(self.config.mpbroker_remote_url),
            self._as_of(follower),
        )
        if self._leader.acks != self.config.mpbroker_remote_acks:
            log.warning(
                "mpbroker.remote.acks=%s here, and %s on broker %d, which leads: each leads with its own",
                self.config.mpbroker_remote_acks,
                self._leader.acks,
                self._leader.broker_id,
            )
        self._notifier.ready(f"Following broker {self._leader.broker_id}")
        self._notifier.begin_watchdog()
        return True

    def _as_of(self, follower: Follower) -> str:
        if follower.cut is None:
            return "which has made no cut yet"
        return f"as of {time_text(follower.cut.taken_ms)} and entry {self._reader.seq}"

    def _nodes(self) -> Nodes:
        state, leader = self._reader.state, self._leader
        nodes = {
            one.broker_id: Node(one.broker_id, one.rack, one.listeners)
            for one in (leader, *state.standbys.values())
        }
        own = self.config.node_id
        nodes[own] = Node(own, self._rack, self._addresses, self._is_read_only)
        return Nodes(leader.broker_id, self._reader.generation, [nodes[one] for one in sorted(nodes)])

    @property
    def _rack(self) -> str:
        return self.config.broker_rack or ""

    def _register(self) -> None:
        """Write this standby's object once in a lease, so that the owner sees that it is there.

        The object of a replica is written more often: clients should not be sent to one that is gone.
        """
        every_ms = self._lease_ms // (RENEWALS if self._is_read_only else 1)
        if time.monotonic() >= self._registered_at_s + every_ms / 1000:
            register(self._objects, self._registration())
            self._registered_at_s = time.monotonic()

    def _registration(self) -> Registration:
        return Registration(
            *(self.config.node_id, socket.gethostname(), self._rack, self._addresses),
            *(wall_ms(), time.time_ns(), self._is_read_only),
            *(self._follower.readable_of if self._follower is not None else (0, 0)),
        )

    def _claim(self, follower: Follower) -> bool:
        """Write a claim to disk, if the ledger has nothing new; return whether it did so.

        Raises StoreError, OSError.
        """
        self._claimed_at_s = time.monotonic()
        if follower.look_for_more():
            return False
        plan = self._plan = make_plan(self._objects, ledger=self._reader)
        leader = self._leader
        if self._reader.state.is_released:
            log.info("broker %d on %s has stopped, and handed over", leader.broker_id, leader.host)
        else:
            log.warning(
                "the lease of broker %d on %s has run out: it has written nothing after entry %d",
                leader.broker_id,
                leader.host,
                self._reader.seq,
            )
        taken = TakenOver(
            self._cluster_id(),
            self.config.node_id,
            socket.gethostname(),
            plan.cut.cut_id,
            by_standby=True,
            listeners=self._addresses,
            lease_ms=self._lease_ms,
            acks=self.config.mpbroker_remote_acks,
        )
        self._claims.write(new_claim(plan.ledger, take_over_events(plan, taken)))
        return True

    # ---- taking over

    def _wins(self, claim: Claim) -> bool:
        """Have the ledger decide about a claim; return whether this broker owns it.

        If so, the directories are finished.
        """
        before = self._leader
        if self._reader.state.is_released:
            self._since_cut = ", its last one"
        elif before.acks == "ledger":
            self._since_cut = ", and all that was acknowledged since"
        if self._until_answered(lambda: settle(self._reader, claim)):
            self._what = "the take-over"
            self._face.ask_to_stop()
            lease_ms = min(self._lease_ms, before.lease_ms or self._lease_ms)
            with Renewing(LedgerReader(self._reader.store), claim, lease_ms) as renewing, suppress(ClaimLost):
                self._until_answered(lambda: self._finish(renewing.check))
            if self._until_answered(lambda: self._become_owner(claim)):
                return True
            self._what = "this standby"
        log.warning(
            "entry %d of the ledger is broker %d's on %s, who leads: this broker's claim is lost",
            claim.seq,
            self._leader.broker_id,
            self._leader.host,
        )
        self._claims.remove()
        self._follower = self._plan = None
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
        # Changes below go beyond the mirror: after an error a new follower compares all files.
        follower, self._follower = self._follower or self._new_follower(), None
        plan, self._plan = self._plan or make_plan(self._objects, ledger=self._reader), None
        plan = follower.complete(plan)
        check()
        finish_directories(plan, self.log_dirs, self.config.node_id, check)
        log.info(
            "broker %d leads as generation %d, %.1f s after its claim: as of the cut of %s%s",
            self.config.node_id,
            self._reader.generation,
            time.monotonic() - self._claimed_at_s,
            time_text(plan.cut.taken_ms),
            self._since_cut,
        )

    # ---- the ledger, the clock and signals

    @property
    def _leader(self) -> Started | TakenOver:
        leader = self._reader.state.leader
        assert leader is not None, "the ledger has entries"
        return leader

    def _cluster_id(self) -> str:
        return self._leader.cluster_id

    def _until_answered(self, do: Callable[[], T]) -> T:
        """Do something that needs the store, until it is done. Raises what is no matter of time."""
        while True:
            try:
                done = do()
            except (StoreError, OSError) as error:
                self._note(error)
                self._wait(LONGEST_POLL_S)
            else:
                self._settled()
                return done

    def _note(self, error: Exception) -> None:
        """Log a problem that may pass: a new one at once, the same one after a minute."""
        now_s, number = time.monotonic(), getattr(error, "errno", None)
        if str(error) == self._problem and now_s < self._noted_at_s + NOTE_EVERY_S:
            return
        self._problem, self._noted_at_s = str(error), now_s
        advice = ""
        if number in NO_ROOM:
            free = ", ".join(f"{one} {mebibytes(shutil.disk_usage(one).free)}" for one in self.log_dirs)
            advice = f". Make room (free: {free}); what is in {FENCED} may be deleted when it is not missed"
        log.warning("%s waits: %s%s", self._what, error, advice)
        self._notifier.status(f"{self._what} waits: {error}")

    def _settled(self) -> None:
        if self._problem:
            self._problem = ""
            log.info("%s goes on", self._what)
            self._notifier.status(f"{self._what} goes on")

    def _seen(self, count: int) -> None:
        """Tell systemd that this process lives, in what takes long. Raises Stopped if a signal has come."""
        if self._stops:
            raise Stopped
        if not count:
            self._tell_lag()
        self._notifier.extend()
        if self._notifier.is_ping_due():
            self._notifier.ping()

    def _tell_lag(self) -> None:
        """Have the face's metrics say once a second how far the mirror is behind."""
        if self._follower is not None and (now_s := time.monotonic()) >= self._lag_told_at_s + LONGEST_POLL_S:
            self._lag_told_at_s = now_s
            # On a full disk the age of what was told before grows.
            with suppress(OSError):
                url = without_secrets(self.config.mpbroker_remote_url)
                write_lag(self._face.directory, structs.replace(self._follower.lag, url=url))

    def _wait(self, timeout_s: float) -> None:
        """Wait, or raise Stopped once a signal has come."""
        if not self._stops:
            self._signals.poll(timeout_s * 1000)
        self._seen(0)

    def install_signals(self) -> None:
        """Have SIGTERM and SIGINT wake up `_wait`, which raises Stopped then."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer)
        self._signals.register(reader, select.POLLIN)

        def stop(*_: object) -> None:
            self._stops = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)


def _opened(config: BrokerConfig, timeout_ms: int) -> ObjectStore:
    """Open the object store. Raises FatalError."""
    try:
        return open_store(config.mpbroker_remote_url, timeout_ms)
    except StoreRefused as error:
        raise FatalError(str(error)) from error
