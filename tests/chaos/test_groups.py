"""Processes die under a consumer group: its members go on, and what was committed stays committed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.brokers import Broker, Mpbroker
from tests.chaos.groups import HEARTBEAT_MS, PARTITIONS, SESSION_MS, TOPIC, Members
from tests.chaos.killer import at_work, await_progress, kill
from tests.support.forms import each
from tests.support.real_brokers import create_topic

SEED = 1
# The coordinator dies in rebalances too: it is what moves the members.
DEATHS = ("coordinator", "log", "handler", "coordinator", "supervisor", "processor", "coordinator")


@pytest.fixture
def broker(tmp_path: Path, log_workers: int) -> Iterator[Broker]:
    settings = (
        "group.initial.rebalance.delay.ms=0",
        f"group.min.session.timeout.ms={SESSION_MS}",
        f"group.consumer.min.session.timeout.ms={SESSION_MS}",
        f"group.consumer.session.timeout.ms={SESSION_MS}",
        f"group.consumer.min.heartbeat.interval.ms={HEARTBEAT_MS}",
        f"group.consumer.heartbeat.interval.ms={HEARTBEAT_MS}",
    )
    flags = [word for setting in settings for word in ("-o", setting)]
    made = Mpbroker(tmp_path, flags=[*flags, "--log-workers", str(log_workers)])
    yield made
    made.kill()


@each("protocol", short=["classic"], long=["classic", "consumer"])
@each("log_workers", short=[2], long=[1, 2])
def test_a_group_survives_the_death_of_every_process(broker: Broker, protocol: str) -> None:
    chance = random.Random(SEED)
    broker.start()
    create_topic(broker.bootstrap, TOPIC, PARTITIONS)
    members = Members(broker.bootstrap, protocol)
    with at_work(members):
        await_progress(broker, members.progress, "at the start")
        for role in DEATHS:
            kill(broker, [role], members.progress, chance)
    assert broker.stop() == 0
    broker.start()
    assert members.check() == []
    assert members.commits > 50
