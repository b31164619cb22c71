"""The short chaos run: every kind of process is killed twice. `make chaos` is the long one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Broker, Kafka, Mpbroker
from tests.chaos.history import violations
from tests.chaos.killer import roles_of
from tests.chaos.run import QUICK_KILLS, torment

SEED = 1


@pytest.fixture
def broker(tmp_path: Path, log_workers: int) -> Iterator[Broker]:
    made: Broker = Mpbroker(tmp_path, flags=("--log-workers", str(log_workers)))
    if os.environ.get("MPBROKER_TEST_BROKER") == "kafka":
        made = Kafka(tmp_path)
    yield made
    made.kill()


@pytest.mark.parametrize("log_workers", [1, 3])
def test_nothing_acknowledged_is_lost_doubled_or_reordered(broker: Broker) -> None:
    history = torment(broker, roles_of(broker), QUICK_KILLS, SEED)
    assert len(history.acked) > 1000
    assert len(history.live) > 1000
    assert violations(history) == []
