"""`mpbroker serve`: one broker from its configuration to its last exit code."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.limits import resolved_overrides
from mpbroker.config.listeners import page_url, parse_http_listener
from mpbroker.config.protocols import uses_tls
from mpbroker.ipc import console_token, health, settings, titles, topology
from mpbroker.ipc.log_levels import LogLevels
from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.ipc.process import FatalError
from mpbroker.ipc.topology import SharedMemory
from mpbroker.log import process as log_process
from mpbroker.migration.snapshot_files import forget_exports
from mpbroker.security import audit_log, library
from mpbroker.security.listener import ListenerSecurity, SecurityError, secure_listeners
from mpbroker.startup import buffers, runtime_dir, sockets
from mpbroker.startup.activation import Inherited
from mpbroker.startup.foreign_metadata import refuse_foreign_metadata
from mpbroker.storage.directory_layout import check_log_dirs, name_log_dirs
from mpbroker.storage.directory_lock import LogDirLocks, open_modes, remove_empty, restricted_new_files
from mpbroker.supervisor import logs, otlp, pause, progress, roles
from mpbroker.supervisor.altering import AlteredSettings
from mpbroker.supervisor.child import Child
from mpbroker.supervisor.commands_audit import CHANGES, CommandsAudit
from mpbroker.supervisor.control import Command, ControlSocket, Later
from mpbroker.supervisor.faulting import Faulting
from mpbroker.supervisor.listeners import Listeners
from mpbroker.supervisor.notify import Notifier
from mpbroker.supervisor.reload import Changes, NoFile, ReadAgain, Reload, ReloadError
from mpbroker.supervisor.reloading import Reloading, publish, tell
from mpbroker.supervisor.resize import Resize
from mpbroker.supervisor.status import status, up_s
from mpbroker.supervisor.system_limits import advice, raise_file_limit
from mpbroker.supervisor.tree import BrokerStops, Tree
from shm.region import RegionUnavailable

EXIT_OK = 0
EXIT_FAILED = 1
# The status of a wrong setting (cli.errors): the service manager must not try again.
EXIT_MISCONFIGURED = 2
# A second signal within this time is the same request: `kill %1` on `make run` signals the whole job, and
# make passes its own signal on. Nobody who wants a second one is that fast.
SAME_STOP_S = 0.2
# The time that the service manager is asked for while the broker starts, and the interval between requests.
EXTEND_BY_S, EXTEND_EVERY_S = 60.0, 15.0
NOT_FOLLOWED = (
    "what clients have altered of the broker's settings has no effect: %s. Alter it again, or change the "
    "configuration file"
)

log = logging.getLogger("mpbroker.supervisor")


def security_of(config: BrokerConfig) -> dict[int, ListenerSecurity]:
    """Check certificates, users and rules of all listeners before anything else is begun.

    Keys that come from another host are fetched once. Raises FatalError.
    """
    try:
        found = secure_listeners(config)
    except SecurityError as error:
        raise FatalError(str(error), EXIT_MISCONFIGURED) from error
    for security in found.values():
        security.fetch_keys()
    return found


def check_size(config: BrokerConfig) -> None:
    """Refuse a configuration that is too large to be told to running processes when it changes.

    Raises FatalError.
    """
    try:
        settings.encode(config)
    except ValueError as error:
        raise FatalError(str(error), EXIT_MISCONFIGURED) from error


def check_limits(config: BrokerConfig) -> None:
    """Lift the limit of open files, and refuse one that is too low. Raises FatalError."""
    try:
        raise_file_limit(config)
    except ValueError as error:
        raise FatalError(str(error), EXIT_MISCONFIGURED) from error


def run(
    config: BrokerConfig,
    read_again: ReadAgain | None = None,
    owner_fd: int = -1,
    log_format: logs.LogFormat = logs.LogFormat.TEXT,
) -> int:
    """Run a broker until it is told to stop; return the exit status.

    Every failure is one clear line in the log. `owner_fd`: the broker stops when it becomes readable, as the
    pidfd of a process does that ends; -1: nobody owns it. Only the owner of a broker may ask it for faults.
    """
    logs.configure(logs.wanted_level(os.environ), log_format)
    titles.entitle("supervisor")
    try:
        with restricted_new_files():
            supervisor = Supervisor(config, read_again)
            logs.follow(supervisor.memory.words("log_levels"))
            if owner_fd >= 0:
                supervisor.belong_to(owner_fd)
            return supervisor.run()
    except FatalError as error:
        log.error("%s", error)
        return error.status
    except RegionUnavailable as error:
        log.error("%s%s", error.strerror, advice(error))
    return EXIT_FAILED


def look_up_addresses(config: BrokerConfig) -> BrokerConfig:
    """Resolve the names that limits are given to, once, as Kafka does. Raises FatalError."""
    try:
        overrides = resolved_overrides(config.max_connections_per_ip_overrides)
    except ValueError as error:
        raise FatalError(str(error)) from error
    return structs.replace(config, max_connections_per_ip_overrides=overrides)


class StopAsked(Exception):
    """The broker was told to stop while the tree waits for something that may take long."""


class Supervisor:
    """The supervisor's sockets, memory and tree. Single-threaded."""

    def __init__(self, config: BrokerConfig, read_again: ReadAgain | None = None) -> None:
        # A reload that is asked for before the broker serves comes later, and must not end it.
        self.hangups = 0
        signal.signal(signal.SIGHUP, lambda *_: self._hung_up())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        check_limits(config)
        self.notifier = Notifier()
        with contextlib.ExitStack() as undo:
            self._claim(config, undo)
            undo.pop_all()
        self.tree = Tree(self.memory, self.config)
        self.tree.on_left = self._has_left
        self.resizing: Resize | None = None
        self.reload = Reload(config, read_again)
        self.altering = AlteredSettings(self.memory, config.node_id)
        self.reloading: Reloading | None = None
        self.reload_asked: list[Later] = []
        self.pause_asked: list[Later] = []
        self.faulting = Faulting()
        self._asked_handlers = 0
        self.extend_at = 0.0
        self.told = ""
        self.serves = False
        self.signals = 0
        self.stop_signal = 0
        self.stopped_at = 0.0

    def _claim(self, config: BrokerConfig, undo: contextlib.ExitStack) -> None:
        """Do everything that may refuse the start; a refusal leaves nothing behind.

        Raises FatalError, RegionUnavailable.
        """
        security = security_of(config)
        check_size(config)
        self.otlp = otlp.wanted(config, os.environ)
        runtime_dir.check(config)
        # Check before a lock file is made in somebody else's directory.
        refuse_foreign_metadata(config.log_dirs)
        locks = LogDirLocks(config)
        undo.callback(locks.undo)
        self.locks = locks.fds
        self.identity = check_log_dirs(config)
        inherited = Inherited()
        fds, self.config = sockets.bind_all(look_up_addresses(config), inherited)
        undo.callback(sockets.release, fds, self.config.listeners, inherited)
        titles.name_broker(self.config)
        titles.entitle("supervisor")
        self.http_fd, self.http = -1, ""
        if (http := parse_http_listener(config.http_listener)) is not None:
            self.http_fd, self.http = sockets.bind_http(http, config)
            undo.callback(os.close, self.http_fd)
        inherited.refuse_rest()
        self.directory, made = runtime_dir.make(config)
        undo.callback(remove_empty, made)
        self.runtime_lock = runtime_dir.claim(self.directory)
        if self.http:
            console_token.make(self.directory)
            undo.callback(console_token.remove, self.directory)
        self.pointers = runtime_dir.Pointers(self.config, self.directory, self.http)
        self.memory = SharedMemory(self.directory / PUBLIC_NAME, buffers.sizes(config))
        undo.callback(self.memory.close)
        buffers.give_out(self.memory, config, config.num_network_threads)
        self.listeners = Listeners(self.config, fds, self.memory, security, inherited.serving)
        name_log_dirs(config, self.identity)

    def run(self) -> int:
        wakeup = self._install_signals()
        audit = CommandsAudit(lambda: self.tree.config)
        control = ControlSocket(self.directory, self._serve, audit.tell, self.tree.watch, self.tree.unwatch)
        code = EXIT_OK
        try:
            self.tree.watch(control.fileno(), control.accept)
            try:
                self._start_tree()
            except OSError as error:
                raise BrokerStops(EXIT_FAILED, f"the broker cannot start: {error}{advice(error)}") from error
            self._announce()
            self.serves = True
            self._watch(audit)
            self.serves = False
            self.notifier.stopping()
            self._stop()
        except BrokerStops as stop:
            code = stop.code
            if str(stop):
                log.log(logging.INFO if code == EXIT_OK else logging.ERROR, "%s", stop)
            self.tree.kill_all()
        except FatalError:
            self.tree.kill_all()
            raise
        finally:
            control.close()
            audit.close()
            runtime_dir.remove_pointers(self.config)
            self.listeners.close()
            self.memory.close()
            console_token.remove(self.directory)
            runtime_dir.remove(self.directory)
            for fd in (wakeup, self.runtime_lock, *self.locks, *([self.http_fd] if self.http else [])):
                os.close(fd)
        log.info("stopped with status %d", code)
        return code

    # ---- start

    def _start_tree(self) -> None:
        """Start all roles. Acceptors come last: the ports refuse clients until all others serve.

        Of the two planes the control plane is first.
        """
        tree = self.tree
        runtime_dir.tell_of_unclean_end(self.config)
        # Recovery may take long, and tools that show its progress must find this process.
        self.pointers.write()
        self.teller = progress.Teller(self.config, self.memory)
        tree.on_wait = self._while_starting
        try:
            self._start_roles(tree)
        finally:
            self.teller.end()
        tree.on_wait = None

    def _start_roles(self, tree: Tree) -> None:
        first, *others = [
            Child(topology.log_worker(number), log_process.run, tuple(self.locks))
            for number in range(self.config.log_workers)
        ]
        # The first worker clears up what the last run left. The others wait for that by themselves.
        has_exporter = bool(self.http or self.otlp)
        roles.prepare(has_exporter=has_exporter)
        gc.freeze()
        tree.launch(first)
        if has_exporter:
            # Before all others: it tells how far the recovery is.
            exporter = partial(
                roles.exporter,
                fd=self.http_fd,
                otlp=self.otlp,
                cluster_id=self.identity.cluster_id,
                began_ns=time.time_ns(),
            )
            fds = (self.http_fd,) if self.http else ()
            tree.launch(Child(topology.EXPORTER, exporter, fds, lambda: self.http))
        tree.await_serving(first)
        for child in others:
            tree.launch(child)
        for child in others:
            tree.await_serving(child)
        self.notifier.status("Log recovered; starting")
        coordinator = Child(
            topology.COORDINATOR, partial(roles.coordinator, cluster_id=self.identity.cluster_id)
        )
        gc.freeze()
        tree.launch(coordinator)
        tree.await_serving(coordinator)
        # Only now: the metadata are ours to the last record, and nobody has added to them.
        forget_exports(self.config.log_dirs)
        self._begin_as_altered()
        gc.freeze()
        self._start_workers(tree)
        # Looking for garbage takes longer than the little garbage so far is worth.
        gc.freeze()
        gc.enable()

    def _start_workers(self, tree: Tree) -> None:
        """Start the roles that need the coordinator."""
        # Processors first: each waits for the handlers that are there to bind its rings.
        workers = [self._processor(topology.processor(n)) for n in range(self.config.num_network_threads)]
        workers += [self._handler(topology.handler(n)) for n in range(self.config.num_io_threads)]
        if self.config.control_plane is not None:
            control = self._handler(topology.CONTROL_HANDLER)
            workers = [self.listeners.processor(topology.CONTROL_PROCESSOR), control, *workers]
        for child in workers:
            tree.launch(child)
        # Start the scrubber before any client can ask for what is known to be damaged.
        scrubber = Child(topology.SCRUBBER, roles.scrubber, tuple(self.locks))
        tree.launch(scrubber)
        if self.config.log_cleaner_enable:
            # The cleaner also writes below the log directories: no second broker may begin while it does.
            tree.launch(Child(topology.CLEANER, roles.cleaner, tuple(self.locks)))
        for child in (*workers, scrubber):
            tree.await_serving(child)
        # Clients may be served from here on, so a stop has to be a clean one.
        tree.on_wait = None
        self.listeners.listen()
        for role in self.listeners.acceptors:
            tree.start(self.listeners.acceptor(role))
            if not tree.children[role].serves:
                raise BrokerStops(EXIT_FAILED, f"the {topology.name_of(role)} did not start; see above")

    def _begin_as_altered(self) -> None:
        """Apply what clients have altered, as the coordinator has read it, for the children that follow."""
        self.altering.look()
        try:
            changes, security, resize = self._checked(self._altered, Resize.of)
        except (ReloadError, SecurityError, FatalError) as error:
            log.error("%s", NOT_FOLLOWED % error)
        else:
            if changes.names:
                config = changes.config if resize is None else resize.applied_to(changes.config)
                self.listeners.follow(config, security, self.tree)
                self.config = self.tree.config
                buffers.give_out(self.memory, config, config.num_network_threads)
                publish(settings.encode(config), self.tree)
                log.info("altered by clients: %s", ", ".join(changes.names))
            self.reload.done(changes)
        self.altering.waits = False
        self.altering.acknowledge()

    def _while_starting(self) -> None:
        """Obey a stop at once, also while the log recovers, and ask the service manager for time."""
        if self.signals:
            raise BrokerStops(EXIT_OK, "told to stop while starting; recovery begins anew at the next start")
        self.teller.look()
        self._extend()
        if (text := self.teller.text) != self.told:
            self.told = text
            self.notifier.status(text)

    def _extend(self) -> None:
        """Ask the service manager for time, now and then."""
        if time.monotonic() >= self.extend_at:
            self.extend_at = time.monotonic() + EXTEND_EVERY_S
            self.notifier.extend(EXTEND_BY_S)

    def _handler(self, role: int) -> Child:
        return Child(role, roles.handler)

    def _processor(self, role: int) -> Child:
        return self.listeners.processor(role)

    def _has_left(self, role: int) -> None:
        if topology.is_processor(role):
            self.listeners.abandon(role)

    def _announce(self) -> None:
        listeners = ", ".join(str(listener) for listener in self.config.listeners)
        if self.config.log_flush_policy == "os":
            log.warning(
                "log.flush.policy=os: acknowledged records survive a crash of the broker, not one of the "
                "machine: they are in the page cache only"
            )
        self._check_audit_log()
        for warning in open_modes(self.config):
            log.warning("%s", warning)
        if any(uses_tls(listener.protocol) for listener in self.config.listeners):
            log.info("%s", library.description())
        log.info(
            "serving on %s (cluster %s, node %d, processors %d, handlers %d, log workers %d, log.dirs %s) "
            "after %.0f ms",
            listeners,
            self.identity.cluster_id,
            self.config.node_id,
            self.config.num_network_threads,
            self.config.num_io_threads,
            self.config.log_workers,
            ",".join(self.config.log_dirs),
            up_s() * 1000,
        )
        if self.http and self.config.http_console_enable:
            log.info("the console is at %s; mpbroker ctl console adds its token", page_url(self.http))
        self.notifier.ready(f"Serving on {listeners}")
        self.notifier.begin_watchdog()

    def _check_audit_log(self) -> None:
        """Make the file of the audit log, or say why it cannot be: no reason to refuse the service."""
        if problem := audit_log.problem(self.config):
            log.warning("%s", problem)

    # ---- while it runs

    def _install_signals(self) -> int:
        """Install handlers that only count signals; the main loop acts. Return the wake-up descriptor."""
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
        signal.signal(signal.SIGTTIN, lambda *_: self._step_handlers(1))
        signal.signal(signal.SIGTTOU, lambda *_: self._step_handlers(-1))

        def drain() -> None:
            os.read(reader, 4096)

        self.tree.watch(reader, drain)
        return reader

    def belong_to(self, owner_fd: int) -> None:
        """Stop, as after SIGTERM, when the descriptor becomes readable; until then allow faults."""
        self.faulting.is_allowed = True

        def owner_has_gone() -> None:
            self.tree.unwatch(owner_fd)
            log.warning("the process that started this broker has gone: it stops")
            os.kill(os.getpid(), signal.SIGTERM)

        self.tree.watch(owner_fd, owner_has_gone)

    def _hung_up(self) -> None:
        self.hangups += 1

    def _go_on_reloading(self) -> None:
        """Move reloads on: one at a time, for everybody who asked before it began, and none during a resize.

        Clients that altered settings do not wait for these: a handler that leaves may hold their request.
        """
        altered = self.altering.look()
        if self.resizing is not None or self.reloading is not None:
            if altered:
                self._publish_altered()
        else:
            if self.altering.waits:
                self._begin_altered()
            if self.reloading is None and (self.hangups or self.reload_asked):
                self._begin_reload()
        self.altering.acknowledge()
        going = self.reloading
        if going is not None and self.resizing is None and going.go_on(self.tree, self.config, self._handler):
            if not going.error:
                self.reload.done(going.changes)
            going.give()
            self.reloading = None
            listeners = ", ".join(map(str, self.listeners.now))
            self.notifier.ready(f"Serving on {listeners}")

    def _begin_reload(self) -> None:
        self.hangups = 0
        answers, self.reload_asked = self.reload_asked, []
        self.notifier.reloading()
        try:
            self._begin(*self._checked(self._reread, Resize.checked), "reload", answers)
        except (ReloadError, SecurityError, FatalError) as error:
            level = logging.WARNING if isinstance(error, NoFile) else logging.ERROR
            log.log(level, "reload: nothing changes: %s", error)
            self.notifier.ready(f"Serving; the reload changed nothing: {error}")
            for answer in answers:
                answer.give({"error": f"nothing changes: {error}"})

    def _publish_altered(self) -> None:
        """Publish altered values at once.

        Resizes and replacements of handlers for them wait for their turn.
        """
        try:
            changes, security, _ = self._checked(self._altered, Resize.of)
        except (ReloadError, SecurityError, FatalError) as error:
            log.debug("what clients have altered cannot be followed yet: %s", error)
        else:
            self._publish(changes, security)

    def _begin_altered(self) -> None:
        self.altering.waits = False
        try:
            # The limit of one step was checked before the change was recorded.
            self._begin(*self._checked(self._altered, Resize.of), "altered by clients", [])
        except (ReloadError, SecurityError, FatalError) as error:
            log.error("%s", NOT_FOLLOWED % error)

    def _begin(
        self,
        changes: Changes,
        security: dict[int, ListenerSecurity],
        resize: Resize | None,
        why: str,
        answers: list[Later],
    ) -> None:
        if changes.names:
            self._publish(changes, security)
            self.resizing = resize
        self.altering.waits = False
        tell(changes, why)  # log it now that it is true
        self.reloading = Reloading(changes, answers)

    def _publish(self, changes: Changes, security: dict[int, ListenerSecurity]) -> None:
        self.listeners.follow(changes.config, security, self.tree)
        self.config = self.tree.config
        publish(changes.encoded, self.tree)
        self._check_audit_log()

    def _reread(self) -> Changes:
        return self.reload.changes(self.config, self.altering.now)

    def _altered(self) -> Changes:
        return self.reload.altered(self.config, self.altering.now)

    def _checked(
        self,
        look: Callable[[], Changes],
        new_resize: Callable[[BrokerConfig, int | None, int | None], Resize],
    ) -> tuple[Changes, dict[int, ListenerSecurity], Resize | None]:
        """Check a new configuration.

        Raises ReloadError, SecurityError, FatalError with everything as it was.
        """
        # Use the tree's configuration: a listener may have come in this very step.
        self.config = self.tree.config
        try:
            changes = look()
            if problem := self.listeners.role_problem(changes.config):
                raise ReloadError(problem)
            security = self.listeners.changed_security(changes.config)
            resize = None
            if changes.resizes:
                resize = new_resize(self.config, changes.handlers, changes.processors)
        except (ReloadError, SecurityError, FatalError):
            raise
        except Exception as error:
            # A file that cannot even be judged is no reason to end a running broker.
            log.exception("the check of the configuration fails")
            raise ReloadError(f"the check of the configuration fails: {error}") from error
        return changes, security, resize

    def _step_handlers(self, by: int) -> None:
        self._asked_handlers += by

    def _watch(self, audit: CommandsAudit) -> None:
        self.tree.on_wait = self._while_running
        with contextlib.suppress(StopAsked):
            while True:
                self.tree.step()
                self._go_on_resizing()
                self.listeners.go_on(self.tree)
                self.faulting.go_on(self.tree, self.tree.config)
                self.pointers.name(self.listeners.now)
                self.pointers.write()
                self._go_on_reloading()
                self._pause()
                audit.follow()
                self.config = self.tree.config
        log.info("stopping: %s", signal.Signals(self.stop_signal).name)

    def _while_running(self) -> None:
        """Raise StopAsked when told to stop.

        A stop does not wait for acknowledgements that no longer matter. Whatever is broken off here, such as
        a fence, the stop does again or makes needless.
        """
        if self.signals:
            raise StopAsked
        if self.notifier.is_ping_due() and not health.unresponsive_processes(self.config, self.memory):
            self.notifier.ping()

    def _pause(self) -> None:
        """Pause all children for those who have asked for it, one after the other."""
        asked, self.pause_asked = self.pause_asked, []
        for one in asked:
            children = list(self.tree.children.values())
            problem = pause.problem(children)
            if self.resizing is not None or self.reloading is not None:
                problem = "a resize or reload goes on"
            if problem:
                one.give({"paused": False, "why": problem})
            else:
                pause.hold(children, one, look=self._look_in_pause)

    def _look_in_pause(self) -> bool:
        """Show life, and return whether the broker is to stop. Heartbeats say nothing in a pause."""
        self.tree.counters.beat()
        if self.notifier.is_ping_due():
            self.notifier.ping()
        return bool(self.signals)

    def _stop(self) -> None:
        """Stop gracefully; a second signal ends it at once."""

        def hasten() -> None:
            self._extend()
            if self.signals > 1:
                raise BrokerStops(
                    EXIT_FAILED,
                    "told to stop a second time: stopping at once; the log recovers at the next start",
                )

        self.tree.on_wait = hasten
        self.tree.stop_all()

    # ---- control socket

    def _serve(self, command: Command) -> dict[str, Any] | Later:
        if command.command == "status":
            return status(
                self.config,
                self.identity.cluster_id,
                self.memory,
                list(self.tree.children.values()),
                self.listeners.describe(),
                self.http,
            )
        if command.command == "ready":
            problems = health.reasons_not_ready(self.config, self.memory)
            return {"ready": not problems, "problems": problems}
        if command.command == "listeners":
            return {"listeners": self.listeners.describe()}
        if command.command == "request-log":
            return self._log_requests(command)
        if command.command == "log-level":
            return self._log_level(command)
        if command.command == "scrub":
            from mpbroker.supervisor import scrubbing

            if command.on:
                scrubbing.begin(self.memory, self.config)
            return scrubbing.report(self.memory, self.config)
        if command.command not in CHANGES:
            known = ", ".join(("status", "ready", "listeners", "request-log", "log-level", "scrub", *CHANGES))
            raise ValueError(f"unknown command {command.command!r}; known are {known}")
        if not self.serves:
            raise FatalError("the broker is starting or stopping: nothing can be changed now")
        if command.command == "resize":
            return self._resize(command)
        if command.command == "reload":
            self.reload_asked.append(Later())
            return self.reload_asked[-1]
        if command.command == "pause":
            self.pause_asked.append(Later())
            return self.pause_asked[-1]
        if command.command == "faults":
            return self.faulting.ask(command.faults)
        return self._change_listeners(command)

    def _log_requests(self, command: Command) -> dict[str, Any]:
        """Turn the request log on or off if asked to, and report its state."""
        levels = LogLevels(self.memory)
        if command.on is not None:
            levels.log_requests(command.on)
            log.info("the request log is %s", "on" if command.on else "off")
        return {"request_log": levels.logs_requests}

    def _log_level(self, command: Command) -> dict[str, Any]:
        """Set the level of a logger if asked to, and report all levels. Raises ValueError."""
        levels = LogLevels(self.memory)
        if command.level is not None:
            levels.check(command.logger or "", command.level)
            levels.put(command.logger or "", command.level or None)
            log.info("the log level of %s is %s", command.logger, levels.all()[command.logger or ""])
        return {"loggers": levels.all()}

    def _change_listeners(self, command: Command) -> Later:
        if not command.listener:
            raise ValueError(f"{command.command} needs a listener")
        if command.command == "listener-remove":
            return self.listeners.remove(command.listener, self.tree)
        return self.listeners.add(command.listener, command.protocol, command.advertised, self.tree)

    def _resize(self, command: Command) -> Later:
        """Begin a resize, which answers when it is done. Raises FatalError."""
        if self.resizing is not None:
            raise FatalError(f"{self.resizing} goes on already; ask again when that is done")
        if self.reloading is not None:
            raise FatalError("a reload goes on; ask again when that is done")
        self.resizing = Resize.checked(self.config, command.handlers, command.processors)
        return self.resizing.answer

    def _go_on_resizing(self) -> None:
        if self.resizing is None and self._asked_handlers:
            wanted, self._asked_handlers = self.config.num_io_threads + self._asked_handlers, 0
            try:
                self._resize(Command("resize", handlers=wanted))
            except FatalError as error:
                log.error("%s", error)
        if self.resizing is not None and self.resizing.go_on(self.tree, self._handler, self._processor):
            now = self.resizing.applied_to(self.tree.config)
            self.config = self.tree.config = self.listeners.config = now
            publish(settings.encode(self.config), self.tree)
            if self.reloading is not None:
                self.reloading.error = self.resizing.error
            self.resizing.answer.give(self.resizing.result)
            self.resizing = None
