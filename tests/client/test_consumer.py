"""Fetches of a consumer: requests, errors of partitions, and the batches that readers get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from mpbroker.client.cluster import Cluster
from mpbroker.client.config import ClientConfig
from mpbroker.client.consumer import Consumer, Fetched, Limits, fetch_request
from mpbroker.client.errors import ApiFailed
from mpbroker.protocol import messages as m
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import READ_COMMITTED, READ_UNCOMMITTED
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.markers import ABORT
from mpbroker.records.record import NewRecord
from tests.support.kafka_server import KafkaServer
from tests.support.threaded_server import HOST


def batch(offset: int, producer_id: int = -1) -> bytes:
    records = [NewRecord(b"v%d" % offset, timestamp=0)]
    return bytes(
        build_batch(records, base_offset=offset, producer_id=producer_id, transactional=producer_id >= 0)
    )


@pytest.fixture
def server() -> Iterator[KafkaServer]:
    with KafkaServer("t", [(0, 1, batch(0)), (1, 2, batch(1))]) as running:
        yield running


@pytest.fixture
def cluster(server: KafkaServer) -> Iterator[Cluster]:
    config = ClientConfig(retry_backoff_ms=1, retry_backoff_max_ms=1)
    with closing(Cluster([(HOST, server.port)], config)) as made:
        yield made


def test_leaders_are_looked_up_at_first_and_after_an_error_that_passes(
    server: KafkaServer, cluster: Cluster
) -> None:
    looked_up = []

    def look_up() -> None:
        looked_up.append(len(server.fetches))
        cluster.refresh(["t"])

    server.fault = lambda nth, _offset: ErrorCode.NOT_LEADER_OR_FOLLOWER if nth == 2 else None
    consumer = Consumer(cluster, "t", look_up)
    for offset in (0, 1):
        (found,) = consumer.fetch({0: offset})
        assert [one.header.base_offset for one, _ in found.batches()] == list(range(offset, 2))
    assert (looked_up, server.fetches) == ([0, 2], [0, 1, 1])


def test_an_expected_error_is_returned_and_another_one_raised(server: KafkaServer, cluster: Cluster) -> None:
    server.fault = lambda _nth, _offset: ErrorCode.CORRUPT_MESSAGE
    expecting = Consumer(cluster, "t", lambda: cluster.refresh(["t"]), expected=(ErrorCode.CORRUPT_MESSAGE,))
    assert [one.error_code for one in expecting.fetch({0: 1})] == [ErrorCode.CORRUPT_MESSAGE]
    server.fault = lambda _nth, _offset: None
    with pytest.raises(ApiFailed, match=r"^t-0 at offset 7: .*\(OFFSET_OUT_OF_RANGE\)$"):
        expecting.fetch({0: 7})


def test_readers_get_neither_markers_nor_aborted_records() -> None:
    marker = build_transaction_marker(
        ABORT, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=2
    )
    records = batch(0) + batch(1, producer_id=5) + bytes(marker) + batch(3, producer_id=5)
    found = Fetched(0, 0, 4, 3, [(5, 1)], records)
    assert [is_read for _, is_read in found.batches()] == [True, False, False, True]
    assert (found.end(READ_UNCOMMITTED), found.end(READ_COMMITTED)) == (4, 3)


def test_a_request_has_each_topic_once() -> None:
    positions = {("t", 0): 5, ("u", 1): 6, ("t", 2): 7}
    request = fetch_request(
        positions, Limits(9, 10, 11), READ_COMMITTED, {"t": b"an id of a topic", "u": None}
    )
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (9, 1, 10)
    assert request.isolation_level == READ_COMMITTED
    assert [(one.topic, one.topic_id) for one in request.topics] == [
        ("t", b"an id of a topic"),
        ("u", m.ZERO_UUID),
    ]
    asked = [
        (one.partition, one.fetch_offset, one.partition_max_bytes) for one in request.topics[0].partitions
    ]
    assert asked == [(0, 5, 11), (2, 7, 11)]
