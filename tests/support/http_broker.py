"""A broker that serves HTTP, and a client of its port.

A folder's conftest imports the fixtures, and gives its brokers their settings by a fixture `http_settings`.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from mpbroker.ipc.pointer import read_pointer
from mpbroker.testing import Broker
from tests.support.polling import PATIENCE_S, until

HTTP = {"http.listener": "127.0.0.1:0"}


@dataclass(frozen=True)
class Answer:
    """An answer. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class HttpClient:
    """A client of a broker's HTTP port, with a connection for each request."""

    def __init__(self, broker: Broker) -> None:
        pointer = read_pointer(broker.log_dir)
        assert pointer is not None
        self.pointer = pointer
        self.address = pointer.http
        self.url = f"http://{self.address}/"
        host, _, port = self.address.rpartition(":")
        self.place = (host, int(port))

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Send a request with these headers, whose names have _ in place of -."""
        connection = http.client.HTTPConnection(*self.place, timeout=PATIENCE_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.putrequest(
                method, path, skip_host="host" in named, skip_accept_encoding="accept-encoding" in named
            )
            for name, value in named.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


def pids(broker: Broker) -> dict[str, int]:
    processes: Any = broker.control("status")["processes"]
    return {each["name"]: each["pid"] for each in processes}


def replace(broker: Broker, name: str) -> None:
    """Kill a process of the broker, and wait for its successor."""
    killed = pids(broker)[name]
    os.kill(killed, signal.SIGKILL)
    until(lambda: pids(broker)[name] not in (killed, 0), f"{name} is replaced")


@pytest.fixture(scope="module")
def broker(http_settings: Mapping[str, str]) -> Iterator[Broker]:
    with Broker(http_settings) as running:
        yield running


@pytest.fixture
def own_broker(http_settings: Mapping[str, str]) -> Iterator[Broker]:
    """A broker of the test's own, whose processes it may kill."""
    with Broker(http_settings) as running:
        yield running
