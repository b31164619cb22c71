"""Writes the console's changes, refused changes and refused tokens to the audit log.

The broker's own lines about these changes name the console; the lines here have the browser's address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.console.changes import (
    AddAcl,
    AddUser,
    AlterTopic,
    Change,
    CreateTopic,
    DeleteGroup,
    DeleteUser,
    RemoveAcl,
    ResetOffsets,
    name_of,
)
from mpbroker.http.server import Scope
from mpbroker.security.audit import EVERY_MS, Audit, Event, Kind, Names
from mpbroker.security.audit_log import AuditLog

LISTENER: Final = "HTTP"
CHANGE: Final = "console change"
TOKEN: Final = "console token"


class ChangesAudit:
    """The console's audit. Its methods run in the event loop. `config` returns the current settings."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._log = AuditLog(config)
        self._audit = Audit(config, self._log.write)
        self._sums_up = False

    def changed(self, scope: Scope, change: Change | None, result: str, why: str = "") -> None:
        """Log a change and its result. `change` is None if the request could not be parsed."""
        action = f"console {name_of(change)}" if change is not None else CHANGE
        names = Names.of((one,) for one in _names(change))
        event = Event(Kind.ADMINISTRATION, "", _peer(scope), LISTENER, action, names, result=result, why=why)
        self._log_event(event)

    def denied(self, scope: Scope, why: str) -> None:
        """Log a refused change: the settings do not allow it, or another site's page asks for it."""
        self._log_event(Event(Kind.REFUSAL, "", _peer(scope), LISTENER, CHANGE, why=why))

    def refused_token(self, scope: Scope, why: str) -> None:
        self._log_event(Event(Kind.REFUSED_LOGIN, "", _peer(scope), LISTENER, TOKEN, why=why))

    def close(self) -> None:
        """Log how many events were left out since the last summary. Call this before the process ends."""
        self._audit.close()
        self._log.close()

    def _log_event(self, event: Event) -> None:
        self._audit.tell(_now_ms(), event)
        if not self._sums_up:
            self._sums_up = True
            asyncio.get_running_loop().call_later(EVERY_MS / 1000, self._sum_up)

    def _sum_up(self) -> None:
        self._sums_up = False
        self._audit.follow(_now_ms())


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "an unknown address"


def _names(change: Change | None) -> Iterator[str]:
    """Yield the names in a change for the audit log, without values, such as passwords."""
    match change:
        case None:
            return
        case ResetOffsets():
            yield change.group
            if change.topic:
                yield change.topic
            if not change.execute:
                yield "(only checked)"
        case CreateTopic() | AlterTopic():
            yield change.topic
            yield from change.settings
        case DeleteGroup():
            yield change.group
        case AddUser() | DeleteUser():
            yield change.user
            yield change.mechanism
        case AddAcl() | RemoveAcl():
            yield ", ".join(f"{name}={value}" for name, value in change.acl.items())
        case _:
            yield change.topic
