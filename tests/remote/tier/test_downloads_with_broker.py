"""A broker whose topic is read from the object store: restarts, kills of the tier, a store that is away."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.testing import Broker
from tests.support.client_adapters import confluent_read
from tests.support.client_tools import eventually
from tests.support.http_broker import replace
from tests.support.produced import produce
from tests.support.tiered_brokers import tiering

TOPIC = "orders"
VALUE_BYTES = 100_000
RECORDS = 60


class Orders:
    """A broker whose topic is, but for its active segment, in the directory `store` alone."""

    def __init__(self, broker: Broker, store: Path) -> None:
        self.broker = broker
        self.store = store
        chance = random.Random(1)
        self.values = [chance.randbytes(VALUE_BYTES) for _ in range(RECORDS)]
        produce(broker.bootstrap_servers, TOPIC, self.values)
        directory = broker.log_dir / f"{TOPIC}-0"
        eventually(lambda: len(list(directory.glob("*.log"))) == 1, "only the active segment is local")

    def read(self) -> list[bytes | None]:
        stored = confluent_read(self.broker.bootstrap_servers, TOPIC, 1, RECORDS)
        return [one.record.value for one in stored]

    def empty_cache(self) -> None:
        for path in (self.broker.log_dir / "remote-cache").glob("*-0/*/*"):
            path.unlink()

    def windows(self) -> dict[str, int]:
        paths = (self.broker.log_dir / "remote-cache").glob("*-0/*/*.log")
        return {path.name: path.stat().st_ino for path in paths}


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    store = tmp_path / "store"
    store.mkdir()
    with Broker(settings=tiering(store)) as broker:
        config = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.bytes": "1"}
        broker.create_topic(TOPIC, 1, config)
        yield Orders(broker, store)


def test_a_restart_serves_from_the_cache_that_was_left(orders: Orders) -> None:
    assert orders.read() == orders.values
    before = orders.windows()
    assert len(before) > 4
    orders.broker.stop(keep=True)
    orders.broker.start()
    assert orders.read() == orders.values
    assert orders.windows() == before


@pytest.mark.parametrize("name", ["tier", "handler 0", "log 0"])
def test_a_reader_goes_on_when_somebody_is_killed(orders: Orders, name: str) -> None:
    for _ in range(3):
        orders.empty_cache()
        got: list[list[bytes | None]] = []
        reader = threading.Thread(target=lambda got=got: got.append(orders.read()))
        reader.start()
        replace(orders.broker, name)
        reader.join()
        assert got == [orders.values]


def test_a_store_that_is_away_is_waited_for(orders: Orders) -> None:
    away = orders.store.with_name("away")
    orders.empty_cache()
    orders.store.rename(away)
    got: list[list[bytes | None]] = []
    reader = threading.Thread(target=lambda: got.append(orders.read()))
    reader.start()
    eventually(lambda: "cannot be read at offset" in orders.broker.logs(), "a fetch fails")
    away.rename(orders.store)
    reader.join()
    assert got == [orders.values]
