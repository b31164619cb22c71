"""Changes of a running broker: reloads, altered settings, numbers of workers. One at a time.

A change first publishes the new configuration, so that every process forked later has it. Then the numbers of
workers change. Then handlers that keep tables of changed settings are replaced. These steps are generators,
which yield while they wait for the process tree. (Kafka: DynamicBrokerConfig, DynamicConfigPublisher.)

Resize       A resize obeys Kafka's rule (config.workers.resize_problem). Workers are numbered from 0, and the
             highest numbers leave. A leaving worker gets no new work, finishes its work, and is fenced after
             its end. A leaving processor closes its connections between two requests.
Replacement  An additional handler starts first, so that capacity never shrinks, and no old handler leaves if
             new ones cannot start. Then each old handler leaves as in a resize, and its successor starts. The
             control plane's handler has no spare index: requests to it wait for its successor.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import structs

from mpbroker.config import dynamic
from mpbroker.config.altered import Altered
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.workers import MAX_HANDLERS, MAX_PROCESSORS, resize_problem
from mpbroker.ipc import settings, topology
from mpbroker.ipc.broker_settings import BrokerSettings
from mpbroker.ipc.bulletin import BulletinReader
from mpbroker.ipc.process import SETTINGS_CHANGED, WRONG_CALL, FatalError
from mpbroker.ipc.topology import COORDINATOR, SUPERVISOR, SharedMemory
from mpbroker.security import audit_log
from mpbroker.security.listener import ListenerSecurity, SecurityError
from mpbroker.startup import buffers
from mpbroker.supervisor import roles
from mpbroker.supervisor.child import Child
from mpbroker.supervisor.config_diff import Changes, ConfigDiff, NoFile, ReloadError
from mpbroker.supervisor.control import Later
from mpbroker.supervisor.listeners import Listeners
from mpbroker.supervisor.notify import Notifier
from mpbroker.supervisor.tree import Tree

# The log workers come first: they must know the topic defaults by which handlers accept batches.
_FOLLOWERS: Final = (
    topology.LOG_WORKERS,
    (
        *(topology.COORDINATOR, topology.CLEANER, topology.SCRUBBER, topology.TIER),
        *(*topology.ACCEPTORS, *topology.PROCESSORS, *topology.HANDLERS),
    ),
)
_REFUSALS: Final = (ReloadError, SecurityError, FatalError)
_DONE: Final = object()
_NOT_APPLIED: Final = (
    "settings that clients altered have no effect: %s. Alter them again, or change the configuration file"
)

log = logging.getLogger("mpbroker.supervisor")
_decoder = msgspec.msgpack.Decoder(BrokerSettings)


def publish(config: bytes, tree: Tree) -> None:
    """Publish a configuration, encoded by settings.encode; return when all running processes use it.

    The exporter is not waited for: it reads the present configuration whenever it needs it.
    """
    settings.write(tree.memory.private.block("settings"), config)
    tree.order(topology.EXPORTER, SETTINGS_CHANGED, topology.SUPERVISOR)
    for followers in _FOLLOWERS:
        tree.order_all(followers, SETTINGS_CHANGED, topology.SUPERVISOR)


def new_handler(role: int) -> Child:
    return Child(role, roles.handler)


class AlteredSettings:
    """The broker settings that clients altered. The coordinator publishes them in shared memory.

    The coordinator publishes all altered settings whenever one changes, and again when it is restarted.
    `is_pending` is True while the broker does not yet use all of them.
    """

    def __init__(self, memory: SharedMemory, node_id: int) -> None:
        self.is_pending = False
        self.now = Altered()
        self._node = str(node_id)
        self._reader = BulletinReader(
            memory.private.block("brokers"), memory.words("broker_acks"), SUPERVISOR
        )
        self._done = memory.words("brokers_done")
        self._version = self._acknowledged = 0
        self._coordinator_bell = memory.bell_fds[COORDINATOR]

    def poll(self) -> bool:
        """Read the newest settings; return whether they differ from those read by the previous call."""
        if not (versions := self._reader.poll()):
            return False
        newest = _decoder.decode(versions[-1])
        self._version = newest.version
        before = self.now
        mine, others = (self._usable(newest.brokers.get(name, {})) for name in (self._node, ""))
        self.now = Altered(mine, others)
        self.is_pending = self.is_pending or self.now != before
        return self.now != before

    def acknowledge(self) -> None:
        """Tell the coordinator that the version read last was applied or refused. Clients wait for this."""
        if self._acknowledged != self._version:
            self._acknowledged = self._version
            self._done.store(0, self._version)
            # Ring also a coordinator that is awake: it may have read the word, and be about to sleep.
            os.eventfd_write(self._coordinator_bell, 1)

    def _usable(self, texts: dict[str, str]) -> dict[str, str]:
        good, problems = dynamic.usable(texts)
        for problem in problems:
            log.error("%s. It has no effect; delete it with kafka-configs --delete-config", problem)
        return good


@dataclass(frozen=True)
class _Workers:
    """The numbers of workers of one kind (handlers or processors) before and after a resize."""

    name: str
    before: int
    after: int
    most: int
    role: Callable[[int], int]

    def __str__(self) -> str:
        return f"resizing {self.name} from {self.before} to {self.after}"

    @property
    def added(self) -> list[int]:
        return list(map(self.role, range(self.before, self.after)))

    @property
    def removed(self) -> list[int]:
        return list(map(self.role, range(self.after, self.before)))


class Resize:
    """A change of the numbers of workers; None leaves a number unchanged. `error` is "" on success."""

    def __init__(self, config: BrokerConfig, handlers: int | None, processors: int | None) -> None:
        before = config.num_io_threads
        after = before if handlers is None else handlers
        self.handlers = _Workers("handlers", before, after, MAX_HANDLERS, topology.handler)
        before = config.num_network_threads
        after = before if processors is None else processors
        self.processors = _Workers("processors", before, after, MAX_PROCESSORS, topology.processor)
        self.error = ""

    def check(self) -> Resize:
        """Return this resize. Raises FatalError, naming Kafka's rule for resizes, if it breaks the rule."""
        for kind in (self.handlers, self.processors):
            if problem := resize_problem(kind.name, kind.before, kind.after, kind.most):
                raise FatalError(problem, WRONG_CALL)
        return self

    def __str__(self) -> str:
        return ", ".join(str(kind) for kind in self._changed) or "resizing nothing"

    @property
    def _changed(self) -> list[_Workers]:
        return [kind for kind in (self.handlers, self.processors) if kind.before != kind.after]

    @property
    def result(self) -> dict[str, Any]:
        if self.error:
            return {"error": f"{self}: {self.error}; the numbers are as they were"}
        return {"handlers": self.handlers.after, "processors": self.processors.after}

    def applied_to(self, config: BrokerConfig) -> BrokerConfig:
        if self.error:
            return structs.replace(config, resizing_to={})
        after = {"num.io.threads": self.handlers.after, "num.network.threads": self.processors.after}
        # A client may have asked for other numbers meanwhile: they come next.
        others = {key: number for key, number in config.resizing_to.items() if number != after[key]}
        return structs.replace(
            config,
            num_io_threads=self.handlers.after,
            num_network_threads=self.processors.after,
            resizing_to=others,
        )

    def steps(
        self, tree: Tree, new_handler: Callable[[int], Child], new_processor: Callable[[int], Child]
    ) -> Iterator[None]:
        """Add and remove workers. If a new worker cannot start, set `error` and remove the new workers."""
        # Shrink the limits of the present processors before another starts.
        buffers.give_out(tree.memory, tree.config, max(self.processors.before, self.processors.after))
        added = [*self.handlers.added, *self.processors.added]
        try:
            for kind, make in ((self.handlers, new_handler), (self.processors, new_processor)):
                if kind.before != kind.after:
                    log.info("%s", kind)
                for role in kind.added:
                    tree.launch(make(role))
        except OSError as error:
            self.error = str(error)
            log.error("%s: %s", self, error)
            tree.retire([role for role in added if role in tree.children])
            while any(role in tree.children for role in added):
                yield
        else:
            for kind in self._changed:
                tree.retire(kind.removed)
            removed = [*self.handlers.removed, *self.processors.removed]
            while not all(_serves(tree, role) for role in added) or any(r in tree.children for r in removed):
                yield
        left = self.processors.before if self.error else self.processors.after
        buffers.give_out(tree.memory, tree.config, left)


