"""Processes die, hang and pause under transactions. `make chaos` does what it is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ops.bench.brokers import Broker
from tests.chaos.copiers import RECORDS_MAX
from tests.chaos.exactly_once import Outcome, violations
from tests.chaos.killer import ROLES, SUPERVISOR, WHOLE, least_progress
from tests.chaos.run_transactions import HUNG, KILLED, PAUSED, Step, broker_of, planned, torment
from tests.support.forms import pick

SEED = 1
DEATHS: list[Step] = [(KILLED, role) for role in ("coordinator", "log", "handler", "processor")]
HANGS: list[Step] = [(PAUSED, "coordinator"), (HUNG, "coordinator")]
ALL_AT_ONCE: list[Step] = [(KILLED, WHOLE)]
KILLS = pick("deaths of each kind", short=1, long=5)
PLANS = {"deaths": DEATHS, "hangs": HANGS, "all at once": ALL_AT_ONCE}
if KILLS > 1:
    PLANS = {"all": planned((*ROLES, SUPERVISOR), KILLS, pairs=1)}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = broker_of("mpbroker", tmp_path, log_workers=2)
    yield made
    made.kill()


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_each_record_is_copied_exactly_once(broker: Broker, plan: Sequence[Step]) -> None:
    """Check it with transactions of both protocol versions."""
    copies = torment(broker, plan, SEED)
    least = least_progress(1 + len(plan))
    committed = sum(each.outcome is Outcome.COMMITTED for each in copies.transactions.values())
    assert committed >= least / RECORDS_MAX
    assert len(copies.final) >= least
    assert violations(copies) == []
