"""Sends bad input to a real broker over real sockets and compares what the broker holds before and after.

`python -m tests.network.fuzz --inputs 100000 --seed 1` starts a broker of its own; the suite runs a few
thousand. They come in turn by every kind of listener there is, that of the control plane among them. Nothing
may be left: no process restarted, no file descriptor, arena byte or connection more.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ops.bench import frames
from ops.bench.brokers import ROOT, Mpbroker, running
from tests.chaos.leaks import held
from tests.network.fuzz_inputs import Input, Leaves, inputs
from tests.support.open_broker import Listener, OpenBroker
from tests.support.polling import PATIENCE_S

AT_ONCE = 64
ENDS_WITHIN_S = PATIENCE_S
QUIET_WITHIN_S = PATIENCE_S
LOOK_EVERY_S = 0.05
WARM_UP = 300
RECEIVE_BYTES = 64 << 10
LINGER_ZERO = struct.pack("ii", 1, 0)
FLAGS = ("-o", "auto.create.topics.enable=false")


class Stuck(Exception):
    """The broker neither answers nor closes."""


@dataclass
class Visitor:
    """One connection, on its way through its input."""

    given: Input
    sock: socket.socket
    deadline: float
    left: list[bytes] = field(default_factory=list)

    def send_some(self) -> bool:
        """A piece; whether there is nothing more to send. Raises OSError when the broker has had enough."""
        if self.left:
            piece = self.left[0]
            sent = self.sock.send(piece)
            self.left[0] = piece[sent:]
            if not self.left[0]:
                self.left.pop(0)
        return not self.left


class Driver:
    """Many visitors at once, each of them in order."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners
        self._selector = selectors.DefaultSelector()
        self.visits = 0

    def run(self, given: Iterator[Input]) -> None:
        """Send all inputs. Raises Stuck."""
        more = True
        while more or self._selector.get_map():
            while more and len(self._selector.get_map()) < AT_ONCE:
                one = next(given, None)
                more = one is not None
                if one is not None:
                    self._enter(one)
            for key, events in self._selector.select(LOOK_EVERY_S):
                self._go_on(key.data, events)
            self._look_at_deadlines()

    def _enter(self, given: Input) -> None:
        sock = self._listeners[self.visits % len(self._listeners)].connect()
        left = [piece for piece in given.pieces if piece]
        visitor = Visitor(given, sock, time.monotonic() + ENDS_WITHIN_S, left)
        self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, visitor)
        self.visits += 1

    def _go_on(self, visitor: Visitor, events: int) -> None:
        try:
            if events & selectors.EVENT_READ and not visitor.sock.recv(RECEIVE_BYTES):
                self._leave(visitor)
                return
            if events & selectors.EVENT_WRITE and visitor.send_some():
                self._has_sent_all(visitor)
        except BlockingIOError:
            return
        except OSError:
            # Reset, or closed while we wrote: the broker's right.
            self._leave(visitor)

    def _has_sent_all(self, visitor: Visitor) -> None:
        match visitor.given.leaves:
            case Leaves.POLITELY:
                visitor.sock.shutdown(socket.SHUT_WR)
                self._selector.modify(visitor.sock, selectors.EVENT_READ, visitor)
            case Leaves.AT_ONCE:
                self._leave(visitor)
            case Leaves.WITH_A_RESET:
                visitor.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
                self._leave(visitor)

    def _leave(self, visitor: Visitor) -> None:
        self._selector.unregister(visitor.sock)
        visitor.sock.close()

    def _look_at_deadlines(self) -> None:
        now = time.monotonic()
        for key in [*self._selector.get_map().values()]:
            if now >= key.data.deadline:
                raise Stuck(f"no end within {ENDS_WITHIN_S} s: {key.data.given!r}")


@dataclass(frozen=True)
class Holdings:
    """What a quiet broker has: who runs, since when, and with how many files open; and what is borrowed."""

    processes: Mapping[str, tuple[int, int]]
    files: Mapping[str, int]
    borrowed: Mapping[str, int]


def status(broker: Mpbroker) -> dict[str, Any]:
    command = [sys.executable, "-m", "mpbroker", "ctl", "status", "--json", "--log-dirs", str(broker.log_dir)]
    done = subprocess.run(command, capture_output=True, check=True, env=broker.environment(), cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def holdings(broker: Mpbroker) -> Holdings:
    processes = status(broker)["processes"]
    return Holdings(
        {each["name"]: (each["pid"], each["incarnation"]) for each in processes},
        {each["name"]: psutil.Process(each["pid"]).num_fds() for each in processes},
        held(broker),
    )


def settled(broker: Mpbroker, wanted: Holdings | None = None) -> Holdings:
    """Gives the broker a moment to let go: until it holds nothing, and what it held before."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    with selectors.DefaultSelector() as pause:
        while True:
            found = holdings(broker)
            if not found.borrowed and (wanted is None or found == wanted):
                return found
            if time.monotonic() >= deadline:
                return found
            pause.select(LOOK_EVERY_S)


def differences(before: Holdings, after: Holdings) -> list[str]:
    """Describe what the broker holds that it did not hold before."""
    found = [f"still borrowed: {what}: {count}" for what, count in after.borrowed.items()]
    for name, was in before.processes.items():
        if after.processes.get(name) != was:
            found.append(f"{name} was {was} and is {after.processes.get(name)}")
    for name, files in before.files.items():
        if after.files.get(name, 0) > files:
            found.append(f"{name} had {files} files open and has {after.files.get(name)}")
    return found


def fuzz(broker: OpenBroker, seed: int, count: int) -> list[str]:
    """Return what is wrong afterwards.

    The first inputs are a warm-up: what is made once and kept is no leak.
    """
    driver = Driver(broker.listeners)
    driver.run(inputs(seed + 1, min(count, WARM_UP)))
    before = settled(broker)
    driver.run(inputs(seed, count))
    after = settled(broker, before)
    wrong = differences(before, after)
    return [*wrong, *unanswered(broker)]


# A version of ApiVersions that is not served: the processor answers the others by itself.
FOR_A_HANDLER = frames.Request(frames.frame(frames.API_VERSIONS, 99, b"\0"), 4 + 4)


def unanswered(broker: OpenBroker, within_s: float = ENDS_WITHIN_S) -> list[str]:
    """Name each listener that does not answer any more."""
    found = []
    for listener in broker.listeners:
        with listener.connect() as connection:
            connection.settimeout(within_s)
            try:
                frames.exchange(connection, FOR_A_HANDLER)
            except (OSError, EOFError) as error:
                found.append(f"{listener.name} does not answer any more: {error!r}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        broker = stack.enter_context(running(OpenBroker(Path(directory), flags=FLAGS)))
        assert isinstance(broker, OpenBroker)
        start = time.monotonic()
        wrong = fuzz(broker, arguments.seed, arguments.inputs)
        took = time.monotonic() - start
        output = broker.output()
    print(f"{arguments.inputs} inputs of seed {arguments.seed} in {took:.0f} s: {wrong or 'nothing is left'}")
    if wrong:
        print(output, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
