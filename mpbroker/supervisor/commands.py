"""The commands of the control socket, in a table with one row each, and their events in the audit log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import health
from mpbroker.ipc.log_levels import LogLevels
from mpbroker.ipc.pointer import CONTROL_NAME
from mpbroker.ipc.process import FatalError
from mpbroker.security.audit import Audit, Event, Kind, Names
from mpbroker.security.audit_log import AuditLog
from mpbroker.supervisor import scrubbing, tiering
from mpbroker.supervisor.changing import Changing
from mpbroker.supervisor.control import Answer, Command, Later, Peer
from mpbroker.supervisor.faulting import Faulting
from mpbroker.supervisor.listeners import Listeners
from mpbroker.supervisor.status import standby, status
from mpbroker.supervisor.tree import Tree
from shm.clock import monotonic_ms

log = logging.getLogger("mpbroker.supervisor")


class Row(NamedTuple):
    """A command. `changes` marks commands that are refused during start and stop, and are audited."""

    run: Callable[[Commands, Command], Answer | Later]
    changes: bool = False


class Commands:
    """Serves commands. Changes are only begun or recorded, so `serve` may run while `tree` waits."""

    def __init__(
        self, tree: Tree, listeners: Listeners, changing: Changing, faulting: Faulting, about: dict[str, Any]
    ) -> None:
        self.serves = False  # the broker neither starts nor stops
        # Asked for: by a backup, and by the tier for a cut.
        self.pauses: list[Later] = []
        self.pauses_for_cuts: list[Later] = []
        self._tree = tree
        self._memory = tree.memory
        self._listeners = listeners
        self._changing = changing
        self._faulting = faulting
        self._about = about  # of `status`: cluster_id, http

    def serve(self, command: Command) -> Answer | Later:
        """Execute a command; return its answer, now or later. Raises FatalError, ValueError, OSError."""
        if (row := self.TABLE.get(command.command)) is None:
            raise ValueError(f"unknown command {command.command!r}; known are {', '.join(self.TABLE)}")
        if row.changes and not self.serves:
            raise FatalError("the broker is starting or stopping: nothing can be changed now")
        return row.run(self, command)

    def _status(self, _: Command) -> Answer:
        children = list(self._tree.children.values())
        listeners = self._listeners.describe()
        return status(self._tree.config, self._memory, children, listeners, **self._about)

    def _ready(self, _: Command) -> Answer:
        problems = health.reasons_not_ready(self._tree.config, self._memory)
        return {"ready": not problems, "problems": problems, **standby(self._tree.config)}

    def _log_requests(self, command: Command) -> Answer:
        levels = LogLevels(self._memory)
        if command.on is not None:
            levels.log_requests(command.on)
            log.info("the request log is %s", "on" if command.on else "off")
        return {"request_log": levels.logs_requests}

    def _log_level(self, command: Command) -> Answer:
        """Set the level of a logger if the command has one; return all levels. Raises ValueError."""
        levels = LogLevels(self._memory)
        if command.level is not None:
            levels.check(command.logger or "", command.level)
            levels.put(command.logger or "", command.level or None)
            log.info("the log level of %s is %s", command.logger, levels.all()[command.logger or ""])
        return {"loggers": levels.all()}

    def _scrub(self, command: Command) -> Answer:
        if command.on:
            scrubbing.begin(self._memory, self._tree.config)
        return scrubbing.report(self._memory, self._tree.config)

    def _remote(self, command: Command) -> Answer:
        if command.on:
            tiering.collect(self._memory, self._tree.config)
        return tiering.report(self._memory, self._tree.config)

    def _add(self, command: Command) -> Later:
        listener = _listener_of(command)
        return self._listeners.add(listener, command.protocol, command.advertised, self._tree)

    def _remove(self, command: Command) -> Later:
        return self._listeners.remove(_listener_of(command), self._tree)

    def _pause(self, _: Command) -> Later:
        self.pauses.append(Later())
        return self.pauses[-1]

    def _pause_for_cut(self, _: Command) -> Later:
        self.pauses_for_cuts.append(Later())
        return self.pauses_for_cuts[-1]

    TABLE: ClassVar[dict[str, Row]] = {
        "status": Row(_status),
        "ready": Row(_ready),
        "listeners": Row(lambda self, _: {"listeners": self._listeners.describe()}),
        "request-log": Row(_log_requests),
        "log-level": Row(_log_level),
        "scrub": Row(_scrub),
        "remote": Row(_remote),
        "resize": Row(lambda self, one: self._changing.resize(one.handlers, one.processors), changes=True),
        "reload": Row(lambda self, _: self._changing.reload(), changes=True),
        "faults": Row(lambda self, one: self._faulting.ask(one.faults, self._tree.config), changes=True),
        "listener-add": Row(_add, changes=True),
        "listener-remove": Row(_remove, changes=True),
        "pause": Row(_pause, changes=True),
        # The broker's own, every few seconds: the audit log is for what people do.
        "pause-for-cut": Row(_pause_for_cut),
    }


def _listener_of(command: Command) -> str:
    if not command.listener:
        raise ValueError(f"{command.command} needs a listener")
    return command.listener


class CommandsAudit:
    """Writes commands to the audit log. `config` returns the broker's present configuration."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._log = AuditLog(config)
        self._audit = Audit(config, self._log.write)

    def record(self, peer: Peer, command: Command, answer: Answer) -> None:
        """Record a command and its result, unless the command only reads."""
        row = Commands.TABLE.get(command.command)
        if (row is not None and row.changes) or command.on is not None or command.level is not None:
            self._audit.tell(monotonic_ms(), described(peer, command, answer))
            # A child that is forked later must not hold the file when it is rotated and deleted.
            self._log.close()

    def follow(self) -> None:
        """Write how many events the audit log's limits left out in each ended minute. Call it regularly."""
        self._audit.follow(monotonic_ms())
        self._log.close()

    def close(self) -> None:
        """Write how many events the limits have left out so far. Call it before the process ends."""
        self._audit.close()
        self._log.close()


def described(peer: Peer, command: Command, answer: Answer) -> Event:
    """Return the audit event of a command: the user and process that sent it, and its result."""
    error = answer.get("error")
    return Event(
        Kind.ADMINISTRATION,
        f"Unix:{peer.user}",
        f"process {peer.process_id}",
        CONTROL_NAME,
        f"ctl {command.command}",
        Names.of((one,) for one in _arguments(command)),
        result="ok" if error is None else "failed",
        why=str(error or ""),
    )


def _arguments(command: Command) -> Iterator[str]:
    if command.on is not None:
        yield "on" if command.on else "off"
    for name in ("handlers", "processors"):
        if (number := getattr(command, name)) is not None:
            yield f"{name} {number}"
    if command.level is not None:
        yield f"{command.logger} {command.level or 'as at start'}"
    for text in (command.listener, command.protocol, command.advertised):
        if text is not None:
            yield text
