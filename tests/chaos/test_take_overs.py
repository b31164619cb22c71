"""Whoever leads: nothing that was acknowledged is lost, doubled, reordered or taken back (acks=ledger)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos import copiers, exactly_once, groups, history
from tests.chaos.copiers import Copiers
from tests.chaos.groups import Members
from tests.chaos.killer import at_work
from tests.chaos.run_transactions import SETTINGS
from tests.chaos.take_overs import FAULTS, HANDED_OVER, KILLED, STOPPED, begin, change_places
from tests.chaos.under_way import under_way
from tests.chaos.workload import Workload, create_topic
from tests.support import real_brokers
from tests.support.broker_pair import Pair
from tests.support.forms import each, long_only

SEED = 1


@pytest.fixture(name="pair")
def _pair(tmp_path: Path) -> Iterator[Pair]:
    settings = {
        # So whoever takes over has the first cut alone, and what was shipped since.
        "mpbroker.remote.checkpoint.interval.ms": "600000",
        **SETTINGS,
        **groups.CONSUMER_PROTOCOL,
        "group.min.session.timeout.ms": str(groups.SESSION_MS),
    }
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack, "ledger", *(f"{name}={value}" for name, value in settings.items()))
        begin(pair)
        yield pair
        for broker in pair.brokers.values():
            broker.kill()


@each("faults", short=[(KILLED, STOPPED)], long=[FAULTS * 3])
def test_what_was_acknowledged_or_read_is_there_in_order(pair: Pair, faults: tuple[str, ...]) -> None:
    chance = random.Random(SEED)
    create_topic(pair.bootstrap)
    workload = Workload(pair.bootstrap)
    with at_work(workload):
        change_places(pair, chance.sample(faults, len(faults)), workload.progress, chance)
    workload.read_back()
    assert history.violations(workload.history) == []


@long_only("transactions and groups across take-overs")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_transactions_and_committed_offsets_outlive_whoever_leads(pair: Pair, protocol: str) -> None:
    chance = random.Random(SEED)
    copiers.create_topics(pair.bootstrap)
    real_brokers.create_topic(pair.bootstrap, groups.TOPIC, groups.PARTITIONS)
    members = Members(pair.bootstrap, protocol)
    copying = Copiers(pair.bootstrap, SEED, lambda: under_way(pair.brokers[pair.leader]))
    with at_work(members, copying):
        change_places(pair, (HANDED_OVER, KILLED, STOPPED, *FAULTS), copying.progress, chance)
    copying.read_back()
    assert members.check() == []
    assert exactly_once.violations(copying.copies) == []
