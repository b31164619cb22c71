"""Changing the numbers of processors and handlers while the broker runs.

One step goes by Kafka's rule (config.workers.resize_problem). A new worker gets the next higher number. Those
with the highest numbers leave: a leaving worker is given nothing new, finishes what it has, and is fenced
when it is gone. The connections of a leaving processor are closed between two requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.keys import field_name
from mpbroker.config.workers import MAX_HANDLERS, MAX_PROCESSORS, resize_problem
from mpbroker.ipc import topology
from mpbroker.ipc.process import WRONG_CALL, FatalError
from mpbroker.startup import buffers
from mpbroker.supervisor.child import Child
from mpbroker.supervisor.control import Later
from mpbroker.supervisor.tree import Tree

log = logging.getLogger("mpbroker.supervisor")


def check_resize(kind: str, old: int, new: int, most: int) -> None:
    """Refuse a resize against the rule. Raises FatalError, which names the rule."""
    if problem := resize_problem(kind, old, new, most):
        raise FatalError(problem, WRONG_CALL)


@dataclass
class Kind:
    """The present number of workers of a kind, and the number to come."""

    name: str
    before: int
    after: int
    role: Callable[[int], int]

    def __str__(self) -> str:
        return f"resizing {self.name} from {self.before} to {self.after}"

    @property
    def added(self) -> range:
        return range(self.before, self.after)

    @property
    def removed(self) -> range:
        return range(self.after, self.before)


@dataclass
class Resize:
    """One resize under way. Call `go_on` each time that something has happened in the tree."""

    handlers: Kind
    processors: Kind
    answer: Later = field(default_factory=Later)
    error: str = ""
    _begun: bool = False

    @classmethod
    def checked(cls, config: BrokerConfig, handlers: int | None, processors: int | None) -> Resize:
        """Return a resize that obeys the rule of one step. Raises FatalError."""
        resize = cls.of(config, handlers, processors)
        for kind, most in ((resize.handlers, MAX_HANDLERS), (resize.processors, MAX_PROCESSORS)):
            check_resize(kind.name, kind.before, kind.after, most)
        return resize

    @classmethod
    def of(cls, config: BrokerConfig, handlers: int | None, processors: int | None) -> Resize:
        """Return a resize to numbers that are known to be allowed. None keeps a number."""
        old_handlers, old_processors = config.num_io_threads, config.num_network_threads
        new_handlers = old_handlers if handlers is None else handlers
        new_processors = old_processors if processors is None else processors
        return cls(
            Kind("handlers", old_handlers, new_handlers, topology.handler),
            Kind("processors", old_processors, new_processors, topology.processor),
        )

    def __str__(self) -> str:
        return ", ".join(str(kind) for kind in self._changed) or "resizing nothing"

    @property
    def _changed(self) -> list[Kind]:
        return [kind for kind in (self.handlers, self.processors) if kind.before != kind.after]

    @property
    def result(self) -> dict[str, Any]:
        if self.error:
            return {"error": f"{self}: {self.error}; the numbers are as they were"}
        return {"handlers": self.handlers.after, "processors": self.processors.after}

    def applied_to(self, config: BrokerConfig) -> BrokerConfig:
        if self.error:
            return structs.replace(config, resizing_to={})
        there = {"num.io.threads": self.handlers.after, "num.network.threads": self.processors.after}
        # A client may have asked for other numbers meanwhile: they come next.
        others = {key: number for key, number in config.resizing_to.items() if number != there[key]}
        values = {field_name(key): number for key, number in there.items()}
        return structs.replace(config, **values, resizing_to=others)

    def go_on(
        self, tree: Tree, new_handler: Callable[[int], Child], new_processor: Callable[[int], Child]
    ) -> bool:
        """Take the resize further. Return whether it is done."""
        if not self._begun:
            self._begun = True
            # Shrink the limits of the present processors before another comes.
            buffers.give_out(tree.memory, tree.config, max(self.processors.before, self.processors.after))
            try:
                for kind, make in ((self.handlers, new_handler), (self.processors, new_processor)):
                    self._add(tree, kind, make)
            except OSError as error:
                self._give_up(tree, error)
            else:
                for kind in self._changed:
                    tree.retire([kind.role(number) for number in kind.removed])
        if not self._is_done(tree):
            return False
        left = self.processors.before if self.error else self.processors.after
        buffers.give_out(tree.memory, tree.config, left)
        return True

    def _is_done(self, tree: Tree) -> bool:
        if self.error:
            return not any(kind.role(n) in tree.children for kind in self._changed for n in kind.added)
        return all(
            all(self._serves(tree, kind.role(number)) for number in kind.added)
            and not any(kind.role(number) in tree.children for number in kind.removed)
            for kind in self._changed
        )

    @staticmethod
    def _add(tree: Tree, kind: Kind, make: Callable[[int], Child]) -> None:
        if kind.before != kind.after:
            log.info("%s", kind)
        for number in kind.added:
            tree.launch(make(kind.role(number)))

    def _give_up(self, tree: Tree, error: OSError) -> None:
        """Remove the added workers again: the system has no process for one of them."""
        self.error = str(error)
        log.error("%s: %s", self, error)
        added = [kind.role(number) for kind in self._changed for number in kind.added]
        tree.retire([role for role in added if role in tree.children])

    @staticmethod
    def _serves(tree: Tree, role: int) -> bool:
        child = tree.children.get(role)
        return child is not None and child.serves
