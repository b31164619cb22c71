"""Every row of docs/METRICS.md against a live broker: names, attributes, at least one bean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.topology import COORDINATOR
from mpbroker.metrics.broker import groups_by_protocol, groups_by_state
from mpbroker.metrics.families import Bean, Family, View, families
from mpbroker.metrics.snapshot import NOTHING
from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from tests.metrics.test_with_broker import FETCH_VERSION, PRODUCE_VERSION, batch, create, fetch, produce
from tests.support.client_tools import eventually
from tests.support.metered_client import Client, Meter
from tests.support.real_brokers import served
from tests.support.secure_broker import SecureBroker

METER = {"Count", "MeanRate", "IntervalRate"}
HISTOGRAM = set(NOTHING.attributes(1))
_VARIABLE = re.compile(r"\[([^\[\]]*)\]|<([^<>]*)>")
QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    """Of a broker with both planes that has served a little of everything, two looks apart."""
    broker, store = SecureBroker(tmp_path_factory.mktemp("broker")), tmp_path_factory.mktemp("store")
    with broker.properties.open("a") as properties:
        properties.write("control.plane.listener.name=SHORT\nremote.log.storage.system.enable=true\n")
        properties.write(f"mpbroker.remote.url={store.as_uri()}\n")
    with served(broker), Client(broker) as client:
        meter = Meter(broker)
        limit(client)
        create(client, "t")
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("t", batch()))
        client.call(ApiKey.FETCH, FETCH_VERSION, fetch("t", 0))
        before = meter.take()
        client.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce("t", batch()))
        eventually(lambda: meter.take().now_ns - before.now_ns > 10_000_000, "time passes")
        with broker.connect("TLS") as secure:
            secure.ask(ApiKey.API_VERSIONS, 3, m.ApiVersionsRequest("raw", "1"))
            yield View(meter.take(), before)


def limit(client: Client) -> None:
    """Every kind of quota, far above what is used."""
    request = m.AlterClientQuotasRequest
    entity = [request.EntityData("user", None)]
    entry = request.EntryData(entity, [request.OpData(key, 1e9) for key in QUOTAS])
    assert client.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, request([entry])).entries[0].error_code == 0


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


@pytest.mark.parametrize("one", families(), ids=lambda one: one.pattern)
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


def test_groups_are_told_by_protocol_and_state() -> None:
    names = ("CLASSIC_GROUPS", "GROUPS_EMPTY", "GROUPS_ASSIGNING", "GROUPS_RECONCILING", "GROUPS_STABLE")
    words = {Counter[f"COUNT_{name}"]: number for number, name in enumerate(names)}
    now = Mock(get=lambda process, counter: words[counter] if process == COORDINATOR else None)
    found = {
        bean.name.rpartition("=")[2]: bean.attributes
        for make in (groups_by_protocol, groups_by_state)
        for bean in make(View(now))
    }
    assert (found["classic"], found["consumer"]) == ({"group-count": 0}, {"group-count": 10})
    states = ("Empty", "Assigning", "Reconciling", "Stable")
    assert [found[state]["consumer-group-count"] for state in states] == [1, 2, 3, 4]


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
        for prefix, listener in (("", "OPEN"), ("ControlPlane", "SHORT")):
            assert name.replace("<>", prefix).format(listener) in found
    assert found["kafka.controller:type=KafkaController,name=GlobalTopicCount"]["Value"] == 1
    assert found["kafka.controller:type=KafkaController,name=GlobalPartitionCount"]["Value"] == 1
    assert found["kafka.server:type=ReplicaManager,name=PartitionCount"]["Value"] == 1
    ages = [attributes["heartbeat-age-ms"] for name, attributes in found.items() if "type=Process," in name]
    assert len(ages) == 12
    assert all(0 <= age < 5000 for age in ages)


def test_the_page_names_attributes() -> None:
    (processes,) = [one for one in families() if one.make.__name__ == "processes"]
    assert "`heartbeat-age-ms`" in processes.named
    (pairs,) = [one for one in families() if one.make.__name__ == "selector_pairs"]
    assert pairs.named.startswith("`connection-creation-<total|rate>`")


def test_what_clients_used_is_told_together_and_of_each(view: View) -> None:
    found: dict[str, dict[str, float]] = {}
    for one in families():
        for bean in one.make(view):
            found.setdefault(bean.name, {}).update(bean.attributes)
    tags = ",user=ANONYMOUS"
    for kind, used in (
        ("Produce", "byte-total"),
        ("Fetch", "byte-total"),
        ("Request", "request-time-ns-total"),
    ):
        whole, client = found[f"kafka.server:type={kind}"], found[f"kafka.server:type={kind}{tags}"]
        assert whole[used] == client[used] > 0
        assert whole["throttle-total"] == client["throttle-time"] == whole["queue-size"] == 0
    assert found["kafka.server:type=Produce"]["byte-rate"] > 0
    mutations = found[f"kafka.server:type=ControllerMutation{tags}"]
    assert mutations["mutation-total"] == 1
    assert mutations["tokens"] == pytest.approx(11e9, rel=1e-6)
    assert found["mpbroker:type=Broker"]["unmeasured-requests-total"] == 0


def test_tls_connections_by_their_cipher(view: View) -> None:
    (name,) = [bean.name for one in families() for bean in one.make(view) if ",cipher=" in bean.name]
    assert re.search(r",cipher=TLS_[A-Z0-9_]+,protocol=TLSv1\.[23]$", name)
