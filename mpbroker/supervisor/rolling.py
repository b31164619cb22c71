"""Replacing handlers one after the other while the broker runs.

First one more handler comes, so that there is never one less to take requests, and so that a reason why new
handlers do not start shows before an old one leaves. Then each in turn is given nothing new, finishes what it
has and leaves, as in a resize, and a successor takes its place. At last the additional one leaves again. The
handler of the control plane has no place beside it: its requests wait until its successor is there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from mpbroker.ipc import topology
from mpbroker.supervisor.child import Child
from mpbroker.supervisor.tree import Tree

log = logging.getLogger("mpbroker.supervisor")


class Roll:
    """One replacement of the handlers `roles`. `spare` is a free place, or None.

    Call `go_on` each time that something has happened in the tree.
    """

    def __init__(self, roles: Iterable[int], spare: int | None) -> None:
        self.error = ""
        self.replaced: list[str] = []
        self._waiting = deque(roles)
        self._spare = spare
        self._coming = self._leaving = -1
        self._left: Child | None = None
        self._begun = False

    def go_on(self, tree: Tree, new_handler: Callable[[int], Child]) -> bool:
        """Take the replacement further. Return whether it is done."""
        if not self._begun:
            self._begun = True
            log.info("replacing %s", ", ".join(topology.name_of(role) for role in self._waiting))
            self._add_spare(tree, new_handler)
        while self._is_settled(tree):
            if self._left is not None:
                self._succeed(tree, self._left)
            elif self._waiting:
                self._retire(tree, self._waiting.popleft())
            elif self._spare is not None:
                self._retire(tree, self._spare)
                self._spare = self._left = None
            else:
                return True
        return False

    def _add_spare(self, tree: Tree, new_handler: Callable[[int], Child]) -> None:
        if self._spare is None:
            return
        try:
            tree.launch(new_handler(self._spare))
        except OSError as error:
            self._give_up(tree, str(error))
        else:
            self._coming = self._spare

    def _is_settled(self, tree: Tree) -> bool:
        """Return whether the handler under way has come, or gone."""
        if self._leaving in tree.children:
            return False
        self._leaving = -1
        child = tree.children.get(self._coming)
        if child is None or child.serves:
            self._coming = -1
        elif self._coming == self._spare and child.restarts.young_deaths:
            self._give_up(tree, "a new handler does not start; its messages above say why")
        return self._leaving < 0 and self._coming < 0

    def _retire(self, tree: Tree, role: int) -> None:
        self._left = tree.children.get(role)
        if self._left is not None:
            self._leaving = role
            tree.retire([role])

    def _succeed(self, tree: Tree, child: Child) -> None:
        self._left = None
        tree.relaunch(child)
        self._coming = child.role
        self.replaced.append(child.name)

    def _give_up(self, tree: Tree, why: str) -> None:
        """End the replacement: the serving handlers go on with what they were started with."""
        self.error = why
        log.error("no handler is replaced: %s", why)
        self._waiting.clear()
        self._coming = -1
        if self._spare in tree.children:
            assert self._spare is not None
            self._retire(tree, self._spare)
        self._spare = self._left = None
