"""Processes die, hang and pause under transactions. `make chaos` does what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Broker
from tests.chaos.exactly_once import Outcome, violations
from tests.chaos.killer import WHOLE, roles_of
from tests.chaos.run_transactions import HUNG, KILLED, PAUSED, broker_of, planned, torment
from tests.support.forms import pick

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
KILLS = pick("deaths of each kind", short=1, long=5)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = broker_of("mpbroker", tmp_path, log_workers=2)
    yield made
    made.kill()


def test_each_record_is_copied_exactly_once(broker: Broker) -> None:
    """Check it with transactions of both protocol versions."""
    plan = PLAN if KILLS == 1 else planned(roles_of(broker), KILLS, pairs=1)
    copies = torment(broker, plan, SEED)
    assert sum(each.outcome is Outcome.COMMITTED for each in copies.transactions.values()) > 30
    assert len(copies.final) > 1000
    assert violations(copies) == []
