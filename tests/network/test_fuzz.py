"""Bad input leaves nothing behind. `make fuzz` sends what it is told."""

from collections.abc import Iterator

import psutil
import pytest

from ops.bench import frames
from ops.bench.brokers import running
from tests.network import fuzz
from tests.network.fuzz import Holdings, differences
from tests.network.fuzz_inputs import KINDS, inputs
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


def test_a_listener_that_does_not_answer_is_seen(broker: OpenBroker) -> None:
    assert fuzz.unanswered(broker) == []
    hung = [
        psutil.Process(each["pid"])
        for each in fuzz.status(broker)["processes"]
        if each["name"] == "control-plane handler"
    ]
    for process in hung:
        process.suspend()
    try:
        (said,) = fuzz.unanswered(broker, within_s=0.5)
    finally:
        for process in hung:
            process.resume()
    assert said.startswith("CONTROL does not answer")
    assert fuzz.unanswered(broker) == []


def test_what_is_borrowed_is_seen(broker: OpenBroker) -> None:
    with frames.connected(broker.address) as connection:
        frames.exchange(connection, frames.api_versions())
        assert fuzz.holdings(broker).borrowed["processor 0: connections"] == 1
    (control,) = [listener for listener in broker.listeners if listener.name == "CONTROL"]
    with control.connect() as connection:
        connection.settimeout(fuzz.ENDS_WITHIN_S)
        frames.exchange(connection, frames.api_versions())
        assert fuzz.holdings(broker).borrowed["control-plane processor: connections"] == 1
    assert fuzz.settled(broker).borrowed == {}


def test_the_same_seed_is_the_same_input() -> None:
    assert [*inputs(3, 200)] == [*inputs(3, 200)]
    assert [*inputs(3, 200)] != [*inputs(4, 200)]
    assert {one.kind for one in inputs(3, 200)} == set(KINDS)


def test_what_is_left_is_found() -> None:
    before = Holdings({"log": (5, 1), "processor 0": (6, 1)}, {"log": 10, "processor 0": 20}, {})
    assert differences(before, before) == []
    after = Holdings(
        {"log": (7, 2), "processor 0": (6, 1)}, {"log": 9, "processor 0": 21}, {"handler 0: bytes": 8}
    )
    assert differences(before, after) == [
        "still borrowed: handler 0: bytes: 8",
        "log was (5, 1) and is (7, 2)",
        "processor 0 had 20 files open and has 21",
    ]
