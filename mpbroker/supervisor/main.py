"""Runs one broker, from its configuration to its exit status (`mpbroker serve`)."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import health, titles
from mpbroker.ipc.process import EXIT_STANDBY, FatalError
from mpbroker.storage.directory_lock import restricted_new_files
from mpbroker.supervisor import logs, pause
from mpbroker.supervisor.changing import AlteredSettings, Changing
from mpbroker.supervisor.claim import Claim
from mpbroker.supervisor.commands import Commands, CommandsAudit
from mpbroker.supervisor.config_diff import ConfigDiff, ReadAgain
from mpbroker.supervisor.control import ControlSocket
from mpbroker.supervisor.faulting import Faulting
from mpbroker.supervisor.notify import Notifier
from mpbroker.supervisor.starting import EXIT_FAILED, EXIT_OK, Starting
from mpbroker.supervisor.system_limits import advice
from mpbroker.supervisor.tree import BrokerStops, Tree
from shm.region import RegionUnavailable

# A second signal within this time repeats the first: `kill %1` on `make run` signals the whole job, and make
# passes its own signal on. No operator is that fast.
SAME_STOP_S = 0.2

log = logging.getLogger("mpbroker.supervisor")


def run(
    config: BrokerConfig,
    read_again: ReadAgain | None = None,
    owner_fd: int = -1,
    log_format: logs.LogFormat = logs.LogFormat.TEXT,
) -> int:
    """Run a broker until a signal stops it; return the exit status.

    Every failure is one line in the log. The broker stops when `owner_fd` becomes readable, such as the pidfd
    of the process that started it; -1 means no owner. Faults can be injected only in a broker with an owner.
    """
    logs.configure(logs.wanted_level(os.environ), log_format)
    titles.entitle("supervisor")
    try:
        with restricted_new_files():
            supervisor = Supervisor(config, read_again)
            logs.follow(supervisor.claim.memory.words("log_levels"))
            if owner_fd >= 0:
                supervisor.belong_to(owner_fd)
            return supervisor.run()
    except FatalError as error:
        log.error("%s", error)
        return error.status
    except RegionUnavailable as error:
        log.error("%s%s", error.strerror, advice(error))
    return EXIT_FAILED


class StopAsked(Exception):
    """Raised to end a wait of the running broker, because a stop signal has come."""


class Supervisor:
    """The main loop and the signals of a broker. Single-threaded."""

    def __init__(self, config: BrokerConfig, read_again: ReadAgain | None = None) -> None:
        # A hangup before the broker serves asks for a reload, and must not end the process.
        self.hangups = 0
        signal.signal(signal.SIGHUP, lambda *_: self._hang_up())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        self.notifier = Notifier()
        self.claim = claim = Claim(config)
        self.listeners = claim.listeners
        self.tree = Tree(claim.memory, claim.config)
        self.tree.on_left = self.listeners.abandon
        self.faulting = Faulting()
        diff = ConfigDiff(config, read_again)
        altered = AlteredSettings(claim.memory, config.node_id)
        self.changing = Changing(self.tree, self.listeners, diff, altered, self.notifier)
        self.commands = Commands(
            self.tree,
            self.listeners,
            self.changing,
            self.faulting,
            {"cluster_id": claim.identity.cluster_id, "http": claim.http},
        )
        self.signals = 0
        self.stop_signal = 0
        self.stopped_at = 0.0

    def run(self) -> int:
        wakeup = self._install_signals()
        tree = self.tree
        audit = CommandsAudit(lambda: tree.config)
        directory = self.claim.directory
        control = ControlSocket(directory, self.commands.serve, audit.record, tree.watch, tree.unwatch)
        code = EXIT_OK
        try:
            tree.watch(control.fileno(), control.accept)
            try:
                Starting(self.claim, tree, self.changing, self.notifier, lambda: self.signals > 0).run()
            except OSError as error:
                raise BrokerStops(EXIT_FAILED, f"the broker cannot start: {error}{advice(error)}") from error
            self.commands.serves = True
            self._watch(audit)
            self.commands.serves = False
            self.notifier.stopping()
            self._stop()
        except BrokerStops as stop:
            # Who was told to stop becomes no standby.
            code = EXIT_FAILED if stop.code == EXIT_STANDBY and self.signals else stop.code
            if str(stop):
                log.log(logging.INFO if code in (EXIT_OK, EXIT_STANDBY) else logging.ERROR, "%s", stop)
            tree.kill_all()
        except FatalError:
            tree.kill_all()
            raise
        finally:
            control.close()
            audit.close()
            self.claim.release()
            os.close(wakeup)
        goes_on = code == EXIT_STANDBY
        log.info("stopped with status %d%s", code, ": it starts again, as a standby" if goes_on else "")
        if goes_on:
            self.notifier.give_back()
        return code

    # ---- signals

    def _install_signals(self) -> int:
        """Install handlers that only note signals for the main loop. Return the wake-up descriptor."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def stop(number: int, _: object) -> None:
            if self.signals and time.monotonic() < self.stopped_at + SAME_STOP_S:
                return
            self.signals += 1
            self.stop_signal = number
            self.stopped_at = time.monotonic()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTTIN, lambda *_: self.changing.step_handlers(1))
        signal.signal(signal.SIGTTOU, lambda *_: self.changing.step_handlers(-1))

        def drain() -> None:
            os.read(reader, 4096)

        self.tree.watch(reader, drain)
        return reader

    def _hang_up(self) -> None:
        self.hangups += 1

    def belong_to(self, owner_fd: int) -> None:
        """Make the broker stop, as SIGTERM does, once `owner_fd` is readable. Also allow fault injection."""
        self.faulting.is_allowed = True

        def stop() -> None:
            self.tree.unwatch(owner_fd)
            log.warning("the process that started this broker has ended: the broker stops")
            os.kill(os.getpid(), signal.SIGTERM)

        self.tree.watch(owner_fd, stop)

    # ---- the main loop

    def _watch(self, audit: CommandsAudit) -> None:
        self.tree.on_wait = self._while_running
        pointers = self.claim.pointers
        with contextlib.suppress(StopAsked):
            while True:
                self.tree.step()
                self.listeners.advance(self.tree)
                self.faulting.advance(self.tree, self.tree.config)
                pointers.name(self.listeners.now)
                pointers.write()
                if self.hangups:
                    self.hangups = 0
                    self.changing.reload()
                self.changing.advance()
                self._pause()
                audit.follow()
        log.info("stopping: %s", signal.Signals(self.stop_signal).name)

    def _while_running(self) -> None:
        """Raise StopAsked after a stop signal. Ping systemd if that is due.

        The process tree calls this during each wait, so that a stop does not wait for acknowledgements.
        StopAsked may interrupt a step such as a fence. The stop repeats that step or no longer needs it.
        """
        if self.signals:
            raise StopAsked
        if self.notifier.is_ping_due() and not health.unresponsive_processes(
            self.tree.config, self.tree.memory
        ):
            self.notifier.ping()

    def _pause(self) -> None:
        """Carry out or refuse each requested pause, one request after the other."""
        commands = self.commands
        backups, commands.pauses = commands.pauses, []
        cuts, commands.pauses_for_cuts = commands.pauses_for_cuts, []
        for kind, asked in ((pause.BACKUP, backups), (pause.CUT, cuts)):
            for one in asked:
                children = [child for role, child in self.tree.children.items() if role not in kind.spared]
                problem = pause.problem(children)
                if self.changing.under_way:
                    problem = f"a change is under way ({self.changing.under_way})"
                if problem:
                    one.give({"paused": False, "why": problem})
                else:
                    pause.hold(children, one, kind, poll=self._poll_in_pause)

    def _poll_in_pause(self) -> bool:
        """Ping systemd during a pause, when no heartbeats are checked. Return True after a stop signal."""
        self.tree.counters.beat()
        if self.notifier.is_ping_due():
            self.notifier.ping()
        return bool(self.signals)

    def _stop(self) -> None:
        """Stop gracefully. A second stop signal ends the graceful stop at once."""

        def hasten() -> None:
            self.notifier.extend()
            if self.signals > 1:
                raise BrokerStops(
                    EXIT_FAILED, "second stop signal: stopping at once; the log recovers at the next start"
                )

        self.tree.on_wait = hasten
        self.tree.stop_all()
