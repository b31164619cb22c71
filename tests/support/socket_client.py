"""A client of one connection that sends what no good client sends, and looks at the broker's processes."""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path
from typing import Any

from mpbroker.protocol.headers import RequestHeader, decode_response_frame, encode_request_frame
from mpbroker.protocol.messages import Message
from ops.bench.brokers import Broker, Mpbroker
from ops.bench.frames import receive
from tests.support.polling import PATIENCE_S
from tests.support.real_brokers import control

CORRELATION = 77


def frame_of(api_key: int, version: int, body: Message, client: str = "hostile") -> bytes:
    return b"".join(encode_request_frame(RequestHeader(api_key, version, CORRELATION, client), body))


class SocketClient:
    """One plain connection, asked one request after the other."""

    def __init__(self, broker: Broker | tuple[str, int]) -> None:
        """Connect to a broker, or to an address."""
        address = broker if isinstance(broker, tuple) else broker.address
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)

    def __enter__(self) -> SocketClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api_key: int, version: int, body: Message) -> None:
        self.socket.sendall(frame_of(api_key, version, body))

    def receive(self) -> bytes:
        """Return the next response with its header. Raises ConnectionError if the connection is closed."""
        (size,) = struct.unpack(">i", receive(self.socket, 4))
        return receive(self.socket, size)

    def ask(self, api_key: int, version: int, body: Message) -> Any:
        """Return the decoded response."""
        self.send(api_key, version, body)
        return decode_response_frame(api_key, version, self.receive())[1]

    def is_closed_by(self, api_key: int, version: int, body: Message) -> bool:
        """Return whether the broker closes the connection instead of answering."""
        try:
            self.send(api_key, version, body)
            self.receive()
        except ConnectionError:
            return True
        return False


def pids_of(broker: Mpbroker, kind: str) -> list[int]:
    """Return the processes whose name begins so: "handler ", "coordinator"."""
    processes = control(broker).call("status")["processes"]
    return [each["pid"] for each in processes if each["name"].startswith(kind)]


def own_bytes(pid: int) -> int:
    """Return the anonymous memory that a process has resident: its own, without arenas and files."""
    return resident(pid)["RssAnon"]


def resident(pid: int) -> dict[str, int]:
    """Return what a process has resident, in bytes: RssAnon, RssFile, RssShmem."""
    found = re.findall(r"^(Rss\w+):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return {name: 1024 * int(size) for name, size in found}
