"""A broker in memory for the commands to talk to: one thread, our codec on the other side of the wire."""

from collections.abc import Iterator

import pytest

from mpbroker.testing import Broker
from tests.support.fake_broker import FakeBroker
from tests.support.own_cli import OwnCli


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake


@pytest.fixture(scope="module")
def cli(mpbroker_broker: Broker) -> OwnCli:
    return OwnCli(mpbroker_broker.bootstrap_servers)
