"""Describes commands of `mpbroker ctl` that change something, for the audit log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.pointer import CONTROL_NAME
from mpbroker.security.audit import Audit, Event, Kind, Names
from mpbroker.security.audit_log import AuditLog
from mpbroker.supervisor.control import Answer, Command, Peer
from shm.clock import monotonic_ms

# Commands that change something; others do if they turn something on or off.
CHANGES: Final = ("resize", "reload", "faults", "listener-add", "listener-remove", "pause")


class CommandsAudit:
    """The supervisor's audit. `config` returns the settings of now."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._log = AuditLog(config)
        self._audit = Audit(config, self._log.write)

    def tell(self, peer: Peer, command: Command, answer: Answer) -> None:
        """Tell a command and what came of it, unless it only looked at something."""
        if command.command in CHANGES or command.on is not None or command.level is not None:
            self._audit.tell(monotonic_ms(), described(peer, command, answer))
            # A child that is forked later must not hold the file when it is rotated and deleted.
            self._log.close()

    def follow(self) -> None:
        """Sum up each minute that is over. Call it now and then."""
        self._audit.follow(monotonic_ms())
        self._log.close()

    def close(self) -> None:
        """Sum up the minutes that are not over, before the process ends."""
        self._audit.close()
        self._log.close()


def described(peer: Peer, command: Command, answer: Answer) -> Event:
    """Describe a command: the user and the process that sent it, and its result."""
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