class Replacement:
    """Replaces the handlers in `roles`, one by one. `spare`: the role of the additional handler, or None."""

    def __init__(self, roles: list[int], spare: int | None) -> None:
        self.error = ""
        self.replaced: list[str] = []
        self._roles = roles
        self._spare = spare

    @classmethod
    def of_all(cls, tree: Tree) -> Replacement:
        count = tree.config.num_io_threads
        handlers = [topology.handler(number) for number in range(count)]
        if topology.CONTROL_HANDLER in tree.children:
            handlers.append(topology.CONTROL_HANDLER)
        return cls(handlers, topology.handler(count) if count < topology.MAX_HANDLERS else None)

    def steps(self, tree: Tree, new_handler: Callable[[int], Child]) -> Iterator[None]:
        """Replace the handlers. If the spare handler does not start, set `error` and replace none."""
        log.info("replacing %s", ", ".join(map(topology.name_of, self._roles)))
        if self._spare is not None:
            yield from self._start_spare(tree, self._spare, new_handler)
        for role in self._roles if not self.error else ():
            if (child := tree.children.get(role)) is None:
                continue
            yield from self._retire(tree, role)
            tree.relaunch(child)
            self.replaced.append(child.name)
            while role in tree.children and not _serves(tree, role):
                yield
        if self._spare is not None:
            yield from self._retire(tree, self._spare)

    def _start_spare(self, tree: Tree, role: int, new_handler: Callable[[int], Child]) -> Iterator[None]:
        child = new_handler(role)
        try:
            tree.launch(child)
        except OSError as error:
            self.error = str(error)
        while not self.error and role in tree.children and not child.serves:
            if child.restarts.young_deaths:
                self.error = "a new handler does not start; its messages above say why"
            else:
                yield
        if self.error:
            log.error("no handler is replaced: %s", self.error)

    @staticmethod
    def _retire(tree: Tree, role: int) -> Iterator[None]:
        if role in tree.children:
            tree.retire([role])
        while role in tree.children:
            yield


