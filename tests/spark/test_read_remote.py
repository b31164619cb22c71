"""Fetching over the Kafka protocol: the same rows as from files, also when connections break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.compression import Codec
from mpbroker.records.markers import COMMIT
from spark_integration import read_remote
from spark_integration.errors import CorruptLog, DataLoss, OptionError, SourceUnavailable
from spark_integration.remote import servers_of
from spark_integration.source import MpbrokerDataSource
from tests.spark.kafka_server import HangUp, KafkaServer
from tests.spark.logs import numbered


def batches_of(count: int, per_batch: int = 10, codec: Codec = Codec.NONE) -> list[tuple[int, int, bytes]]:
    return [
        (
            base,
            base + per_batch,
            bytes(build_batch(numbered(per_batch, first=base), base_offset=base, codec=codec)),
        )
        for base in range(0, count * per_batch, per_batch)
    ]


def rows(server: KafkaServer, **options: object) -> list[dict[str, Any]]:
    texts = {name: str(value) for name, value in options.items()}
    texts = {"fetchOffset.retryIntervalMs": "0", "kafka.bootstrap.servers": server.address, **texts}
    if "subscribePattern" not in texts:
        texts["subscribe"] = texts.get("subscribe", server.topic)
    found = MpbrokerDataSource(texts)
    reader = found.reader(found.schema())
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def offsets(found: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in found]


@pytest.fixture
def small_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_remote, "FETCH_BYTES", 2000)


@pytest.mark.usefixtures("small_fetches")
@pytest.mark.parametrize("codec", list(Codec))
def test_many_fetches_cut_anywhere(codec: Codec) -> None:
    with KafkaServer("t", batches_of(60, codec=codec)) as server:
        found = rows(server)
        assert offsets(found) == list(range(600))
        assert all(row["value"].rstrip(b".") == b"v%d" % row["offset"] for row in found)
        assert len(server.fetches) > 5
        assert offsets(rows(server, minPartitions=4)) == list(range(600))
        edges = {"startingOffsets": '{"t":{"0":113}}', "endingOffsets": '{"t":{"0":427}}'}
        assert offsets(rows(server, **edges)) == list(range(113, 427))


@pytest.mark.usefixtures("small_fetches")
def test_a_batch_larger_than_a_fetch_and_one_of_control() -> None:
    batches = batches_of(1, per_batch=200)
    marker = build_transaction_marker(
        COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=200
    )
    last = build_batch(numbered(5, first=201), base_offset=201)
    with KafkaServer("t", [*batches, (200, 201, bytes(marker)), (201, 206, bytes(last))]) as server:
        assert offsets(rows(server)) == [*range(200), *range(201, 206)]


def test_patterns_leave_internal_topics_out() -> None:
    with KafkaServer("t", batches_of(1)) as server:
        assert {row["topic"] for row in rows(server, subscribePattern=".*")} == {"t"}


@pytest.mark.usefixtures("small_fetches")
@pytest.mark.parametrize("faulty", [1, 3])
@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, None], ids=["moved", "lost"])
def test_a_fault_is_retried_from_where_it_was(faulty: int, error: ErrorCode | None) -> None:
    def fault(nth: int, _offset: int) -> ErrorCode | None:
        if nth == faulty and error is None:
            raise HangUp
        return error if nth == faulty else None

    with KafkaServer("t", batches_of(60), fault=fault) as server:
        assert offsets(rows(server)) == list(range(600))
        assert len(server.fetches) > len(set(server.fetches))


def test_retries_end() -> None:
    with KafkaServer("t", batches_of(1), fault=lambda *_: ErrorCode.NOT_LEADER_OR_FOLLOWER) as server:
        with pytest.raises(SourceUnavailable, match=r"fetching t-0 .*NOT_LEADER_OR_FOLLOWER"):
            rows(server, **{"fetchOffset.numRetries": 2})
        assert len(server.fetches) == 3


def test_records_that_went_between_plan_and_fetch() -> None:
    def retention(_nth: int, _offset: int) -> None:
        server.log_start = 70

    with (
        KafkaServer("t", batches_of(10), fault=retention) as server,
        pytest.raises(
            DataLoss,
            match=r"Cannot fetch offset 0 of t-0.*start offset is 70.*watermark 100.*failOnDataLoss",
        ),
    ):
        rows(server)
    with KafkaServer("t", batches_of(10), fault=retention) as server:
        assert offsets(rows(server, failOnDataLoss=False)) == list(range(70, 100))


def test_an_unknown_topic_and_no_broker() -> None:
    unknown = pytest.raises(SourceUnavailable, match=r"topic missing: .*UNKNOWN_TOPIC_OR_PARTITION")
    with KafkaServer("t", batches_of(1)) as server, unknown:
        rows(server, subscribe="missing")
    with pytest.raises(SourceUnavailable, match=r"cannot connect to .*kafka.bootstrap.servers"):
        rows(server)


def test_damage_on_the_way() -> None:
    base, end, data = batches_of(1)[0]
    with (
        KafkaServer("t", [(base, end, data[:-1] + b"\xff")]) as server,
        pytest.raises(CorruptLog, match="damaged"),
    ):
        rows(server)


def test_auto_fetches_when_the_directory_is_elsewhere(tmp_path: Path) -> None:
    with KafkaServer("t", batches_of(3)) as server:
        assert offsets(rows(server, **{"log.dir": tmp_path / "elsewhere"})) == list(range(30))
        with pytest.raises(OptionError, match="no broker's log directory"):
            rows(server, **{"log.dir": tmp_path / "elsewhere", "readMode": "local"})


@pytest.mark.parametrize("text", ["host:", ":1", "host:0", "host:99999", ","])
def test_servers_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        servers_of(text)


def test_servers() -> None:
    assert servers_of("a:1, [::1]:2, b") == [("a", 1), ("::1", 2), ("b", 9092)]
