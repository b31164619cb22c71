"""Follows a ledger until it may be claimed: keeps a mirror, has the face answer clients, registers."""

from __future__ import annotations

import logging
import math
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.otlp import without_secrets
from mpbroker.ipc.mirror import MirrorPointer
from mpbroker.ipc.nodes import Node, Nodes
from mpbroker.ipc.standby_lag import write_lag
from mpbroker.remote.ledger.claim import ClaimFile, new_claim
from mpbroker.remote.ledger.events import StandbySet, Started, TakenOver
from mpbroker.remote.ledger.lease import RENEWALS, StandbyWatch
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.registrations import Registration, addresses_of, register
from mpbroker.remote.restore.mirror import Mirror
from mpbroker.remote.restore.plan import Plan, RestoreRefused, make_plan, time_text
from mpbroker.remote.restore.take_over import take_over_events
from mpbroker.remote.store.object_store import ObjectStore, StoreError
from mpbroker.standby.face import Face
from mpbroker.standby.follower import Follower
from mpbroker.standby.replica import Replica
from mpbroker.standby.waiting import Waiting
from mpbroker.storage.names import REMOTE_CLAIM
from shm.clock import wall_ms

# The ledger is asked for its next entry this often in a lease.
POLLS: Final = 10
LAG_EVERY_S: Final = 1.0
log = logging.getLogger("mpbroker.supervisor")