def _serves(tree: Tree, role: int) -> bool:
    child = tree.children.get(role)
    return child is not None and child.serves


class Changing:
    """Makes the changes of a running broker, one at a time. `under_way` names the present one, "" if none."""

    def __init__(
        self, tree: Tree, listeners: Listeners, diff: ConfigDiff, altered: AlteredSettings, notifier: Notifier
    ) -> None:
        self.under_way = ""
        self._tree = tree
        self._listeners = listeners
        self._diff = diff
        self._altered = altered
        self._notifier = notifier
        self._steps: Iterator[None] | None = None
        self._reloads: list[Later] = []
        self._more_handlers = 0

    # ---- requests: they may come while the tree waits, so they are only recorded

    def reload(self) -> Later:
        """Request a reload. One reload answers all requests that were made before the reload began."""
        self._reloads.append(Later())
        return self._reloads[-1]

    def step_handlers(self, by: int) -> None:
        self._more_handlers += by

    def resize(self, handlers: int | None, processors: int | None) -> Later:
        """Begin a resize; return its answer, which is given when the resize is done. Raises FatalError."""
        if self.under_way:
            raise FatalError(f"a change is under way ({self.under_way}); ask again when it is done")
        resize = Resize(self._tree.config, handlers, processors).check()
        answer = Later()
        self.under_way = str(resize)
        self._steps = self._resize(resize, answer)
        return answer

    # ---- the main loop

    def begin_as_altered(self) -> None:
        """At a start, apply the altered settings that the coordinator has read, for children forked later."""
        self._altered.poll()
        try:
            changes, security, resize = self._checked(self._diff.altered)
        except _REFUSALS as error:
            log.error(_NOT_APPLIED, error)
        else:
            if changes.names:
                config = changes.config if resize is None else resize.applied_to(changes.config)
                self._listeners.follow(config, security, self._tree)
                buffers.give_out(self._tree.memory, config, config.num_network_threads)
                publish(settings.encode(config), self._tree)
                log.info("altered by clients: %s", ", ".join(changes.names))
            for warning in changes.warnings:
                log.warning("altered by clients: %s", warning)
            self._diff.done(changes)
        self._altered.is_pending = False
        self._altered.acknowledge()

    def advance(self) -> None:
        """Continue the present change, or begin a requested change.

        Altered settings are published and acknowledged even during a change. Clients wait for the
        acknowledgement, and a leaving handler that has such a client's request cannot end before it.
        """
        differs = self._altered.poll()
        if self.under_way:
            if differs:
                self._publish_altered()
        elif self._altered.is_pending:
            self._begin_altered()
        if self._reloads and not self.under_way:
            self._begin_reload()
        if self._more_handlers and not self.under_way:
            self._begin_step()
        self._altered.acknowledge()
        if self._steps is not None and next(self._steps, _DONE) is _DONE:
            self._steps, self.under_way = None, ""

    def _publish_altered(self) -> None:
        """Publish altered settings now. Their resizes and replacements begin after the present change."""
        try:
            changes, security, _ = self._checked(self._diff.altered)
        except _REFUSALS as error:
            log.debug("altered settings cannot be applied yet: %s", error)
        else:
            self._publish(changes, security)

    def _begin_altered(self) -> None:
        self._altered.is_pending = False
        try:
            # The rule of one step was checked before the coordinator recorded the change.
            self._begin("altered by clients", self._diff.altered, [])
        except _REFUSALS as error:
            log.error(_NOT_APPLIED, error)

    def _begin_reload(self) -> None:
        asked, self._reloads = self._reloads, []
        self._notifier.reloading()
        try:
            self._begin("reload", self._diff.reread, asked, obeys_rule=True)
        except _REFUSALS as error:
            level = logging.WARNING if isinstance(error, NoFile) else logging.ERROR
            log.log(level, "reload: nothing changes: %s", error)
            self._notifier.ready(f"Serving; the reload changed nothing: {error}")
            for answer in asked:
                answer.give({"error": f"nothing changes: {error}"})

    def _begin_step(self) -> None:
        wanted, self._more_handlers = self._tree.config.num_io_threads + self._more_handlers, 0
        try:
            self.resize(wanted, None)
        except FatalError as error:
            log.error("%s", error)

    def _begin(
        self,
        why: str,
        read: Callable[[BrokerConfig, Altered], Changes],
        answers: list[Later],
        *,
        obeys_rule: bool = False,
    ) -> None:
        """Publish the changes that `read` returns, then begin the resize and replacements that they need.

        `obeys_rule`: a resize must obey Kafka's rule. Raises FatalError, and what `_checked` raises.
        """
        changes, security, resize = self._checked(read)
        if resize is not None and obeys_rule:
            resize.check()
        # Commands are served while processes acknowledge: from here on they find a change under way.
        self.under_way = why
        if changes.names:
            self._publish(changes, security)
        self._altered.is_pending = False
        changes.log(why)  # after all follow them
        self._steps = self._follow(changes, resize, answers)

    def _checked(
        self, read: Callable[[BrokerConfig, Altered], Changes]
    ) -> tuple[Changes, dict[int, ListenerSecurity], Resize | None]:
        """Check a new configuration; return its changes, changed security by listener number, and any resize.

        Nothing is changed yet. Raises ReloadError, SecurityError, FatalError.
        """
        config = self._tree.config
        try:
            changes = read(config, self._altered.now)
            if problem := self._listeners.role_problem(changes.config):
                raise ReloadError(problem)
            security = self._listeners.changed_security(changes.config)
        except _REFUSALS:
            raise
        except Exception as error:
            # A file that cannot be checked must not end a running broker.
            log.exception("the check of the configuration fails")
            raise ReloadError(f"the check of the configuration fails: {error}") from error
        resize = Resize(config, changes.handlers, changes.processors) if changes.resizes else None
        return changes, security, resize

    def _publish(self, changes: Changes, security: dict[int, ListenerSecurity]) -> None:
        self._listeners.follow(changes.config, security, self._tree)
        publish(changes.encoded, self._tree)
        warn_of_audit_log(changes.config)

    # ---- the steps

    def _follow(self, changes: Changes, resize: Resize | None, answers: list[Later]) -> Iterator[None]:
        """Resize and replace workers as the published changes require, then answer the requests."""
        error = ""
        replaced: list[str] = []
        if resize is not None:
            yield from self._resize(resize, Later())
            error = resize.error
        if changes.replaces_handlers:
            replacement = Replacement.of_all(self._tree)
            yield from replacement.steps(self._tree, new_handler)
            error, replaced = error or replacement.error, replacement.replaced
        if not error:
            self._diff.done(changes)
        for answer in answers:
            answer.give(changes.result(replaced, error))
        self._notifier.ready(f"Serving on {', '.join(map(str, self._listeners.now))}")

    def _resize(self, resize: Resize, answer: Later) -> Iterator[None]:
        yield from resize.steps(self._tree, new_handler, self._listeners.processor)
        config = resize.applied_to(self._tree.config)
        self._listeners.follow(config, {}, self._tree)
        publish(settings.encode(config), self._tree)
        answer.give(resize.result)


def warn_of_audit_log(config: BrokerConfig) -> None:
    """Create the audit log's file. If it cannot be written, log a warning: the broker serves without it."""
    if problem := audit_log.problem(config):
        log.warning("%s", problem)
