"""Every row of docs/METRICS.md against a live broker: names, attributes, at least one bean."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from mpbroker.metrics.families import Bean, Family, View, families
from mpbroker.metrics.snapshot import NOTHING
from mpbroker.protocol.api_keys import ApiKey
from ops.bench.brokers import Mpbroker, free_port
from tests.metrics.conftest import Client, Meter
from tests.metrics.test_with_broker import FETCH_VERSION, PRODUCE_VERSION, batch, create, fetch, produce
from tests.real_clients.tools import eventually

METER = {"Count", "MeanRate", "IntervalRate"}
HISTOGRAM = set(NOTHING.attributes(1))
_VARIABLE = re.compile(r"\[([^\[\]]*)\]|<([^<>]*)>")


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    """Of a broker with both planes that has served a little of everything, two looks apart."""
    broker = Mpbroker(tmp_path_factory.mktemp("broker"))
    control = free_port()
    broker.flags = (
        *("--processors", "1", "--handlers", "2"),
        *("--listeners", f"PLAINTEXT://127.0.0.1:{broker.port},CONTROL://127.0.0.1:{control}"),
        *("-o", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT"),
        *("-o", "control.plane.listener.name=CONTROL"),
    )
    try:
        broker.start()
        client, meter = Client(broker), Meter(broker)
        create(client, "t")
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("t", batch()))
        client.call(ApiKey.FETCH, FETCH_VERSION, fetch("t", 0))
        before = meter.take()
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("t", batch()))
        eventually(lambda: meter.take().now_ns - before.now_ns > 10_000_000, "time passes")
        yield View(meter.take(), before)
        client.close()
        assert broker.stop() == 0, broker.output()
    finally:
        broker.kill()


def expression(pattern: str) -> re.Pattern[str]:
    """A family's pattern as a regular expression of its beans' names."""
    found, at = "", 0
    for variable in _VARIABLE.finditer(pattern):
        found += re.escape(pattern[at : variable.start()])
        optional, inside = variable.groups()
        if optional is not None:
            found += f"({expression(optional).pattern})?"
        elif "|" in inside:
            found += f"({'|'.join(re.escape(one) for one in inside.split('|'))})"
        else:
            found += r".+"
        at = variable.end()
    return re.compile(found + re.escape(pattern[at:]))


def expected(one: Family) -> set[str]:
    if one.attributes:
        return set(one.attributes)
    return {"meter": METER, "gauge": {"Value"}}.get(one.kind, HISTOGRAM)


@pytest.mark.parametrize("one", families(), ids=lambda one: one.make.__name__)
def test_a_family_shows_what_its_row_says(one: Family, view: View) -> None:
    beans: list[Bean] = list(one.make(view))
    assert beans, "it has no bean"
    names = expression(one.pattern)
    for bean in beans:
        assert names.fullmatch(bean.name), (bean.name, one.pattern)
        assert set(bean.attributes) == expected(one), bean.name
        assert all(isinstance(number, int | float) for number in bean.attributes.values())


def test_no_two_families_name_the_same_attribute_of_a_bean(view: View) -> None:
    seen: set[tuple[str, str]] = set()
    for one in families():
        for bean in one.make(view):
            new = {(bean.name, attribute) for attribute in bean.attributes}
            assert not new & seen, one.pattern
            seen |= new


def test_both_planes_are_told_apart(view: View) -> None:
    found = {bean.name: bean.attributes for one in families() for bean in one.make(view)}
    for name in (
        "kafka.network:type=SocketServer,name=<>NetworkProcessorAvgIdlePercent",
        "kafka.network:type=SocketServer,name=<>ExpiredConnectionsKilledCount",
        "kafka.network:type=Acceptor,name=<>AcceptorBlockedPercent,listener={}",
        "kafka.network:type=RequestChannel,name=<>RequestQueueSize",
        "kafka.network:type=RequestChannel,name=<>ResponseQueueSize",
        "kafka.server:type=KafkaRequestHandlerPool,name=<>RequestHandlerAvgIdlePercent",
    ):
        for prefix, listener in (("", "PLAINTEXT"), ("ControlPlane", "CONTROL")):
            assert name.replace("<>", prefix).format(listener) in found
    assert found["kafka.controller:type=KafkaController,name=GlobalTopicCount"]["Value"] == 1
    assert found["kafka.controller:type=KafkaController,name=GlobalPartitionCount"]["Value"] == 1
    assert found["kafka.server:type=ReplicaManager,name=PartitionCount"]["Value"] == 1
    ages = [attributes["heartbeat-age-ms"] for name, attributes in found.items() if "type=Process," in name]
    assert len(ages) == 9
    assert all(0 <= age < 5000 for age in ages)


def test_the_page_names_attributes() -> None:
    (processes,) = [one for one in families() if one.make.__name__ == "processes"]
    assert "`heartbeat-age-ms`" in processes.named
    (pairs,) = [one for one in families() if one.make.__name__ == "selector_pairs"]
    assert pairs.named.startswith("`connection-creation-<total|rate>`")
