"""The supervisor's part of a listener that comes or goes: all of it, or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.ipc import topology
from mpbroker.ipc.listeners import ListenerCount, ListenerState
from mpbroker.ipc.topology import SharedMemory
from mpbroker.network.acceptor import listener_orders
from mpbroker.network.acceptor.listener_orders import AddListener, Orders, RemoveListener
from mpbroker.startup import sockets
from mpbroker.supervisor.listeners import Listeners

pytestmark = pytest.mark.usefixtures("tidy")
HOST = "127.0.0.1"


class World:
    """The listeners of a broker, and the acceptor's end of what it is told."""

    def __init__(self, memory: SharedMemory) -> None:
        fd, first = sockets.bind(Listener("PLAINTEXT", "PLAINTEXT", HOST, 0), (), BrokerConfig())
        config = BrokerConfig(listeners=(first,))
        self.listeners = Listeners(config, [fd], memory, {})
        self.tree: Any = SimpleNamespace(children={}, config=config)
        self.acceptor = Orders(self.listeners.orders[topology.ACCEPTOR][1], 0)

    def add(self, text: str) -> None:
        self.listeners.add(text, "PLAINTEXT", None, self.tree)

    @property
    def names(self) -> list[str]:
        return [str(one["listener"]).partition("://")[0] for one in self.listeners.describe()]

    def close(self) -> None:
        self.listeners.close()
        pairs = (*self.listeners.handovers.values(), *self.listeners.orders.values())
        for end in (end for pair in pairs for end in pair):
            end.close()


@pytest.fixture
def world(memory: SharedMemory) -> Iterator[World]:
    with contextlib.closing(World(memory)) as made:
        yield made


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> Callable[[], pytest.MonkeyPatch]:
    """From now on, as while too many descriptors are on their way."""

    def refuse(*_: object) -> int:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    def begin() -> pytest.MonkeyPatch:
        monkeypatch.setattr(listener_orders, "send_add", refuse)
        monkeypatch.setattr(listener_orders, "send_remove", refuse)
        return monkeypatch

    return begin


@pytest.mark.parametrize("text", [f"MORE://{HOST}:0", "MORE://unix:{}/more"])
def test_one_that_nobody_can_be_told_of_is_not_there(
    world: World, no_room: Callable[[], pytest.MonkeyPatch], tmp_path: Path, text: str
) -> None:
    text = text.format(tmp_path)
    before, descriptors = world.listeners.config, psutil.Process().num_fds()
    undo = no_room()
    for _ in range(3):
        with pytest.raises(OSError, match="Too many references"):
            world.add(text)
    assert (world.names, world.listeners.changes) == (["PLAINTEXT"], [])
    assert world.listeners.config is world.tree.config is before
    assert psutil.Process().num_fds() == descriptors
    assert not (tmp_path / "more").exists()
    undo.undo()
    world.add(text)
    told = world.acceptor.receive()
    assert isinstance(told, AddListener)
    assert (told.number, told.listener.name, world.names) == (1, "MORE", ["PLAINTEXT", "MORE"])
    told.sock.close()
    world.listeners.memory.listener_counts(1).set(ListenerCount.STATE, ListenerState.ACCEPTING)
    world.listeners.advance(world.tree)
    assert world.listeners.changes == []


def test_one_whose_end_nobody_can_be_told_of_stays(
    world: World, no_room: Callable[[], pytest.MonkeyPatch]
) -> None:
    world.add(f"MORE://{HOST}:0")
    told = world.acceptor.receive()
    assert isinstance(told, AddListener)
    told.sock.close()
    port = world.listeners.config.listeners[1].port
    undo = no_room()
    with pytest.raises(OSError, match="Too many references"):
        world.listeners.remove("MORE", world.tree)
    assert world.names == ["PLAINTEXT", "MORE"]
    with socket.create_connection((HOST, port)):
        pass
    undo.undo()
    world.listeners.remove("MORE", world.tree)
    assert world.acceptor.receive() == RemoveListener(1)
    assert world.names == ["PLAINTEXT"]
