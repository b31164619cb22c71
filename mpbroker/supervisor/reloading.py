"""One reload under way: all processes get the new configuration, workers are resized, handlers are replaced.

A process forked after the first step has the new configuration already, whatever dies meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc import settings, topology
from mpbroker.ipc.process import SETTINGS_CHANGED
from mpbroker.supervisor.child import Child
from mpbroker.supervisor.control import Later
from mpbroker.supervisor.reload import Changes
from mpbroker.supervisor.rolling import Roll
from mpbroker.supervisor.tree import Tree

log = logging.getLogger("mpbroker.supervisor")

# The log workers come first: they have to know the defaults of topics by which handlers accept.
_FOLLOWERS = (
    topology.LOG_WORKERS,
    (
        *(topology.COORDINATOR, topology.CLEANER, topology.SCRUBBER),
        *(*topology.ACCEPTORS, *topology.PROCESSORS, *topology.HANDLERS),
    ),
)


def publish(config: bytes, tree: Tree) -> None:
    """Publish a configuration that settings.encode made.

    Return when all running processes follow it or have died, but for the exporter: it reads the present one
    whenever it looks, and nobody may wait for who only watches.
    """
    settings.write(tree.memory.private.block("settings"), config)
    tree.tell(topology.EXPORTER, SETTINGS_CHANGED, topology.SUPERVISOR)
    for roles in _FOLLOWERS:
        tree.order_all(roles, SETTINGS_CHANGED, topology.SUPERVISOR)


def tell(changes: Changes, why: str) -> None:
    """Log the changes. `why`: who or what asked for them."""
    for warning in _warnings(changes):
        log.warning("%s: %s", why, warning)
    if changes.names:
        log.info("%s: changed %s", why, ", ".join(changes.names))
    elif not changes.later:
        log.info("%s: the configuration is as it was", why)


def _warnings(changes: Changes) -> list[str]:
    later = [f"{key} cannot change while the broker runs: {what}" for key, what in changes.later.items()]
    return [*changes.warnings, *later]


@dataclass
class Reloading:
    """The replacement of handlers for a reload. `answers` are given when it is done."""

    changes: Changes
    answers: list[Later]
    error: str = ""
    _roll: Roll | None = field(default=None)

    def go_on(self, tree: Tree, config: BrokerConfig, new_handler: Callable[[int], Child]) -> bool:
        """Take the reload further; return whether it is done. `config` has the present numbers of workers."""
        if not self.changes.replaces_handlers:
            return True
        if self._roll is None:
            self._roll = _roll(tree, config)
        if not self._roll.go_on(tree, new_handler):
            return False
        self.error = self.error or self._roll.error
        return True

    def give(self) -> None:
        for answer in self.answers:
            answer.give(self._result)

    @property
    def _result(self) -> dict[str, Any]:
        if self.error:
            return {"error": f"the settings changed, but not for all that runs: {self.error}"}
        return {
            "changed": self.changes.names,
            "at_next_start": list(self.changes.later),
            "replaced": self._roll.replaced if self._roll is not None else [],
            "warnings": _warnings(self.changes),
        }


def _roll(tree: Tree, config: BrokerConfig) -> Roll:
    """Return the replacement of all handlers, with a spare one first if there is a place for it."""
    there = config.num_io_threads
    roles = [topology.handler(number) for number in range(there)]
    if topology.CONTROL_HANDLER in tree.children:
        roles.append(topology.CONTROL_HANDLER)
    return Roll(roles, topology.handler(there) if there < topology.MAX_HANDLERS else None)
