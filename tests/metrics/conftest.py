"""A broker, and a client that sends single frames and knows what it did."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.metrics import catalogue, snapshot
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import Message
from ops.bench.brokers import Mpbroker
from tests.support.polling import PATIENCE_S

_SIZE = struct.Struct(">i")
TIMEOUT_S = PATIENCE_S


class Client:
    """One connection; `call` waits for the answer, `send` does not."""

    def __init__(self, broker: Mpbroker, name: str = "metrics-test") -> None:
        self.socket = socket.create_connection(broker.address, timeout=TIMEOUT_S)
        self.name = name
        self._correlations = itertools.count(1)
        self.body_bytes = 0

    def send(self, key: ApiKey, version: int, body: Message) -> int:
        """Returns the bytes of the body."""
        header = RequestHeader(key, version, next(self._correlations), self.name)
        frame = b"".join(encode_request_frame(header, body))
        self.socket.sendall(frame)
        flexible = version >= {ApiKey.PRODUCE: 9, ApiKey.FETCH: 12, ApiKey.CREATE_TOPICS: 5}.get(key, 9)
        return len(frame) - 14 - len(self.name) - flexible

    def receive(self, key: ApiKey, version: int) -> Any:
        (size,) = _SIZE.unpack(self._exactly(4))
        return decode_response_frame(key, version, self._exactly(size))[1]

    def call(self, key: ApiKey, version: int, body: Message) -> Any:
        self.body_bytes += self.send(key, version, body)
        return self.receive(key, version)

    def is_closed(self) -> bool:
        return self.socket.recv(1) == b""

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            assert more, "the broker closed the connection"
            found += more
        return found


class Meter:
    """What the broker's counters say, without asking it."""

    def __init__(self, broker: Mpbroker) -> None:
        self.public = snapshot.attach(broker.runtime_dir / PUBLIC_NAME)

    def take(self) -> snapshot.Snapshot:
        return snapshot.take(self.public)

    def beans(self, *patterns: str) -> dict[str, dict[str, float]]:
        found = catalogue.beans(self.take(), None, catalogue.matcher(list(patterns)))
        return {bean.name: bean.attributes for bean in found}

    def get(self, name: str, attribute: str = "Count") -> float:
        found = self.beans(name)
        return found[name][attribute] if name in found else 0.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    running = Mpbroker(tmp_path_factory.mktemp("broker"), flags=("--processors", "1", "--handlers", "2"))
    try:
        running.start()
        yield running
        assert running.stop() == 0, running.output()
    finally:
        running.kill()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Mpbroker]:
    """One that a test may kill."""
    running = Mpbroker(tmp_path, flags=("--processors", "1", "--handlers", "2"))
    try:
        running.start()
        yield running
    finally:
        running.kill()


@pytest.fixture
def meter(broker: Mpbroker) -> Meter:
    return Meter(broker)


@pytest.fixture
def client(broker: Mpbroker) -> Iterator[Client]:
    made = Client(broker)
    yield made
    made.close()
