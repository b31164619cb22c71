"""The listening sockets and their acceptors; listeners that are added and removed while the broker runs.

The supervisor binds all sockets before the first fork and keeps them, so that no backlog is lost when an
acceptor dies. The order of changes is Kafka's (SocketServer.addListeners, removeListeners). A removed
listener first loses its limits and socket, then its connections. All processes know an added listener before
it accepts.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import structs

from mpbroker.config import listeners
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import MAX_LISTENERS, Listener
from mpbroker.ipc import topology
from mpbroker.ipc.listeners import AddedListener, ListenerCount, ListenerState
from mpbroker.ipc.process import LISTENER_REMOVED, FatalError, ProcessContext
from mpbroker.ipc.topology import SharedMemory
from mpbroker.network import handover
from mpbroker.network.acceptor import listener_orders
from mpbroker.security.listener import ListenerSecurity, SecurityError, security_of_added, settings_of
from mpbroker.startup import sockets
from mpbroker.supervisor import roles
from mpbroker.supervisor.child import Child
from mpbroker.supervisor.control import Later
from mpbroker.supervisor.tree import Tree

log = logging.getLogger("mpbroker.supervisor")


@dataclass
class _Change:
    """A listener that is being added (`comes` is True) or removed. `answer` is sent after the change."""

    number: int
    listener: Listener
    comes: bool
    acceptor_life: int
    since: float = field(default_factory=time.monotonic)
    answer: Later = field(default_factory=Later)


class Listeners:
    """All listeners of a broker by number. Children that are forked later get `config`, kept up to date."""

    def __init__(
        self,
        config: BrokerConfig,
        fds: list[int],
        memory: SharedMemory,
        security: dict[int, ListenerSecurity],
        inherited: Set[str] = frozenset(),
    ) -> None:
        self.config = config
        self.security = security
        self.fds = dict(enumerate(fds))
        # Paths of Unix-domain sockets that were made here, not by the service manager.
        self.own_paths = {n for n in self.fds if config.listeners[n].name not in inherited}
        self.memory = memory
        self.sequence = 0
        self.changes: list[_Change] = []
        self.handovers = {role: _pair() for role in topology.PROCESSORS}
        self.orders = {role: _pair() for role in topology.ACCEPTORS}

    # ---- children

    @property
    def acceptors(self) -> tuple[int, ...]:
        """Return the roles of the acceptors in the order in which Kafka starts them: control plane first."""
        if self.config.control_plane is None:
            return (topology.ACCEPTOR,)
        return (topology.CONTROL_ACCEPTOR, topology.ACCEPTOR)

    def of_acceptor(self, role: int) -> list[int]:
        """Return the numbers of the listeners that an acceptor serves."""
        control = self.config.control_plane_listener_name
        is_control = role == topology.CONTROL_ACCEPTOR
        return [n for n in self.fds if (self.config.listeners[n].name == control) == is_control]

    def names_of(self, role: int) -> str:
        """Return the names of the listeners of a role's plane, for the process title, separated by commas."""
        plane = topology.CONTROL_ACCEPTOR if topology.is_control_plane(role) else topology.ACCEPTOR
        return ",".join(self.config.listeners[n].name for n in self.of_acceptor(plane))

    def acceptor(self, role: int) -> Child:
        ends = {r: a.fileno() for r, (a, _) in self.handovers.items() if topology.acceptor_of(r) == role}
        orders = self.orders[role][1].fileno()

        def main(context: ProcessContext) -> int:
            from mpbroker.network.acceptor import acceptor

            return acceptor.run(
                context,
                [
                    (n, self.config.listeners[n], socket.socket(fileno=self.fds[n]))
                    for n in self.of_acceptor(role)
                ],
                {r: socket.socket(fileno=fd) for r, fd in ends.items()},
                listener_orders.Orders(socket.socket(fileno=orders), self.sequence),
            )

        def fds() -> tuple[int, ...]:
            return (*(self.fds[n] for n in self.of_acceptor(role)), *ends.values(), orders)

        return Child(role, main, fds, about=partial(self.names_of, role))

    def processor(self, role: int) -> Child:
        fd = self.handovers[role][1].fileno()

        def main(context: ProcessContext) -> int:
            from mpbroker.network.processor import processor

            return processor.run(
                context, socket.socket(fileno=fd), self.security, roles.served(context.config)
            )

        return Child(role, main, (fd,), about=partial(self.names_of, role))

    def listen(self) -> None:
        """Listen on all sockets. The processes that serve clients must be ready. Raises FatalError."""
        for number, fd in self.fds.items():
            sockets.listen(fd, self.config.listeners[number], self.config)

    def abandon(self, role: int) -> None:
        """Close the connections that were on the way to a processor that has left without a successor."""
        if not topology.is_processor(role):
            return
        inbox = self.handovers[role][1]
        inbox.setblocking(False)
        while received := handover.receive(inbox):
            for fd in received[1]:
                os.close(fd)
        self.memory.connections(role).abandon()

    # ---- changes

    def add(self, text: str, protocol: str | None, advertised: str | None, tree: Tree) -> Later:
        """Begin to add a listener. If this raises FatalError, ValueError or OSError, nothing is added."""
        config = self.config
        number = len(config.listeners)
        if number == MAX_LISTENERS:
            raise FatalError(f"{MAX_LISTENERS} listeners were added since the start; restart the broker")
        added, advertised_as, protocols = self._parse(text, protocol, advertised)
        try:
            security = None if added.protocol == "PLAINTEXT" else security_of_added(added, config)
        except SecurityError as error:
            raise FatalError(str(error)) from error
        fd, added = sockets.bind(added, (*self.now, added), config)
        try:
            self.memory.listeners().put(number, AddedListener(added, advertised_as))
            self.sequence += 1
            listener_orders.send_add(self.orders[topology.ACCEPTOR][0], self.sequence, number, added, fd)
        except (ValueError, OSError):
            # No process has received the listener: the next one gets its number.
            os.close(fd)
            sockets.remove_path(added)
            raise
        # A removed listener of this name may have been advertised elsewhere.
        others = tuple(one for one in config.advertised_listeners or () if one.name != added.name)
        advertised_listeners = (*others, advertised_as) if advertised_as is not None else others
        if security is not None:
            self.security[number] = security
        self.fds[number] = fd
        self.own_paths.add(number)
        self._set_config(
            tree,
            structs.replace(
                config,
                listeners=(*config.listeners, added),
                listener_security_protocol_map=protocols,
                advertised_listeners=advertised_listeners or None,
            ),
        )
        return self._begin(number, added, comes=True, tree=tree)

    @property
    def now(self) -> list[Listener]:
        """Return the present listeners, without those that were removed."""
        return [self.config.listeners[n] for n in self.fds]

    def _parse(
        self, text: str, protocol: str | None, advertised: str | None
    ) -> tuple[Listener, Listener | None, dict[str, str]]:
        """Return the listener, its advertised listener or None, and the protocol map with the listener.

        Raises FatalError, ValueError.
        """
        name = text.partition("://")[0].strip().upper()
        protocols = dict(self.config.listener_security_protocol_map)
        if protocol is not None:
            if protocols.get(name, protocol.upper()) != protocol.upper():
                raise FatalError(f"listener.security.protocol.map has {name}:{protocols[name]}")
            protocols |= listeners.parse_protocol_map(f"{name}:{protocol}")
        elif "://" in text and name not in protocols:
            raise FatalError(
                f"listener {name} has no security protocol: give --protocol PROTOCOL, or name it in "
                "listener.security.protocol.map"
            )
        (added,) = listeners.parse_listeners(text, protocols)
        listeners.check_all((*self.now, added))
        advertised_as = None
        if advertised is not None:
            text = f"{name}://{advertised}"
            (advertised_as,) = listeners.parse_listeners(text, protocols, unique_ports=False)
        return added, advertised_as, protocols

    def remove(self, name: str, tree: Tree) -> Later:
        """Begin to remove a listener. If this raises FatalError or OSError, nothing is removed."""
        name = name.strip().upper()
        found = [n for n in self.fds if self.config.listeners[n].name == name]
        if not found:
            names = ", ".join(self.config.listeners[n].name for n in self.fds)
            raise FatalError(f"there is no listener {name}; there are {names}")
        special = (
            self.config.inter_broker_listener_name,
            self.config.control_plane_listener_name,
            *self.config.admin_listener_names,
        )
        if name in special:
            raise FatalError(
                f"listener {name} cannot be removed: the configuration gives it a role of its own"
            )
        if self.of_acceptor(topology.ACCEPTOR) == found:
            raise FatalError(f"listener {name} is the last one: without it no client could connect")
        (number,) = found
        self.sequence += 1
        listener_orders.send_remove(self.orders[topology.ACCEPTOR][0], self.sequence, number)
        fd = self.fds.pop(number)
        self.security.pop(number, None)
        listener = self.config.listeners[number]
        os.close(fd)
        self._remove_path(number)
        return self._begin(number, listener, comes=False, tree=tree)

    def changed_security(self, config: BrokerConfig) -> dict[int, ListenerSecurity]:
        """Return, by number, the new security of those listeners whose settings differ in `config`.

        Raises SecurityError.
        """
        served = {n: self.config.listeners[n] for n in self.security}
        return {
            number: security_of_added(listener, config)
            for number, listener in served.items()
            if settings_of(listener, config) != settings_of(listener, self.config)
        }

    def role_problem(self, config: BrokerConfig) -> str | None:
        """Return a text if `config` has a removed listener in admin.listener.names, otherwise None."""
        served = {one.name for one in self.now}
        missing = [name for name in config.admin_listener_names if name not in served]
        if not missing:
            return None
        there = ", ".join(sorted(served))
        return f"admin.listener.names has {missing[0]}, a listener that was removed; there are {there}"

    def follow(self, config: BrokerConfig, security: dict[int, ListenerSecurity], tree: Tree) -> None:
        """Take over a new configuration and the changed `security`, for children forked later.

        Running processes compute their security from the published configuration.
        """
        self.security |= security
        self._set_config(tree, config)

    def _set_config(self, tree: Tree, config: BrokerConfig) -> None:
        self.config = tree.config = config

    def _begin(self, number: int, listener: Listener, *, comes: bool, tree: Tree) -> Later:
        child = tree.children.get(topology.ACCEPTOR)
        change = _Change(number, listener, comes, child.incarnation if child is not None else 0)
        self.changes.append(change)
        return change.answer

    def advance(self, tree: Tree) -> None:
        """Answer the changes of listeners that their acceptor has carried out, and forget these changes.

        The acceptor's death completes a removal, too: its successor does not serve the removed listener.
        """
        for change in list(self.changes):
            state = self.memory.listener_counts(change.number).get(ListenerCount.STATE)
            if change.comes:
                if state != ListenerState.ACCEPTING:
                    continue
                log.info("listener %s was added", change.listener)
            else:
                child = tree.children.get(topology.ACCEPTOR)
                same = child is not None and child.incarnation == change.acceptor_life and child.pid
                if state != ListenerState.REMOVED and same:
                    continue
                self.memory.listener_counts(change.number).set(ListenerCount.STATE, ListenerState.REMOVED)
                tree.order_all(topology.PROCESSORS, LISTENER_REMOVED, change.number)
                log.info("listener %s was removed, its connections are closed", change.listener)
            self.changes.remove(change)
            change.answer.give({"listener": str(change.listener)})

    # ---- descriptions

    def describe(self) -> list[dict[str, Any]]:
        """Return for each listener its address, protocol, advertised address, plane and counts."""
        advertised = {one.name: one for one in self.config.advertised_listeners or ()}
        return [self._describe(n, advertised.get(self.config.listeners[n].name)) for n in self.fds]

    def _describe(self, number: int, advertised: Listener | None) -> dict[str, Any]:
        listener = self.config.listeners[number]
        counts = self.memory.listener_counts(number)
        shown = str(advertised or listener)
        if advertised is None and listener.is_wildcard:
            shown = f"{listener.name}://<the address that the client connected to>:{listener.port}"
        return {
            "listener": str(listener),
            "protocol": listener.protocol,
            "advertised": shown,
            "plane": "control" if listener.name == self.config.control_plane_listener_name else "data",
            "connections": counts.get(ListenerCount.OPEN),
            "accepted": counts.get(ListenerCount.ACCEPTED),
            "refused_per_ip": counts.get(ListenerCount.REFUSED_PER_IP),
            "throttled": counts.get(ListenerCount.THROTTLED),
            "throttled_per_ip": counts.get(ListenerCount.THROTTLED_IP),
            "blocked_ms": counts.get(ListenerCount.BLOCKED_NS) // 1_000_000,
        }

    def close(self) -> None:
        for number, fd in self.fds.items():
            os.close(fd)
            self._remove_path(number)

    def _remove_path(self, number: int) -> None:
        if number in self.own_paths:
            sockets.remove_path(self.config.listeners[number])


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