class Following:
    """Follows the ledger that `reader` has read. `objects` may take longer to answer than its store."""

    def __init__(
        self,
        config: BrokerConfig,
        reader: LedgerReader,
        objects: ObjectStore,
        face: Face,
        waiting: Waiting,
    ) -> None:
        self.reader = reader
        # What consumers read; None unless this standby is read-only.
        self.replica: Replica | None = None
        self.follower: Follower | None = None
        # The plan of this process's claim: the entry keeps the segments of this plan, and no others.
        self.plan: Plan | None = None
        self.claimed_at_s = time.monotonic()
        self._config = config
        self._log_dirs = [Path(name).absolute() for name in config.log_dirs]
        # A look-up of names may take long.
        self._addresses = addresses_of(config)
        self._lease_ms = config.mpbroker_remote_lease_ms
        self._objects = objects
        self._face = face
        self._waiting = waiting
        waiting.after_wait = self._tell_lag
        self._registered_at_s = self._lag_told_at_s = -math.inf

    @property
    def leader(self) -> Started | TakenOver:
        leader = self.reader.state.leader
        assert leader is not None, "the ledger has entries"
        return leader

    def read_anew(self) -> None:
        """Forget what was read of the ledger."""
        self.follower, self.reader = None, LedgerReader(self.reader.store)

    def forget_mirror(self) -> None:
        """Have a new follower compare all files, since they were changed beyond the mirror."""
        self.follower = self.plan = None

    def unregister(self) -> None:
        """Remove this standby's object. Otherwise clients are sent here until a lease is over."""
        if self._registered_at_s > -math.inf:
            with suppress(StoreError):
                self._objects.delete([self._registration().name])

    def run(self) -> None:
        """Follow the ledger until a claim of it is on disk."""
        self._face.directory.mkdir(0o750, exist_ok=True)
        follower = self.follower = self.follower or self.new_follower()
        has_begun = False
        while True:
            try:
                follower.poll()
                if not has_begun:
                    has_begun = self._begin(follower)
                pointer = MirrorPointer(follower.version, list(map(str, self._log_dirs)), follower.partitions)
                self._face.tell(self._nodes(), pointer)
                self._register()
                if self.replica is None and follower.may_claim() and self._claim(follower):
                    return
                self._waiting.settled()
            except (StoreError, OSError, RestoreRefused) as error:
                self._waiting.note(error)
            if has_begun:
                self._face.step()
            self._waiting.wait(self._lease_ms / POLLS / 1000)

    def new_follower(self) -> Follower:
        is_read = self.replica is not None
        mirror = Mirror(self._objects, self._log_dirs, self._waiting.seen, (REMOTE_CLAIM,), is_read=is_read)
        watch = StandbyWatch(self._config.node_id, self._lease_ms)
        return Follower(self.reader, self._objects, self._log_dirs, mirror, watch, replica=self.replica)

    def _begin(self, follower: Follower) -> bool:
        """Say that the mirror follows, and make ready to answer clients."""
        self._face.stop()
        self._face.prepare(self._config, self.leader.cluster_id)
        # The directory is new. From its start the face answers questions about the standby by this file.
        self._lag_told_at_s = -math.inf
        self._tell_lag()
        log.info(
            "broker %d %s broker %d on %s (%s), %s",
            self._config.node_id,
            "serves reads for" if self.replica is not None else "follows",
            self.leader.broker_id,
            self.leader.host,
            without_secrets(self._config.mpbroker_remote_url),
            self._as_of(follower),
        )
        if self.leader.acks != self._config.mpbroker_remote_acks:
            log.warning(
                "mpbroker.remote.acks=%s here, and %s on broker %d, which leads: each leads with its own",
                self._config.mpbroker_remote_acks,
                self.leader.acks,
                self.leader.broker_id,
            )
        self._waiting.notifier.ready(f"Following broker {self.leader.broker_id}")
        self._waiting.notifier.begin_watchdog()
        return True

    def _as_of(self, follower: Follower) -> str:
        if follower.cut is None:
            return "which has made no cut yet"
        return f"as of {time_text(follower.cut.taken_ms)} and entry {self.reader.seq}"

    def _nodes(self) -> Nodes:
        state, leader = self.reader.state, self.leader
        nodes = {
            one.broker_id: Node(one.broker_id, one.rack, one.listeners)
            for one in (leader, *state.standbys.values())
        }
        own = self._config.node_id
        nodes[own] = Node(own, self._rack, self._addresses, self.replica is not None)
        return Nodes(leader.broker_id, self.reader.generation, [nodes[one] for one in sorted(nodes)])

    @property
    def _rack(self) -> str:
        return self._config.broker_rack or ""

    def _register(self) -> None:
        """Write this standby's object once in a lease, so that the owner sees that it is there.

        The object of a replica is written more often: clients should not be sent to one that is gone.
        """
        every_ms = self._lease_ms // (RENEWALS if self.replica is not None else 1)
        if time.monotonic() >= self._registered_at_s + every_ms / 1000:
            register(self._objects, self._registration())
            self._registered_at_s = time.monotonic()

    def _registration(self) -> Registration:
        return Registration(
            *(self._config.node_id, socket.gethostname(), self._rack, self._addresses),
            *(wall_ms(), time.time_ns(), self.replica is not None),
            *(self.follower.readable_of if self.follower is not None else (0, 0)),
        )

    def _claim(self, follower: Follower) -> bool:
        """Write a claim to disk, if the ledger has nothing new; return whether it did so.

        Raises StoreError, OSError.
        """
        self.claimed_at_s = time.monotonic()
        if follower.look_for_more():
            return False
        plan = self.plan = make_plan(self._objects, ledger=self.reader)
        leader = self.leader
        if self.reader.state.is_released:
            log.info("broker %d on %s has stopped, and handed over", leader.broker_id, leader.host)
        else:
            log.warning(
                "the lease of broker %d on %s has run out: it has written nothing after entry %d",
                leader.broker_id,
                leader.host,
                self.reader.seq,
            )
        taken = TakenOver(
            self.leader.cluster_id,
            self._config.node_id,
            socket.gethostname(),
            plan.cut.cut_id,
            by_standby=True,
            listeners=self._addresses,
            lease_ms=self._lease_ms,
            acks=self._config.mpbroker_remote_acks,
        )
        # If this broker dies before its first start, nobody else would name the former owner.
        former = StandbySet(leader.broker_id, leader.host, leader.rack, leader.listeners)
        ClaimFile(self._log_dirs[0]).write(new_claim(plan.ledger, [*take_over_events(plan, taken), former]))
        return True

    def _tell_lag(self) -> None:
        """Have the face's metrics say once a second how far the mirror is behind."""
        if self.follower is not None and (now_s := time.monotonic()) >= self._lag_told_at_s + LAG_EVERY_S:
            self._lag_told_at_s = now_s
            # On a full disk the age of what was told before grows.
            with suppress(OSError):
                url = without_secrets(self._config.mpbroker_remote_url)
                write_lag(self._face.directory, structs.replace(self.follower.lag, url=url))
