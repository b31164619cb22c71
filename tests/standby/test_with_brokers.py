"""A broker and its standby, on one object store: clients that know both go on when either of them goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mpbroker.storage.names import FENCED
from tests.support.broker_pair import TOPIC, Pair
from tests.support.client_tools import eventually
from tests.support.forms import long_only
from tests.support.own_cli import OwnCli
from tests.support.polling import PATIENCE_S
from tests.support.produced import produce


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack, getattr(request, "param", "ledger"))


@pytest.mark.process
def test_a_standby_takes_over_from_a_killed_broker_and_clients_go_on(pair: Pair) -> None:
    owner = pair.start(1)
    admin = AdminClient({"bootstrap.servers": owner.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(PATIENCE_S)
    pair.start(2, "--standby")
    pair.stands_by(2)
    status = ["remote", "status", "--log-dirs", str(pair.brokers[2].log_dir)]
    cli = OwnCli(pair.bootstrap)
    eventually(lambda: cli(*status, "--json").json["standby"]["cut_ms"] > 0, "its mirror has a cut")
    said = cli(*status).out
    assert "stands by: the mirror had all of the ledger" in said
    assert f"file://{pair.store_dir}" in said
    assert "cannot be read" not in said
    producer = Producer({"bootstrap.servers": pair.bootstrap})
    for number in range(10):
        producer.produce(TOPIC, str(number), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    owner.kill()
    for number in range(10, 20):
        producer.produce(TOPIC, str(number), partition=0)
    assert producer.flush(PATIENCE_S) == 0
    pair.leads(2, generation=2)
    assert pair.values() == [str(number) for number in range(20)]


@pytest.mark.process
@long_only("a lost broker comes back as standby, and the other one hands over")
@pytest.mark.parametrize("pair", ["local", "ledger"], indirect=True)
def test_brokers_change_places_again_and_again(pair: Pair) -> None:
    produce(pair.start(1).bootstrap, TOPIC, map(str, range(10)))
    pair.start(2, "--standby")
    pair.stands_by(2)
    pair.cut()
    pair.brokers[1].kill()
    produce(pair.bootstrap, TOPIC, map(str, range(10, 20)), enable_idempotence=True)
    pair.leads(2, generation=2)
    # A plain start: it finds that another one leads.
    pair.start(1)
    pair.stands_by(1)
    assert list((pair.brokers[1].log_dir / FENCED).glob(f"1-*/{TOPIC}-0"))
    produce(pair.bootstrap, TOPIC, map(str, range(20, 30)), enable_idempotence=True)
    pair.brokers[2].stop()
    produce(pair.bootstrap, TOPIC, map(str, range(30, 40)), enable_idempotence=True)
    pair.leads(1, generation=3)
    pair.start(2, "--standby")
    pair.stands_by(2)
    assert not (pair.brokers[2].log_dir / FENCED).exists()
    pair.cut()
    pair.brokers[1].kill()
    pair.leads(2, generation=4)
    eventually(lambda: len(pair.values()) >= 40, "all is there")
    assert pair.values() == [str(number) for number in range(40)]
