"""A client that counts what it does, beside the metrics of its broker."""

from __future__ import annotations

import itertools
import socket
from typing import Any

from mpbroker.ipc.pointer import PUBLIC_NAME
from mpbroker.metrics import catalogue, snapshot
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import Message
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.support.polling import PATIENCE_S


class Client:
    """One connection; `call` waits for the answer, `send` does not."""

    def __init__(self, broker: Mpbroker, name: str = "metrics-test") -> None:
        self.socket = socket.create_connection(broker.address, timeout=PATIENCE_S)
        self.name = name
        self._correlations = itertools.count(1)
        self.body_bytes = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, key: ApiKey, version: int, body: Message) -> int:
        """Returns the bytes of the body."""
        header = RequestHeader(key, version, next(self._correlations), self.name)
        frame = b"".join(encode_request_frame(header, body))
        self.socket.sendall(frame)
        flexible = version >= {ApiKey.PRODUCE: 9, ApiKey.FETCH: 12, ApiKey.CREATE_TOPICS: 5}.get(key, 9)
        return len(frame) - 14 - len(self.name) - flexible

    def receive(self, key: ApiKey, version: int) -> Any:
        size = int.from_bytes(frames.receive(self.socket, 4))
        return decode_response_frame(key, version, frames.receive(self.socket, size))[1]

    def call(self, key: ApiKey, version: int, body: Message) -> Any:
        self.body_bytes += self.send(key, version, body)
        return self.receive(key, version)

    def is_closed(self) -> bool:
        return self.socket.recv(1) == b""

    def close(self) -> None:
        self.socket.close()


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
