"""The short chaos run of transactions. `make chaos` has the long one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Broker
from tests.chaos.exactly_once import Outcome, violations
from tests.chaos.killer import WHOLE
from tests.chaos.run_transactions import HUNG, KILLED, PAUSED, broker_of, torment

SEED = 1
PLAN = (
    (KILLED, "coordinator"),
    (KILLED, "log"),
    (KILLED, "handler"),
    (PAUSED, "coordinator"),
    (KILLED, "processor"),
    (HUNG, "coordinator"),
    (KILLED, WHOLE),
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = broker_of("mpbroker", tmp_path, log_workers=2)
    yield made
    made.kill()


def test_each_record_is_copied_exactly_once(broker: Broker) -> None:
    """In transactions of both protocols."""
    copies = torment(broker, PLAN, SEED)
    assert sum(each.outcome is Outcome.COMMITTED for each in copies.transactions.values()) > 50
    assert len(copies.final) > 1000
    assert violations(copies) == []
