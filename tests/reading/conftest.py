"""A log directory with a broker that is played by the test, and one running broker for all that want one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.reading import errors
from ops.bench.brokers import Broker
from tests.support.real_brokers import make_broker, served
from tests.support.spark_logs import FakeBroker, PartitionWriter, fake_broker, fill, log_dir

__all__ = ["fake_broker", "log_dir"]


class Published(PartitionWriter):
    """The partition t-0 of a running broker that publishes what a test wants."""

    def __init__(self, log_dir: Path, broker: FakeBroker) -> None:
        super().__init__(log_dir, "t")
        self.log_dir, self.broker = log_dir, broker

    def add(self, batches: int, **how: int) -> None:
        """Write batches of ten records, and publish them."""
        fill(self, batches, **how)
        self.broker.publish(self)


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())


@pytest.fixture
def writer(log_dir: Path, fake_broker: FakeBroker) -> Published:
    return Published(log_dir, fake_broker)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(make_broker(tmp_path_factory.mktemp("broker"))) as running:
        yield running
