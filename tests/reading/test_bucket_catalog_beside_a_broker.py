"""A running broker and its object store: a record comes from one of them, and later from the store alone."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.options import ReadOptions, parse_options
from mpbroker.reading.plan import TaskRange, plan
from mpbroker.testing import Broker
from tests.support.client_tools import eventually
from tests.support.polling import PATIENCE_S
from tests.support.reading_queries import UNCOMMITTED
from tests.support.reading_rows import rows_of
from tests.support.tiered_brokers import tiering

COMMITTED = {"kafka.isolation.level": "read_committed"}
VALUE = bytes(100_000)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    found = tmp_path / "store"
    found.mkdir()
    return found


@pytest.fixture
def broker(store: Path) -> Iterator[Broker]:
    settings = {**tiering(store), "mpbroker.remote.checkpoint.interval.ms": "1000"}
    with Broker(settings=settings) as running:
        config = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.bytes": "1"}
        running.create_topic("t", 2, config)
        yield running


def write(broker: Broker, store: Path) -> Producer:
    """Write transactions until some segments are in the store alone; return whose last one is open."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x"})
    producer.init_transactions(PATIENCE_S)
    for number in range(10):
        producer.begin_transaction()
        for partition in (0, 1):
            for at in range(3):
                producer.produce("t", VALUE, b"%d-%d" % (number, at), partition=partition)
        if number % 3 == 1:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", VALUE, b"open", partition=0)
    producer.flush(PATIENCE_S)
    eventually(lambda: len(list(store.glob("t-*/*/*.log"))) > 3, "segments are in the store")
    directories = [broker.log_dir / f"t-{number}" for number in (0, 1)]
    eventually(lambda: all(len(list(one.glob("*.log"))) < 3 for one in directories), "they are there alone")
    return producer


def planned(given: Mapping[str, str]) -> tuple[list[TaskRange], ReadOptions]:
    options = parse_options({"subscribe": "t", "maxRecordsPerPartition": "7", **given})
    with closing(open_catalog(options)) as catalog:
        return pickle.loads(pickle.dumps(plan(catalog, options))), options


def keys(given: Mapping[str, str]) -> list[tuple[int, int, bytes]]:
    return [(row["partition"], row["offset"], row["key"]) for row in rows_of(*planned(given))]


def test_each_record_comes_from_one_side(broker: Broker, store: Path) -> None:
    producer = write(broker, store)
    servers = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    bucket = {"mpbroker.bucket": f"file://{store}"}
    for isolation, count in ((COMMITTED, 7 * 6), (UNCOMMITTED, 10 * 6 + 1)):
        wanted = keys(servers | isolation)
        assert len(wanted) == count
        both = servers | bucket | isolation
        sides = {one.bucket is not None for one in planned(both)[0]}
        assert sides == {True, False}
        assert keys(both) == wanted
        tasks, _ = planned(both | {"maxBytesPerTask": "200000", "maxRecordsPerPartition": "1000"})
        assert sum(one.bucket is not None for one in tasks) > 8
        here = {"log.dir": str(broker.log_dir), **bucket, **isolation}
        assert {one.bucket is not None for one in planned(here)[0]} == {True, False}
        assert keys(here) == wanted
        # The next cut has all of it.
        eventually(
            lambda given=bucket | isolation, wanted=wanted: keys(given) == wanted, "the bucket has it all"
        )
    producer.commit_transaction(PATIENCE_S)
    wanted = keys(servers | COMMITTED)
    broker.stop(keep=True)
    assert keys(bucket | COMMITTED) == wanted
