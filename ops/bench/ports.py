"""Hands out free TCP ports, each once, and none that a concurrent process may hand out.

A broker under test is down for a while and comes back on its port, so a port without a listener may
still be in use. Processes that take their ports from here share them out in blocks. A block belongs to
the process that holds the abstract Unix socket of its number, and is free again when that process ends.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

HOST = "127.0.0.1"
LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST_PORT = 10_000
BLOCK_PORTS = 128


class NoPortError(Exception):
    """All blocks belong to processes that run."""


class Ports:
    """Ports of this process, below the range from which the kernel gives clients their ports.

    While a broker with a port of that range is down, a client that tries to reach it could get the same port
    for its own end, and be connected with itself. If no ports are free below the range, the kernel chooses.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._claims: list[socket.socket] = []
        self._mine: list[int] = []
        self._given: set[int] = set()

    def take(self) -> int:
        """Return a port without a listener. Raises NoPortError."""
        if self._pid != os.getpid():
            # A fork has what its parent claimed.
            self.__init__()  # type: ignore[misc]
        for port in self._candidates():
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind((HOST, port))
                found = int(probe.getsockname()[1])
                if found not in self._given:
                    self._given.add(found)
                    return found
        raise NoPortError(f"no block of {BLOCK_PORTS} ports is free: end other runs of tests")

    def _candidates(self) -> Iterator[int]:
        end = int(LOCAL_PORTS.read_text().split()[0]) if LOCAL_PORTS.exists() else 0
        if end <= 2 * LOWEST_PORT:
            while True:
                yield 0
        while self._mine or self._claim(end):
            yield self._mine.pop()

    def _claim(self, end: int) -> bool:
        """Claim a random free block of ports below `end`. Return False if no block is free."""
        blocks = (end - LOWEST_PORT) // BLOCK_PORTS
        start = random.SystemRandom().randrange(blocks)
        for number in (*range(start, blocks), *range(start)):
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0mpbroker-test-ports-{number}")
            except OSError:
                claim.close()
                continue
            self._claims.append(claim)
            first = LOWEST_PORT + number * BLOCK_PORTS
            self._mine = list(range(first, first + BLOCK_PORTS))
            random.SystemRandom().shuffle(self._mine)
            return True
        return False


_ports = Ports()


def free_port() -> int:
    """Return a port for a server on this host. Raises NoPortError."""
    return _ports.take()
