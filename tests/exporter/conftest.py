"""A broker that serves HTTP, and what is read from there."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mpbroker.ipc.pointer import read_pointer
from mpbroker.testing import Broker
from tests.support.polling import PATIENCE_S

SETTINGS = {"http.listener": "127.0.0.1:0", "num.io.threads": "2"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Http:
    """A client of a broker's HTTP port."""

    def __init__(self, broker: Broker) -> None:
        pointer = read_pointer(broker.log_dir)
        assert pointer is not None
        self.address = pointer.http
        host, _, port = self.address.rpartition(":")
        self.place = (host, int(port))

    def get(self, path: str, **headers: str) -> Answer:
        request = urllib.request.Request(
            f"http://{self.address}{path}", headers={name.replace("_", "-"): v for name, v in headers.items()}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers), error.read())

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return a scrape as a dictionary: values by name and labels."""
        answer = self.get("/metrics")
        assert answer.status == 200, answer.text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples().get((name, frozenset(labels.items())))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def http(broker: Broker) -> Http:
    return Http(broker)


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A broker of the test's own, whose processes it may kill."""
    with Broker(SETTINGS) as running:
        yield running
