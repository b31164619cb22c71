"""A broker, and a client that sends single frames and knows what it did."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Mpbroker
from tests.metrics.test_with_broker import create
from tests.support.metered_client import Client, Meter
from tests.support.real_brokers import served

FLAGS = ("--processors", "1", "--handlers", "2")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mpbroker]:
    with served(Mpbroker(tmp_path_factory.mktemp("broker"), flags=FLAGS)) as running:
        yield running


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Mpbroker]:
    """One that a test may kill."""
    with served(Mpbroker(tmp_path, flags=FLAGS)) as running:
        yield running


@pytest.fixture
def meter(broker: Mpbroker) -> Meter:
    return Meter(broker)


@pytest.fixture
def client(broker: Mpbroker) -> Iterator[Client]:
    """A client whose name no other one has."""
    with Client(broker, name=f"client-{uuid.uuid4().hex[:8]}") as made:
        yield made


@pytest.fixture
def topic(client: Client) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    create(client, name)
    return name
