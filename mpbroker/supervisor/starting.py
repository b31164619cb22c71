"""Starts the process tree, in the order in which roles need each other, and logs the start."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from functools import partial

from mpbroker.config.listeners import page_url
from mpbroker.config.protocols import uses_tls
from mpbroker.ipc import topology
from mpbroker.ipc.counters import Counter
from mpbroker.ipc.leading import NEVER
from mpbroker.ipc.mirror import follows
from mpbroker.log import process as log_process
from mpbroker.log.append.turn_partitions import give_back_memory
from mpbroker.migration.snapshot_files import forget_exports
from mpbroker.security import library
from mpbroker.storage.directory_lock import open_modes
from mpbroker.supervisor import progress, roles
from mpbroker.supervisor.changing import Changing, new_handler, warn_of_audit_log
from mpbroker.supervisor.child import Child
from mpbroker.supervisor.claim import Claim
from mpbroker.supervisor.notify import Notifier
from mpbroker.supervisor.pointers import report_unclean_end
from mpbroker.supervisor.status import up_s
from mpbroker.supervisor.tree import BrokerStops, Tree

EXIT_OK = 0
EXIT_FAILED = 1

log = logging.getLogger("mpbroker.supervisor")


class Starting:
    """Starts the processes of a broker. `claim` has its resources; `stops` returns whether to stop."""

    def __init__(
        self, claim: Claim, tree: Tree, changing: Changing, notifier: Notifier, stops: Callable[[], bool]
    ) -> None:
        self._claim = claim
        self._tree = tree
        self._changing = changing
        self._notifier = notifier
        self._stops = stops
        self._progress = progress.Reporter(tree.config, tree.memory)
        self._status = ""

    def run(self) -> None:
        """Start all roles. Acceptors start last, so that ports refuse clients until all other roles serve.

        The control plane starts before the data plane. Raises BrokerStops, FatalError, OSError.
        """
        report_unclean_end(self._tree.config)
        # Recovery may take long, and tools that show its progress must find this process.
        self._claim.pointers.write()
        self._tree.on_wait = self._wait
        try:
            self._start_roles()
        finally:
            self._progress.end()
        self._announce()

    def _wait(self) -> None:
        """Raise BrokerStops if a stop was requested. Report progress; request more time from systemd."""
        if self._stops():
            raise BrokerStops(EXIT_OK, "stopped while starting; the next start repeats the recovery")
        self._progress.poll()
        self._notifier.extend()
        if (text := self._progress.text) != self._status:
            self._status = text
            self._notifier.status(text)

    def _start_roles(self) -> None:
        tree, claim = self._tree, self._claim
        first, *others = [
            Child(topology.log_worker(number), log_process.run, tuple(claim.locks))
            for number in range(tree.config.log_workers)
        ]
        # The first log worker cleans up after the last run; the others wait for that by themselves.
        has_exporter = bool(claim.http or claim.otlp)
        roles.prepare(has_exporter=has_exporter, has_tier=tree.config.remote_log_storage_system_enable)
        gc.freeze()
        give_back_memory()
        tree.launch(first)
        if has_exporter:
            # Before all others: it reports the progress of a recovery.
            exporter = partial(
                roles.exporter,
                fd=claim.http_fd,
                otlp=claim.otlp,
                cluster_id=claim.identity.cluster_id,
                began_ns=time.time_ns(),
            )
            fds = (claim.http_fd,) if claim.http else ()
            tree.launch(Child(topology.EXPORTER, exporter, fds, lambda: claim.http))
        tree.await_serving(first)
        for child in others:
            tree.launch(child)
        for child in others:
            tree.await_serving(child)
        if tree.config.ships_rounds:
            self._await_first_cut()
        elif tree.config.remote_log_storage_system_enable and tree.memory.leading().until_ns == NEVER:
            # It renews the lease while partitions are opened, or another standby would take over meanwhile.
            self._launch_tier()
        self._notifier.status("Log recovered; starting")
        coordinator = partial(roles.coordinator, cluster_id=claim.identity.cluster_id)
        tree.start(Child(topology.COORDINATOR, coordinator))
        # Only now: the coordinator has read the metadata to the last record, and has added none.
        forget_exports(tree.config.log_dirs)
        self._changing.begin_as_altered()
        self._start_workers()
        # A collection would cost more than the little garbage of a start.
        gc.freeze()
        gc.enable()

    def _launch_tier(self) -> None:
        tier = partial(roles.tier, cluster_id=self._claim.identity.cluster_id)
        self._tree.launch(Child(topology.TIER, tier, tuple(self._claim.locks)))

    def _await_first_cut(self) -> None:
        """Wait until the object store has all that the last run has left on the disks.

        From then on no commit round is finished before it is there, too (mpbroker.remote.acks=ledger). Only
        the log workers run: they have replayed their journals, and nobody asks them for anything.
        """
        tree = self._tree
        self._notifier.status("Log recovered; copying the last records to the object store")
        self._launch_tier()
        word, tier = tree.memory.words("first_cut"), tree.memory.counters(topology.TIER)
        tree.await_true(lambda: bool(word.load(0) or tier.get(Counter.COUNT_REMOTE_FENCED)))
        if not word.load(0):
            raise BrokerStops(EXIT_FAILED, "mpbroker.remote.acks=ledger cannot be kept; see above")

    def _start_workers(self) -> None:
        """Start the roles that need the coordinator; the acceptors last."""
        tree, listeners = self._tree, self._claim.listeners
        # Processors first: each waits until the present handlers have bound its rings.
        workers = [listeners.processor(topology.processor(n)) for n in range(tree.config.num_network_threads)]
        workers += [new_handler(topology.handler(n)) for n in range(tree.config.num_io_threads)]
        if tree.config.control_plane is not None:
            control = new_handler(topology.CONTROL_HANDLER)
            workers = [listeners.processor(topology.CONTROL_PROCESSOR), control, *workers]
        for child in workers:
            tree.launch(child)
        needed = workers
        if not follows(tree.config):
            # Start the scrubber before any client can ask for records known to be damaged.
            scrubber = Child(topology.SCRUBBER, roles.scrubber, tuple(self._claim.locks))
            tree.launch(scrubber)
            needed = [*workers, scrubber]
        if tree.config.log_cleaner_enable:
            # The cleaner also writes below the log directories: it holds their locks as log workers do.
            tree.launch(Child(topology.CLEANER, roles.cleaner, tuple(self._claim.locks)))
        if tree.config.remote_log_storage_system_enable and topology.TIER not in tree.children:
            self._launch_tier()
        for child in needed:
            tree.await_serving(child)
        # Clients may be served from here on, so a stop has to be a clean one.
        tree.on_wait = None
        listeners.listen()
        for role in listeners.acceptors:
            tree.start(listeners.acceptor(role))
            if not tree.children[role].serves:
                raise BrokerStops(EXIT_FAILED, f"the {topology.name_of(role)} did not start; see above")

    def _announce(self) -> None:
        config, http = self._tree.config, self._claim.http
        listeners = ", ".join(map(str, config.listeners))
        if config.log_flush_policy == "os":
            log.warning(
                "log.flush.policy=os: acknowledged records survive a crash of the broker, not one of the "
                "machine: they are in the page cache only"
            )
        warn_of_audit_log(config)
        for warning in open_modes(config):
            log.warning("%s", warning)
        if any(uses_tls(listener.protocol) for listener in config.listeners):
            log.info("%s", library.description())
        log.info(
            "%s on %s (cluster %s, node %d, processors %d, handlers %d, log workers %d, log.dirs %s) "
            "after %.0f ms",
            "standing by" if follows(config) else "serving",
            listeners,
            self._claim.identity.cluster_id,
            config.node_id,
            config.num_network_threads,
            config.num_io_threads,
            config.log_workers,
            ",".join(config.log_dirs),
            up_s() * 1000,
        )
        if http and config.http_console_enable:
            log.info("the console is at %s; mpbroker ctl console adds its token", page_url(http))
        self._notifier.ready(f"Serving on {listeners}")
        self._notifier.begin_watchdog()
