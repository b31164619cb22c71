"""Processes die under a consumer group: its members go on, and what was committed stays committed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest

from ops.bench.brokers import Broker, Mpbroker
from tests.chaos.groups import CONSUMER_PROTOCOL, PARTITIONS, SESSION_MS, TOPIC, Members
from tests.chaos.killer import at_work, await_progress, kill
from tests.support.client_tools import eventually
from tests.support.forms import each, pick
from tests.support.real_brokers import create_topic, with_settings

SEED = 1
# The coordinator dies in rebalances too: it is what moves the members.
DEATHS = ("coordinator", "log", "handler", "coordinator", "supervisor", "processor", "coordinator")
# A rebalance of the consumer protocol is many heartbeats: each death comes within one.
DEATHS_AMID_HEARTBEATS = pick("deaths under the consumer protocol", short=4, long=21)


@pytest.fixture
def broker(tmp_path: Path, log_workers: int) -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": str(SESSION_MS)}
    made = with_settings(Mpbroker(tmp_path), settings | CONSUMER_PROTOCOL)
    made.flags = [*made.flags, "--log-workers", str(log_workers)]
    yield made
    made.kill()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@each("log_workers", short=[2], long=[1, 2])
def test_a_group_survives_the_death_of_every_process(broker: Broker, protocol: str) -> None:
    chance = random.Random(SEED)
    broker.start()
    create_topic(broker.bootstrap, TOPIC, PARTITIONS)
    members = Members(broker.bootstrap, protocol)
    with at_work(members):
        await_progress(broker, members.progress, "at the start")
        count = len(DEATHS) if protocol == "classic" else DEATHS_AMID_HEARTBEATS
        for role in islice(cycle(DEATHS), count):
            kill(broker, [role], members.progress, chance)
        eventually(members.is_stable, lambda: f"the group is stable, it is {members.described}")
    assert broker.stop() == 0
    broker.start()
    assert members.check() == []
    assert members.commits > 5 * count
