"""The end of a log as its own producer sees it: what acks=1 has acknowledged is there for all it asks next.

Readers are shown what is durable, and acks=1 is answered before. So requests about the end wait for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mpbroker.protocol import messages as m
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from ops.bench.brokers import Broker, Mpbroker
from tests.support.real_brokers import create_topic, make_broker, served, with_settings
from tests.support.socket_client import SocketClient

ROUNDS = 300
T0 = 1_700_000_000_000
LATEST, MAX_TIMESTAMP = -1, -3


@pytest.fixture(name="client", scope="module", params=["group", "os"])
def _client(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SocketClient]:
    made: Broker = make_broker(tmp_path_factory.mktemp("acknowledged"))
    if isinstance(made, Mpbroker):
        with_settings(made, {"log.flush.policy": request.param})
    with served(made) as broker, SocketClient(broker) as client:
        for name in ("latest", "fetched", "deleted", "timed", "largest", "epochs"):
            create_topic(broker.bootstrap, name, 1)
        yield client


def produce(client: SocketClient, topic: str, number: int) -> int:
    """Write a record, as late as its number, with acks=1; return its offset."""
    batch = bytes(build_batch([NewRecord(value=b"x", timestamp=T0 + number)]))
    data = m.ProduceRequest.TopicProduceData(
        topic, partition_data=[m.ProduceRequest.PartitionProduceData(0, batch)]
    )
    response = client.ask(ApiKey.PRODUCE, 9, m.ProduceRequest(None, 1, 30_000, [data]))
    (answer,) = response.responses[0].partition_responses
    assert answer.error_code == 0
    return int(answer.base_offset)


def listed(client: SocketClient, topic: str, timestamp: int, isolation: int = 0) -> tuple[int, int]:
    """(error, offset)"""
    wanted = m.ListOffsetsRequest.ListOffsetsPartition(0, -1, timestamp)
    asked = m.ListOffsetsRequest(
        -1, isolation, [m.ListOffsetsRequest.ListOffsetsTopic(topic, [wanted])], timeout_ms=30_000
    )
    (answer,) = client.ask(ApiKey.LIST_OFFSETS, 10, asked).topics[0].partitions
    return answer.error_code, answer.offset


def test_the_latest_offset(client: SocketClient) -> None:
    for number in range(ROUNDS):
        offset = produce(client, "latest", number)
        assert listed(client, "latest", LATEST, isolation=number % 2) == (0, offset + 1)


def test_a_time_and_the_largest_one(client: SocketClient) -> None:
    for number in range(ROUNDS):
        offset = produce(client, "timed", number)
        assert listed(client, "timed", T0 + number, isolation=number % 2) == (0, offset)
        offset = produce(client, "largest", number)
        assert listed(client, "largest", MAX_TIMESTAMP, isolation=number % 2) == (0, offset)


def test_a_fetch_from_the_acknowledged_offset(client: SocketClient) -> None:
    """Check that it is in range at once, and brings the record as soon as that is durable."""
    for number in range(ROUNDS):
        offset = produce(client, "fetched", number)
        for wait_ms, at in ((0, offset), (0, offset + 1), (30_000, offset)):
            answer = fetch(client, at, wait_ms, isolation=number % 2)
            assert (answer.error_code, answer.diverging_epoch.epoch) == (0, -1)
        assert answer.high_watermark > offset
        assert answer.records
    assert fetch(client, offset + 2, 0, epoch=-1).error_code == 1


def fetch(client: SocketClient, offset: int, wait_ms: int, isolation: int = 0, epoch: int = 0) -> Any:
    wanted = m.FetchRequest.FetchPartition(0, fetch_offset=offset, last_fetched_epoch=epoch)
    wanted.partition_max_bytes = 1 << 20
    asked = m.FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation)
    asked.topics = [m.FetchRequest.FetchTopic("fetched", partitions=[wanted])]
    return client.ask(ApiKey.FETCH, 12, asked).responses[0].partitions[0]


def test_records_are_deleted_up_to_the_end(client: SocketClient) -> None:
    for number in range(ROUNDS):
        offset = produce(client, "deleted", number)
        wanted = m.DeleteRecordsRequest.DeleteRecordsPartition(0, -1 if number % 2 else offset + 1)
        topic = m.DeleteRecordsRequest.DeleteRecordsTopic("deleted", [wanted])
        asked = m.DeleteRecordsRequest([topic], 30_000)
        (answer,) = client.ask(ApiKey.DELETE_RECORDS, 2, asked).topics[0].partitions
        assert (answer.error_code, answer.low_watermark) == (0, offset + 1)


def test_where_the_epoch_ends(client: SocketClient) -> None:
    """Check that a consumer does not take what it has written for cut off."""
    for number in range(ROUNDS):
        offset = produce(client, "epochs", number)
        wanted = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(0, -1, 0)
        topic = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic("epochs", [wanted])
        asked = m.OffsetForLeaderEpochRequest(-1, [topic])
        (answer,) = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, asked).topics[0].partitions
        assert (answer.error_code, answer.end_offset) == (0, offset + 1)
