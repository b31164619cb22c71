"""Fetching over the Kafka protocol: the same rows as from files, also when connections break."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.reading.columns import SCHEMA
from mpbroker.reading.errors import CorruptLog, DataLoss, OptionError, SourceUnavailable
from mpbroker.reading.read import read_range
from mpbroker.reading.remote_catalog import servers_of
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.compression import Codec
from mpbroker.records.markers import COMMIT
from tests.support.kafka_server import HangUp, KafkaServer
from tests.support.reading_rows import planned, rows_of, rows_with
from tests.support.spark_logs import numbered


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
    return rows_with(**given(server, **options))


def given(server: KafkaServer, **options: object) -> dict[str, object]:
    where = {"kafka.bootstrap.servers": server.address, "kafka.max.partition.fetch.bytes": 2000}
    where["fetchOffset.retryIntervalMs"] = 0
    what = {} if "subscribePattern" in options else {"subscribe": server.topic}
    return where | what | options


def offsets(found: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in found]


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
    with KafkaServer("__named_by_its_owner", batches_of(1)) as server:
        assert {row["topic"] for row in rows(server, subscribePattern="__.*")} == {"__named_by_its_owner"}


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


def test_an_answer_without_records_is_asked_for_again() -> None:
    """A partition that moves between log directories has some."""
    with KafkaServer("t", batches_of(60), is_empty=lambda nth: nth in (1, 3, 4)) as server:
        assert offsets(rows(server)) == list(range(600))
    with KafkaServer("t", batches_of(60), is_empty=lambda nth: nth > 2) as server:
        with pytest.raises(SourceUnavailable, match=r"sent no record from offset \d+ on, reading t-0 "):
            rows(server, **{"fetchOffset.numRetries": 2})
        assert len(server.fetches) == 2 + 1 + 3, "the one that was asked for ahead, and three tries"


def test_a_leader_whose_high_watermark_is_late() -> None:
    """Check that records which it does not show yet are not taken for lost. (KIP-207.)"""
    options = {"failOnDataLoss": False, "fetchOffset.numRetries": 3, "fetchOffset.retryIntervalMs": 1}
    with KafkaServer("t", batches_of(60), is_late=lambda nth: nth in (1, 3, 4)) as server:
        assert offsets(rows(server, **options)) == list(range(600))
    with (
        KafkaServer("t", batches_of(60), is_late=lambda nth: nth > 2) as server,
        pytest.raises(SourceUnavailable, match="the leader has it, and does not send it"),
    ):
        offsets(rows(server, **options))


def test_retries_end() -> None:
    with KafkaServer("t", batches_of(1), fault=lambda *_: ErrorCode.NOT_LEADER_OR_FOLLOWER) as server:
        with pytest.raises(SourceUnavailable, match=r"fetching t-0 .*NOT_LEADER_OR_FOLLOWER"):
            rows(server, **{"fetchOffset.numRetries": 2})
        assert len(server.fetches) == 3


def test_records_that_went_between_plan_and_fetch() -> None:
    def retention(_nth: int, _offset: int) -> None:
        server.log_start = 75

    with (
        KafkaServer("t", batches_of(10), fault=retention) as server,
        pytest.raises(
            DataLoss, match=r"Cannot fetch offset 0 of t-0.*start offset is 75.*up to 100.*failOnDataLoss"
        ),
    ):
        rows(server)
    with KafkaServer("t", batches_of(10), fault=retention) as server:
        assert offsets(rows(server, failOnDataLoss=False)) == list(range(75, 100))


def test_a_login_of_the_drivers_jvm_on_another_host(tmp_path: Path) -> None:
    with (
        KafkaServer("t", batches_of(1)) as server,
        pytest.raises(SourceUnavailable, match="by the JVM of Spark's driver, and that is not on this host"),
    ):
        rows(server, **{"mpbroker.relay": tmp_path / "socket"})


@pytest.mark.parametrize("fetch_max", [18, 12], ids=["by-id", "by-name"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_topic_that_is_made_anew_is_not_the_planned_one(fetch_max: int, when: str) -> None:
    def anew(nth: int, _offset: int) -> None:
        if when == "meanwhile" and nth == 3:
            server.topic_id = b"id of another..."

    with KafkaServer("t", batches_of(60), fetch_max=fetch_max, fault=anew) as server:
        tasks, options = planned(**given(server, failOnDataLoss=False))
        if when == "before":
            server.topic_id = b"id of another..."
        found = rows_of(tasks, options)
        assert len(found) < 600
        assert (found == []) == (when == "before")
        server.topic_id, server.fetches = b"an id of a topic", []
        tasks, options = planned(**given(server))
        if when == "before":
            server.topic_id = b"id of another..."
        with pytest.raises(
            DataLoss, match=r"topic t was deleted since the query was planned.*failOnDataLoss"
        ):
            rows_of(tasks, options)


def test_a_topic_that_is_deleted_meanwhile() -> None:
    with KafkaServer("t", batches_of(6)) as server:
        lost, careless = planned(**given(server)), planned(**given(server, failOnDataLoss=False))
        server.topic, server.topic_id = "other", b"id of another..."
        with pytest.raises(DataLoss, match="topic t was deleted"):
            rows_of(*lost)
        assert rows_of(*careless) == []


def test_tasks_share_a_connection() -> None:
    with KafkaServer("t", batches_of(60)) as server:
        tasks, options = planned(**given(server, minPartitions=20))
        before = (server.connections, server.asked.count(ApiKey.METADATA))
        assert offsets(rows_of(tasks, options)) == list(range(600))
        assert len(tasks) == 20
        assert (server.connections, server.asked.count(ApiKey.METADATA)) == before


def test_a_connection_that_ended_is_made_again() -> None:
    with KafkaServer("t", batches_of(6)) as server:
        tasks, options = planned(**given(server, minPartitions=2, **{"fetchOffset.numRetries": 0}))
        before = server.connections
        first = rows_of(tasks[:1], options)
        server.hang_up()
        assert offsets(first + rows_of(tasks[1:], options)) == list(range(60))
        assert server.connections == before + 1


def test_a_reader_that_is_left_alone_gives_no_connection_back_that_is_busy() -> None:
    with KafkaServer("t", batches_of(3000)) as server:
        tasks, options = planned(**given(server))
        begun = read_range(tasks[0], SCHEMA, options)
        next(begun)
        both = rows_of(tasks, options)
        begun.close()
        assert offsets(both) == offsets(rows_of(tasks, options)) == list(range(30_000))


def test_a_forked_process_has_its_own_connections() -> None:
    with KafkaServer("t", batches_of(6)) as server:
        tasks, options = planned(**given(server))
        before = server.connections
        pid = os.fork()
        if pid == 0:
            # Whatever happens, this copy of the test must not go on.
            code = 1
            try:
                code = 0 if offsets(rows_of(tasks, options)) == list(range(60)) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert server.connections > before
        after = server.connections
        assert offsets(rows_of(tasks, options)) == list(range(60))
        assert server.connections == after


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
        with pytest.raises(OptionError, match="not a broker's log directory"):
            rows(server, **{"log.dir": tmp_path / "elsewhere", "readMode": "local"})


@pytest.mark.parametrize("text", ["host:", ":1", "host:0", "host:99999", ","])
def test_servers_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        servers_of(text)


def test_servers() -> None:
    assert servers_of("a:1, [::1]:2, b") == [("a", 1), ("::1", 2), ("b", 9092)]
