"""Slots of the partition table that a log worker is writing, or died over: what clients are told meanwhile.

A slot whose writer is faster than who reads it, a thousand times in a row, is one with the version 2**64 - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.calls import DeletedBefore, DeletedRecords
from mpbroker.ipc.partition_counts import count_partitions
from mpbroker.ipc.slots import SlotFlag
from mpbroker.ipc.table import PAYLOAD_BYTES
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    DeleteRecordsRequest,
    ElectLeadersRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from shm.table import slot_bytes
from shm.word import Words
from tests.handlers.test_log_apis import answer_from_log, calls_to_log
from tests.log.scrub.test_scrub_process import Busy
from tests.support.fetch_logs import PARTITIONS, Logs, decoded, logs, topics_of, wanted

BUSY, OTHER = 1, 2
NAME = "logged"
TWICE = 2
NEVER = (1 << 64) - 1
NOT_LEADER, NOT_NEEDED = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.ELECTION_NOT_NEEDED
Codes = dict[int, int]


@pytest.fixture(name="log")
def _log(tmp_path: Path) -> Iterator[Logs]:
    """Publish each partition twice, so that both copies of its slot are written."""
    with logs(tmp_path) as made:
        for one in made.partitions:
            for _ in range(TWICE):
                one.append()
        yield made


def slot_of(log: Logs, number: int) -> memoryview:
    """Slots are numbered as partitions are here."""
    each = slot_bytes(PAYLOAD_BYTES)
    block: memoryview = log.rig.memory.public.block("table")
    return block[number * each : (number + 1) * each]


def make_busy(log: Logs) -> None:
    Words(slot_of(log, BUSY)).store(0, NEVER)


def begin_to_write(log: Logs) -> None:
    """Leave each slot as a log worker does that is killed while it writes."""
    for number in range(PARTITIONS):
        slot = slot_of(log, number)
        at = 64 + PAYLOAD_BYTES * ((Words(slot).load(0) + 1) % 2)
        slot[at : at + PAYLOAD_BYTES // 2] = b"\xff" * (PAYLOAD_BYTES // 2)


def fetch(log: Logs) -> Any:
    frame = log.ask(12, FetchRequest(min_bytes=1, topics=topics_of([wanted(BUSY, 0), wanted(OTHER, 0)])))
    return decoded(12, frame)


def list_offsets(log: Logs) -> Any:
    asked = [ListOffsetsRequest.ListOffsetsPartition(number, timestamp=-1) for number in (BUSY, OTHER)]
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(NAME, asked)])
    return log.rig.ask(ApiKey.LIST_OFFSETS, 7, request)


def epochs(log: Logs) -> Any:
    asked = [
        OffsetForLeaderEpochRequest.OffsetForLeaderPartition(number, leader_epoch=0)
        for number in (BUSY, OTHER)
    ]
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(NAME, asked)]
    )
    return log.rig.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request)


def metadata(log: Logs) -> Any:
    asked = [MetadataRequest.MetadataRequestTopic(name=NAME)]
    return log.rig.ask(ApiKey.METADATA, 12, MetadataRequest(topics=asked))


def elect(log: Logs) -> Any:
    asked = [ElectLeadersRequest.TopicPartitions(NAME, [BUSY, OTHER])]
    return log.rig.ask(ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(0, asked))


def delete(log: Logs) -> Any:
    """The log worker deletes what it is asked to."""
    asked = [DeleteRecordsRequest.DeleteRecordsPartition(number, 1) for number in (BUSY, OTHER)]
    request = DeleteRecordsRequest([DeleteRecordsRequest.DeleteRecordsTopic(NAME, asked)], 10_000)
    log.rig.send(ApiKey.DELETE_RECORDS, 2, request)
    ((call, asked_for),) = calls_to_log(log.rig)
    answer_from_log(log.rig, call, DeletedRecords([DeletedBefore(0, 1) for _ in asked_for.partitions]))
    return log.rig.answer(ApiKey.DELETE_RECORDS, 2)


def produce(log: Logs) -> Any:
    """Produce an invalid batch to both partitions; its error comes with the log start offset.

    A valid batch would be for the log worker to look at.
    """
    late = bytes(build_batch([NewRecord(b"v", timestamp=1 << 60)]))
    asked = [ProduceRequest.PartitionProduceData(number, late) for number in (BUSY, OTHER)]
    request = ProduceRequest(
        acks=-1, topic_data=[ProduceRequest.TopicProduceData(NAME, partition_data=asked)]
    )
    response = log.rig.ask(ApiKey.PRODUCE, 9, request)
    for topic in response.responses:
        for one in topic.partition_responses:
            # They say what time it is.
            one.error_message, one.record_errors = "", []
    return response


def fetched(response: Any) -> Codes:
    return {p.partition_index: p.error_code for t in response.responses for p in t.partitions}


def by_index(response: Any) -> Codes:
    return {p.partition_index: p.error_code for t in response.topics for p in t.partitions}


def by_partition(response: Any) -> Codes:
    return {p.partition: p.error_code for t in response.topics for p in t.partitions}


def described(response: Any) -> Codes:
    assert all(p.leader_id >= 0 for t in response.topics for p in t.partitions)
    found = {p.partition_index: p.error_code for t in response.topics for p in t.partitions}
    return {number: found[number] for number in (BUSY, OTHER)}


def elected(response: Any) -> Codes:
    results = response.replica_election_results
    return {p.partition_id: p.error_code for t in results for p in t.partition_result}


def produced(response: Any) -> Codes:
    return {p.index: p.error_code for t in response.responses for p in t.partition_responses}


INVALID = ErrorCode.INVALID_TIMESTAMP
CASES: dict[str, tuple[Callable[[Logs], Any], Callable[[Any], Codes], Codes, Codes]] = {
    "fetch": (fetch, fetched, {BUSY: 0, OTHER: 0}, {BUSY: NOT_LEADER, OTHER: 0}),
    "list offsets": (list_offsets, by_index, {BUSY: 0, OTHER: 0}, {BUSY: NOT_LEADER, OTHER: 0}),
    "epochs": (epochs, by_partition, {BUSY: 0, OTHER: 0}, {BUSY: NOT_LEADER, OTHER: 0}),
    "delete": (delete, by_index, {BUSY: 0, OTHER: 0}, {BUSY: NOT_LEADER, OTHER: 0}),
    # There is no other broker that could have it.
    "metadata": (metadata, described, {BUSY: 0, OTHER: 0}, {BUSY: 0, OTHER: 0}),
    "elect": (elect, elected, {BUSY: NOT_NEEDED, OTHER: NOT_NEEDED}, {BUSY: NOT_NEEDED, OTHER: NOT_NEEDED}),
    "produce": (produce, produced, {BUSY: INVALID, OTHER: INVALID}, {BUSY: INVALID, OTHER: INVALID}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_slot_that_cannot_be_read_now_concerns_its_partition_alone(log: Logs, name: str) -> None:
    """Check that only this partition gets an error, until its slot can be read."""
    ask, codes, usual, busy = CASES[name]
    before = ask(log)
    assert codes(before) == usual
    make_busy(log)
    assert codes(ask(log)) == busy
    log.partitions[BUSY].publish()
    assert codes(ask(log)) == usual


@pytest.mark.parametrize("name", CASES)
def test_a_log_worker_that_dies_over_a_slot_leaves_what_it_said_before(log: Logs, name: str) -> None:
    ask = CASES[name][0]
    before = ask(log)
    begin_to_write(log)
    assert ask(log) == before


def test_a_fetch_of_a_replaced_file_while_the_slot_is_busy(log: Logs) -> None:
    make_busy(log)
    request = FetchRequest(min_bytes=1, topics=topics_of([wanted(BUSY, 0), wanted(OTHER, 0)]))
    frame = log.ask(12, request, flags=SlotFlag.AGAIN)
    assert fetched(decoded(12, frame)) == {BUSY: NOT_LEADER, OTHER: 0}


def test_partitions_are_counted_whatever_is_being_written(log: Logs) -> None:
    sizes = log.rig.memory.sizes
    busy = Busy(log.rig.memory.public.block("table"), sizes.partition_slots, PAYLOAD_BYTES)
    counts = count_partitions(busy)
    assert busy.met
    assert (dict(counts.live), counts.offline) == ({0: PARTITIONS - 1}, 0), "the first one is the metadata's"
