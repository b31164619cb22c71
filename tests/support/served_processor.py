"""A whole `Processor` around the rig's memory, taken one step at a time; the acceptor's end is the test's."""

from __future__ import annotations

import socket

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.listeners import Listener
from mpbroker.ipc import topology
from mpbroker.ipc.process import ProcessContext, State
from mpbroker.network import handover
from mpbroker.network.processor.processor import Processor
from tests.support.processor_rig import PROCESSOR, Rig

ADDRESS = socket.inet_aton("127.0.0.1")
INTERNAL = 1


class Served(Rig):
    """It has two listeners."""

    def __init__(self, handlers: int = 1) -> None:
        """All of them are alive, the first one is ready."""
        super().__init__(handlers)
        for number in range(handlers):
            self.memory.words("roles").store(topology.handler(number), 1)
        self.memory.words("states").store(topology.handler(0), State.READY)
        listeners = tuple(Listener(name, "PLAINTEXT", "127.0.0.1", 0) for name in ("PLAINTEXT", "INTERNAL"))
        config = BrokerConfig(listeners=listeners, connections_max_idle_ms=3_600_000)
        self.processor = Processor(ProcessContext(PROCESSOR, self.memory, config), self.handover, {}, ())
        self.turn = self.processor.turn

    def connect(self) -> socket.socket:
        """Hand over a connection as the acceptor does, on the second listener."""
        client = self.hand(INTERNAL)
        self.step()
        return client

    def hand(self, listener: int = 0) -> socket.socket:
        served, client = self.pair()
        self.hand_over(served, listener)
        return client

    def hand_over(self, served: socket.socket, listener: int) -> None:
        ticket = self.processor.ledger.hand(listener, ADDRESS)
        message = handover.pack(ticket, listener, ADDRESS)
        socket.send_fds(self._acceptor_end, [message], [served.fileno()])
        served.close()

    def step(self, turns: int = 3) -> None:
        for _ in range(turns):
            self.processor._work(0)

    def id_of(self, client: socket.socket) -> str:
        """The beginning of the connection's id."""
        (here, here_port), (there, there_port) = client.getpeername(), client.getsockname()
        return f"{here}:{here_port}-{there}:{there_port}-0-"
