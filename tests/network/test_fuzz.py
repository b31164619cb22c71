"""Bad input leaves nothing behind. `make fuzz` sends what it is told."""

from collections.abc import Iterator

import pytest

from ops.bench.brokers import running
from tests.network import fuzz
from tests.support.forms import pick
from tests.support.open_broker import OpenBroker
from tests.support.real_brokers import control

INPUTS = pick("inputs", short=3_000, long=100_000)
SEED = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBroker]:
    with running(OpenBroker(tmp_path_factory.mktemp("broker"), flags=fuzz.FLAGS)) as started:
        assert isinstance(started, OpenBroker)
        yield started


def test_nothing_is_left(broker: OpenBroker) -> None:
    assert fuzz.fuzz(broker, SEED, INPUTS) == []
    assert "Traceback" not in broker.output()
    came = {
        one["listener"].partition(":")[0]: one["accepted"]
        for one in control(broker).call("listeners")["listeners"]
    }
    assert came.keys() == {listener.name for listener in broker.listeners}
    assert min(came.values()) >= INPUTS // len(broker.listeners), "all kinds of listeners had their share"
