"""Processes die while another configuration comes in and handlers are replaced: nothing acknowledged is lost,
doubled or reordered, every request is answered or its connection closed, and at last the new settings hold.
"""

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mpbroker.ipc.control_client import ControlError
from tests.chaos import leaks
from tests.chaos.crowd import Crowd
from tests.chaos.history import violations
from tests.chaos.killer import ROLES, at_work, await_progress, least_progress, members
from tests.chaos.workload import Workload, create_topic
from tests.support.client_tools import eventually
from tests.support.configured_tree import FIRST, Configured, control, described, pids
from tests.support.forms import pick
from tests.support.polling import random_moment
from tests.support.real_brokers import served, stop_cleanly

SEED = 3
ROUNDS = pick("deaths of each kind of process", short=1, long=10)
KILLED_AFTER_MAX_S = 0.15


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Configured]:
    with served(Configured(tmp_path / "broker")) as running:
        yield running


def kill_one(broker: Configured, role: str, chance: random.Random) -> None:
    random_moment(chance, KILLED_AFTER_MAX_S)
    # One that leaves at this moment may be gone.
    with contextlib.suppress(IndexError, psutil.NoSuchProcess):
        chance.choice(members(broker, role)).kill()


def holds(broker: Configured) -> bool:
    """Return True if a reload gives the wanted settings. One that was cut short is done again."""
    try:
        return control(broker).call("reload")["changed"] == []
    except ControlError:
        return False


def test_deaths_during_reloads_lose_nothing(broker: Configured) -> None:
    chance = random.Random(SEED)
    create_topic(broker.bootstrap)
    workload, crowd = Workload(broker.bootstrap), Crowd(broker.address)
    assert broker.process is not None
    with at_work(workload, crowd):
        for number, role in enumerate(chance.sample(ROLES * ROUNDS, len(ROLES) * ROUNDS), start=1):
            broker.file.write_text(FIRST + f"log.roll.hours={number}\nmax.connections={1000 + number}\n")
            os.kill(broker.process.pid, signal.SIGHUP)
            kill_one(broker, role, chance)
            eventually(lambda: holds(broker), f"the settings hold although a {role} process died")
            await_progress(broker, workload.progress, f"{role} killed during a reload")
            assert described(broker)["log.roll.hours"] == str(number)
    assert len([name for name in pids(broker) if name.startswith("handler")]) == 2
    assert crowd.complaints == []
    assert leaks.complaints(broker) == []
    workload.read_back()
    stop_cleanly(broker)
    assert len(workload.history.acked) >= least_progress(len(ROLES * ROUNDS))
    assert workload.history.complaints == []
    assert violations(workload.history) == []
