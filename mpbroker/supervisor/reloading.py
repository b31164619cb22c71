"""One reload on its way: the new configuration goes to all processes, then numbers of workers change, then
handlers are replaced.

Whoever is forked from the first step on has the new configuration already, whatever dies meanwhile.
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

log = logging.getLogger("mpbroker")

# The log workers first: what handlers accept by new defaults of topics, they have to know.
_FOLLOWERS = (
    topology.LOG_WORKERS,
    (
        *(topology.COORDINATOR, topology.CLEANER, topology.SCRUBBER),
        *(*topology.ACCEPTORS, *topology.PROCESSORS, *topology.HANDLERS),
    ),
)


def publish(config: bytes, tree: Tree) -> None:
    """`config`: as settings.encode made it. Returns when all who run follow it, or have died."""
    settings.write(tree.memory.private.block("settings"), config)
    for roles in _FOLLOWERS:
        tree.order_all(roles, SETTINGS_CHANGED, topology.SUPERVISOR)


def tell(changes: Changes, why: str) -> None:
    """`why`: who has asked for it."""
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
    """`answers`: who has asked for it, and hears when it is done."""

    changes: Changes
    answers: list[Later]
    error: str = ""
    _roll: Roll | None = field(default=None)

    def go_on(self, tree: Tree, config: BrokerConfig, new_handler: Callable[[int], Child]) -> bool:
        """Whether it is done. `config` has the numbers of workers there are."""
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
    """All handlers there are. One more, if there is a place for it, comes first."""
    there = config.num_io_threads
    roles = [topology.handler(number) for number in range(there)]
    if topology.CONTROL_HANDLER in tree.children:
        roles.append(topology.CONTROL_HANDLER)
    return Roll(roles, topology.handler(there) if there < topology.MAX_HANDLERS else None)
