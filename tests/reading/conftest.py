"""A log directory with a broker that is played by the test, and one running broker for all that want one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ops.bench.brokers import Broker
from tests.support.real_brokers import make_broker, served
from tests.support.spark_logs import fake_broker, log_dir

__all__ = ["fake_broker", "log_dir"]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with served(make_broker(tmp_path_factory.mktemp("broker"))) as running:
        yield running
