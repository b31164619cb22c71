"""Edges of topics, and who follows them, on a broker; MPBROKER_TEST_BROKER=kafka: on Apache Kafka."""

from __future__ import annotations

from contextlib import closing

import pytest

from mpbroker.protocol.errors import ErrorCode
from mpbroker.reading.errors import DataLoss, OptionError
from mpbroker.reading.follow import RemoteFollower, follow
from mpbroker.reading.options import parse_options
from ops.bench.brokers import Broker
from tests.reading.test_follow import waits
from tests.support.kafka_server import HangUp, KafkaServer
from tests.support.polling import PATIENCE_S
from tests.support.produced import produce
from tests.support.reading_rows import planned, rows_with
from tests.support.real_brokers import create_topic


def test_a_start_behind_the_end(broker: Broker) -> None:
    create_topic(broker.bootstrap, "edges", 1)
    produce(broker.bootstrap, "edges", [b""] * 20)
    where = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "edges"}
    with pytest.raises(OptionError, match="start offset 15 is greater than the resolved end offset 0 "):
        planned(**where, startingOffsets='{"edges":{"0":15}}', endingTimestamp=1)
    with pytest.raises(DataLoss, match="up to offset 25 of edges-0"):
        planned(**where, startingOffsets='{"edges":{"0":25}}')
    assert planned(**where, startingOffsets='{"edges":{"0":20}}')[0] == []
    careless = {"startingOffsets": '{"edges":{"0":5}}', "endingOffsets": '{"edges":{"0":99}}'}
    assert len(rows_with(**where, **careless, failOnDataLoss=False)) == 15


def test_who_follows_waits_at_the_broker_after_a_while(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch waits for the next record, a timeout says that there was none, and old records wake nobody."""
    create_topic(broker.bootstrap, "followed", 2)
    produce(broker.bootstrap, "followed", ["v"] * 10, partitions=2)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "followed"}
    follower = follow(parse_options(given, streaming=True))
    assert isinstance(follower, RemoteFollower)
    with closing(follower):
        ends = {one: bounds.end for one, bounds in follower.poll().items()}
        assert ends == {("followed", 0): 5, ("followed", 1): 5}
        assert follower.catalog.await_records(ends, 0.01) is False
        assert follower.catalog.await_records({**ends, ("followed", 1): 4}, PATIENCE_S) is True
        assert follower.catalog.await_records({**ends, ("nowhere", 0): 0}, PATIENCE_S) is None
        monkeypatch.setattr(follower, "_stirred_at", -60.0)
        follower.wait(0.01)
        monkeypatch.setattr(follower, "_stirred_at", -60.0)
        with waits(follower):
            produce(broker.bootstrap, "followed", ["v"])
        assert sum(bounds.end for bounds in follower.poll().values()) == 11


def test_a_fetch_that_waits_and_fails_leads_to_a_look() -> None:
    def hang_up(_nth: int, _offset: int) -> ErrorCode | None:
        raise HangUp

    with KafkaServer("t", [(0, 5, b"")]) as server:
        given = {"kafka.bootstrap.servers": server.address, "subscribe": "t"}
        follower = follow(parse_options(given, streaming=True))
        assert isinstance(follower, RemoteFollower)
        with closing(follower):
            ends = {one: bounds.end for one, bounds in follower.poll().items()}
            server.fault = lambda _nth, _offset: ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert follower.catalog.await_records(ends, 0.01) is True
            server.fault = hang_up
            assert follower.catalog.await_records(ends, 0.01) is True
