"""Connection counts while many clients come and go at once, and any process dies in the middle of it."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading

import pytest

from tests.support.acceptor_tools import (
    Start,
    connect,
    is_answered,
    is_closed,
    kill_and_await,
    listener,
    options,
)
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S, until

# Less than what they would all keep: some are refused.
LIMIT = 20
CHURNERS = 4
KEPT_MOST = 10
# Each dies in the middle of it, twice.
VICTIMS = ("processor 0", "acceptor", "handler 0", "processor 1", "coordinator", "acceptor", "processor 0")
# So many times each client connects between two deaths.
BETWEEN = 30


class Churn(threading.Thread):
    """Connects, sometimes asks, and leaves: politely, with a reset, or only after a while."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__()
        self.port = port
        self.random = random.Random(seed)
        self.ending = threading.Event()
        self.connected = 0

    def run(self) -> None:
        kept: list[socket.socket] = []
        while not self.ending.is_set():
            with contextlib.suppress(OSError):
                self.come(kept)
        for sock in kept:
            sock.close()

    def come(self, kept: list[socket.socket]) -> None:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        kept.append(sock)
        self.connected += 1
        if self.random.random() < 0.3:
            is_answered(sock, within_s=1)
        while len(kept) > self.random.randrange(KEPT_MOST):
            leaving = kept.pop(self.random.randrange(len(kept)))
            if self.random.random() < 0.3:
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaving.close()


@pytest.mark.parametrize("processors", [1, 2])
def test_counts_never_drift(start: Start, processors: int) -> None:
    """Afterwards an address gets exactly as many connections as its limit says: none is counted that is not
    there, and none is there that is not counted.
    """
    settings = options(max_connections_per_ip=LIMIT, max_connections=2 * LIMIT)
    broker = start("--processors", str(processors), *settings)
    churners = [Churn(broker.port, seed) for seed in range(CHURNERS)]
    for churner in churners:
        churner.start()
    try:
        for victim in VICTIMS:
            if victim == "processor 1" and processors == 1:
                continue
            before = [churner.connected for churner in churners]
            until(
                lambda before=before: all(  # type: ignore[misc]
                    churner.connected >= was + BETWEEN for churner, was in zip(churners, before, strict=True)
                ),
                f"each client has connected {BETWEEN} times before the death of {victim}",
            )
            kill_and_await(broker, victim, lambda: None)
    finally:
        for churner in churners:
            churner.ending.set()
        for churner in churners:
            churner.join()
    assert min(churner.connected for churner in churners) > LIMIT, "there was no churn"
    assert listener(broker)["refused_per_ip"] > 0, "nobody was refused"
    eventually(lambda: listener(broker)["connections"] == 0, "nobody is counted")
    with contextlib.ExitStack() as stack:
        for _ in range(LIMIT):
            assert is_answered(stack.enter_context(connect(broker)))
        assert is_closed(stack.enter_context(connect(broker)))
        assert listener(broker)["connections"] == LIMIT
    eventually(lambda: listener(broker)["connections"] == 0, "nobody is counted")
