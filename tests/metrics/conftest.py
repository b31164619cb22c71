"""A broker, and a client that sends single frames and knows what it did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Mpbroker
from tests.support.metered_client import Client, Meter


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
