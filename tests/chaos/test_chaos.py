"""Every kind of process is killed under load. `make chaos` does what it is told, and prints what it does."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Broker, Kafka, Mpbroker
from tests.chaos.history import violations
from tests.chaos.killer import least_progress, roles_of
from tests.chaos.run import FULL_KILLS, planned, torment
from tests.support.forms import pick

SEED = 1
KILLS = pick("kills of each kind of process", short=1, long=FULL_KILLS)
PAIRS = pick("deaths together of every two kinds", short=0, long=2)


@pytest.fixture
def broker(tmp_path: Path, log_workers: int) -> Iterator[Broker]:
    made: Broker = Mpbroker(tmp_path, flags=("--log-workers", str(log_workers)))
    if os.environ.get("MPBROKER_TEST_BROKER") == "kafka":
        made = Kafka(tmp_path)
    yield made
    made.kill()


@pytest.mark.parametrize("log_workers", [1, 3])
def test_nothing_acknowledged_is_lost_doubled_or_reordered(broker: Broker) -> None:
    history = torment(broker, roles_of(broker), KILLS, SEED, PAIRS)
    print(f"{len(history.acked)} acked, {len(history.live)} read meanwhile")
    least = least_progress(1 + len(planned(roles_of(broker), KILLS, PAIRS)))
    assert len(history.acked) >= least
    assert len(history.live) >= least
    assert violations(history) == []
