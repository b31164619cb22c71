"""DeleteRecords, OffsetForLeaderEpoch, log directories and moves: a handler whose peers are the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.handlers.api_parts import log_questions
from mpbroker.ipc import calls, slots
from mpbroker.ipc.calls import (
    ActiveProducer,
    DeleteBefore,
    DeletedBefore,
    DeletedRecords,
    DeleteRecords,
    MovePartition,
    MovePartitions,
    Moves,
    MovesBegun,
    MovingPartition,
    PartitionProducers,
    Producers,
    ProducersOfPartition,
    TellMoves,
    TellProducers,
)
from mpbroker.ipc.process import LOG_FENCE_CLOSE, LOG_FENCE_RESUME
from mpbroker.ipc.slots import SlotKind
from mpbroker.ipc.table import PartitionFlag
from mpbroker.ipc.topology import LOG
from mpbroker.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DeleteRecordsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    ListOffsetsRequest,
    ListPartitionReassignmentsRequest,
    OffsetForLeaderEpochRequest,
    WriteTxnMarkersRequest,
)
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, COMMIT, marker_of
from mpbroker.storage.checkpoints import write_epochs
from tests.support.handler_rig import (
    HANDLER,
    PROCESSOR,
    Rig,
    delta,
    fence,
    partition_payload,
    request_frame,
    rig,
    topic_id,
    topic_image,
)

LIST_OFFSETS, DELETE, EPOCHS, MARKERS, MOVE = 2, 21, 23, 27, 34
DIRS, REASSIGN, REASSIGNING, PRODUCERS = 35, 45, 46, 61
INVALID_ASSIGNMENT, LOG_DIR_NOT_FOUND, NO_REASSIGNMENT = 39, 57, 85
ORDERS = topic_image("orders", 1, partitions=2)
COMPACTED = topic_image("compacted", 2, first_slot=3, cleanup_policy="compact")
BOTH = topic_image("both", 3, first_slot=4, cleanup_policy="compact,delete")
INTERNAL = topic_image("__consumer_offsets", 4, first_slot=5, internal=True)
UNKNOWN, OUT_OF_RANGE, NOT_LEADER, INVALID_TOPIC, POLICY, STORAGE = 3, 1, 6, 17, 44, 56


@pytest.fixture(name="ready")
def _ready(tmp_path: Path) -> Iterator[Rig]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with rig(BrokerConfig(log_dirs=(str(tmp_path / "one"), str(tmp_path / "two")))) as made:
        made.publish(ORDERS, COMPACTED, BOTH, INTERNAL)
        yield made


def calls_to_log(made: Rig) -> list[tuple[Any, Any]]:
    taken, _ = made.memory.ring(HANDLER, LOG).take(1 << 10)
    found = []
    for i in range(len(taken) // 64):
        if slots.kind_of(taken, i) == SlotKind.CALL:
            call = slots.unpack_call(taken, i)
            view = made.memory.arena(call.owner).view(call.block, call.length)
            found.append((call, calls.decode(bytes(view))))
    return found


def answer_from_log(made: Rig, call: Any, message: calls.Message, *, turns: bool = True) -> None:
    payload = calls.encode(message)
    arena = made.memory.arena(LOG)
    block = arena.allocate(len(payload))
    arena.view(block, len(payload))[:] = payload
    generation = arena.lend(block, HANDLER)
    slot = slots.pack_call(SlotKind.ANSWER, LOG, call.request, block, generation, len(payload))
    assert made.memory.ring(LOG, HANDLER).push(slot)
    if turns:
        made.turn()


def delete(*wanted: tuple[str, int, int]) -> DeleteRecordsRequest:
    return DeleteRecordsRequest(
        [
            DeleteRecordsRequest.DeleteRecordsTopic(
                name, [DeleteRecordsRequest.DeleteRecordsPartition(number, offset)]
            )
            for name, number, offset in wanted
        ],
        10_000,
    )


def results(response: Any) -> list[tuple[int, int]]:
    return [(p.error_code, p.low_watermark) for t in response.topics for p in t.partitions]


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_by_the_log_process(ready: Rig, version: int) -> None:
    ready.send(DELETE, version, delete(("orders", 1, 7), ("none", 0, 1), ("both", 0, -1)))
    ((call, asked),) = calls_to_log(ready)
    assert asked == DeleteRecords([DeleteBefore(1, 5, 7), DeleteBefore(4, 5, -1)])
    assert not ready.processor.replies()
    answer_from_log(ready, call, DeletedRecords([DeletedBefore(0, 7), DeletedBefore(OUT_OF_RANGE)]))
    assert results(ready.answer(DELETE, version)) == [(0, 7), (UNKNOWN, -1), (OUT_OF_RANGE, -1)]


def test_what_cannot_be_deleted_is_not_asked_for(ready: Rig) -> None:
    ready.table.write(1, partition_payload(ORDERS, 1, flags=PartitionFlag.PARTITION_OFFLINE))
    wanted = (
        ("compacted", 0, 1),
        ("__consumer_offsets", 0, 1),
        ("orders", 2, 1),
        ("orders", 1, 1),
        ("no", 0, 1),
    )
    response = ready.ask(DELETE, 2, delete(*wanted))
    codes = [POLICY, INVALID_TOPIC, UNKNOWN, STORAGE, UNKNOWN]
    assert results(response) == [(code, -1) for code in codes]
    assert not calls_to_log(ready)


def describe(*wanted: tuple[str, list[int]]) -> DescribeProducersRequest:
    return DescribeProducersRequest([DescribeProducersRequest.TopicRequest(*one) for one in wanted])


def test_producers_are_told_by_the_log_process(ready: Rig) -> None:
    ready.send(PRODUCERS, 0, describe(("orders", [1, 7]), ("no", [0]), ("both", [0])))
    ((call, asked),) = calls_to_log(ready)
    assert asked == TellProducers([PartitionProducers(1, 5), PartitionProducers(4, 5)])
    known = ActiveProducer(9, 2, 41, 1000, 3, 17)
    answer_from_log(
        ready, call, Producers([ProducersOfPartition(0, [known]), ProducersOfPartition(NOT_LEADER)])
    )
    response = ready.answer(PRODUCERS, 0)
    found = [(p.partition_index, p.error_code) for t in response.topics for p in t.partitions]
    assert found == [(1, 0), (7, UNKNOWN), (0, UNKNOWN), (0, NOT_LEADER)]
    (told,) = response.topics[0].partitions[0].active_producers
    assert (told.producer_id, told.producer_epoch, told.last_sequence) == (9, 2, 41)
    assert (told.last_timestamp, told.coordinator_epoch, told.current_txn_start_offset) == (1000, 3, 17)


def test_a_partition_is_told_of_once_and_deleted_from_once(ready: Rig) -> None:
    """A short request must not have a long answer; what two entries of the same partition want is no more."""
    ready.processor.send(request_frame(PRODUCERS, 0, describe(("orders", [1, 1, 0]), ("orders", [1]))))
    ready.send(DELETE, 2, delete(("orders", 1, 7), ("orders", 0, 3), ("orders", 1, 5)))
    asked = [message for _, message in calls_to_log(ready)]
    assert TellProducers([PartitionProducers(1, 5), PartitionProducers(0, 5)]) in asked
    ready.turn()
    asked += [message for _, message in calls_to_log(ready)]
    assert DeleteRecords([DeleteBefore(1, 5, 5), DeleteBefore(0, 5, 3)]) in asked


@pytest.mark.parametrize(
    ("at_once", "first"),
    [(2, [1, 0]), (log_questions.AT_ONCE, [1, 0, 4])],
    ids=["asked about some at a time", "answers for some"],
)
def test_a_log_worker_is_asked_until_all_partitions_are_answered(
    ready: Rig, monkeypatch: pytest.MonkeyPatch, at_once: int, first: list[int]
) -> None:
    monkeypatch.setattr(log_questions, "AT_ONCE", at_once)
    ready.send(PRODUCERS, 0, describe(("orders", [1, 0]), ("both", [0])))
    for wanted, told in ((first, [1, 0]), ([4], [4])):
        ((call, asked),) = calls_to_log(ready)
        assert [one.slot for one in asked.partitions] == wanted
        found = [ProducersOfPartition(0, [ActiveProducer(slot, 0, 0, 0, 0, 0)]) for slot in told]
        answer_from_log(ready, call, Producers(found))
    response = ready.answer(PRODUCERS, 0)
    assert [p.active_producers[0].producer_id for t in response.topics for p in t.partitions] == [1, 0, 4]


def test_the_log_process_dies_between_two_questions(ready: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_questions, "AT_ONCE", 1)
    ready.send(PRODUCERS, 0, describe(("orders", [1, 0]), ("both", [0])))
    ((call, _),) = calls_to_log(ready)
    answer_from_log(ready, call, Producers([ProducersOfPartition(0, [])]))
    fence(ready, LOG, alive=False, stage=LOG_FENCE_CLOSE)
    ready.turn()
    response = ready.answer(PRODUCERS, 0)
    assert [p.error_code for t in response.topics for p in t.partitions] == [0, NOT_LEADER, NOT_LEADER]


def test_the_producers_of_a_log_process_that_dies(ready: Rig) -> None:
    ready.send(PRODUCERS, 0, describe(("orders", [0])))
    calls_to_log(ready)
    fence(ready, LOG, alive=False, stage=LOG_FENCE_CLOSE)
    ready.turn()
    assert ready.answer(PRODUCERS, 0).topics[0].partitions[0].error_code == NOT_LEADER


def marker(producer_id: int, *topics: tuple[str, list[int]], commit: bool = False) -> Any:
    named = [WriteTxnMarkersRequest.WritableTxnMarkerTopic(*one) for one in topics]
    return WriteTxnMarkersRequest.WritableTxnMarker(producer_id, 2, commit, named, 5)


@pytest.mark.parametrize(("error", "expected"), [(0, 0), (47, 47), (None, NOT_LEADER)])
def test_markers_are_appended(ready: Rig, error: int | None, expected: int) -> None:
    """Check that markers are written in the order of the request.

    An error of one does not affect others, nor does a log process that dies.
    """
    orders, wrong = ("orders", [0]), ("orders", [0, 3])
    markers = [
        marker(9, orders),
        marker(10, wrong, ("__consumer_offsets", [0]), commit=True),
        marker(-1, orders),
    ]
    ready.send(MARKERS, 2, WriteTxnMarkersRequest(markers))
    (job,) = ready.log.take()
    asked = ready.log.batches(job)
    written = [next(iterate_batches(ready.log.data_of(job, batch))) for batch in asked]
    assert [(one.header.producer_id, one.header.producer_epoch) for one in written] == [(9, 2), (10, 2)]
    assert [marker_of(one.bytes) for one in written] == [(ABORT, 5), (COMMIT, 5)]
    for batch, one in zip(asked, written, strict=True):
        assert (batch.slot, batch.slot_generation, batch.record_count) == (0, 5, 1)
        assert (batch.attributes, batch.max_timestamp) == (one.header.attributes, one.header.max_timestamp)
    assert job.acks == -1
    if error is None:
        fence(ready, LOG, alive=False, stage=LOG_FENCE_CLOSE)
    else:
        ready.log.append(job, error)
    ready.turn()
    response = ready.answer(MARKERS, 2)
    found = [[p.error_code for t in m.topics for p in t.partitions] for m in response.markers]
    assert found == [[expected], [expected, UNKNOWN, INVALID_TOPIC], [49]]


def test_others_are_served_while_many_markers_are_made(ready: Rig) -> None:
    request = WriteTxnMarkersRequest([marker(number, ("orders", [0, 1, 0])) for number in range(200)])
    ready.send(MARKERS, 2, request, connection=1)
    assert ready.serve_others() >= 2
    (job,) = ready.log.take()
    written = [(batch.slot, batch.producer_id) for batch in ready.log.batches(job)]
    assert written == [(slot, number) for number in range(200) for slot in (0, 1)]


def test_markers_for_nobody(ready: Rig) -> None:
    response = ready.ask(MARKERS, 1, WriteTxnMarkersRequest([marker(9, ("no", [0]))]))
    assert response.markers[0].topics[0].partitions[0].error_code == UNKNOWN
    assert ready.log.take() == []


def test_the_log_process_dies(ready: Rig) -> None:
    """Check the answer if the log process had seen the call, or had not, and after it has a successor."""
    ready.send(DELETE, 2, delete(("orders", 0, 7)))
    calls_to_log(ready)
    fence(ready, LOG, alive=False, stage=LOG_FENCE_CLOSE)
    ready.turn()
    assert results(ready.answer(DELETE, 2)) == [(NOT_LEADER, -1)]
    fence(ready, LOG, alive=False, stage=LOG_FENCE_RESUME)
    assert results(ready.ask(DELETE, 2, delete(("orders", 0, 7)))) == [(NOT_LEADER, -1)]
    ready.welcome(LOG)
    ready.send(DELETE, 2, delete(("orders", 0, 7)))
    assert len(calls_to_log(ready)) == 1


def test_a_call_that_waits_for_room_outlives_a_processor(ready: Rig) -> None:
    """Check it while the ring to the log process is full of jobs."""
    ring = ready.memory.ring(HANDLER, LOG)
    while ring.push(slots.pack_return(LOG, 0, 0)):
        pass
    ready.handler.turn.rebind_log()
    ready.send(DELETE, 2, delete(("orders", 0, 7)))
    assert ready.handler.turn.waiting_jobs == 1
    fence(ready, PROCESSOR, alive=False)
    assert ready.handler.turn.waiting_jobs == 1
    ring.take(1 << 12)
    ready.turn()
    assert len(calls_to_log(ready)) == 1


def epochs_of(made: Rig, *wanted: tuple[int, int], version: int = 4) -> list[tuple[int, int, int]]:
    """(error, epoch, end offset) for each (current epoch, epoch) of orders-0."""
    partitions = [
        OffsetForLeaderEpochRequest.OffsetForLeaderPartition(0, current, epoch) for current, epoch in wanted
    ]
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic("orders", partitions)
    response = made.ask(EPOCHS, version, OffsetForLeaderEpochRequest(-1, [topic]))
    (answer,) = response.topics
    return [(p.error_code, p.leader_epoch, p.end_offset) for p in answer.partitions]


@pytest.mark.parametrize("version", range(2, 5))
def test_where_epochs_end(ready: Rig, tmp_path: Path, version: int) -> None:
    directory = tmp_path / "two" / "orders-0"
    directory.mkdir()
    write_epochs(directory, [(2, 40), (5, 90)])
    payload = partition_payload(
        ORDERS, leader_epoch=5, log_dir=1, log_start_offset=40, high_watermark=100, log_end_offset=100
    )
    ready.table.write(0, payload)
    wanted = ((-1, 5), (5, 4), (5, 2), (5, 1), (5, 6), (4, 5), (6, 5), (-1, -1))
    assert epochs_of(ready, *wanted, version=version) == [
        (0, 5, 100),
        (0, 2, 90),
        (0, 2, 90),
        (0, 1, 40),
        (0, -1, -1),
        (74, -1, -1),
        (75, -1, -1),
        (0, -1, -1),
    ]
    partition = ListOffsetsRequest.ListOffsetsPartition(0, -1, -2)
    topic = ListOffsetsRequest.ListOffsetsTopic("orders", [partition])
    response = ready.ask(LIST_OFFSETS, 11, ListOffsetsRequest(-1, 0, [topic]))
    (answer,) = response.topics[0].partitions
    assert (answer.error_code, answer.offset, answer.leader_epoch) == (0, 40, 2)
    (directory / "leader-epoch-checkpoint").write_text("nonsense\n")
    assert epochs_of(ready, (5, 2)) == [(STORAGE, -1, -1)]
    assert epochs_of(ready, (5, 5)) == [(0, 5, 100)]


def described(ready: Rig, version: int, request: DescribeLogDirsRequest, *moves: MovingPartition) -> Any:
    """Return the response to a DescribeLogDirs, for which the log process says which partitions move."""
    ready.send(DIRS, version, request)
    ((call, asked),) = calls_to_log(ready)
    assert asked == TellMoves()
    answer_from_log(ready, call, Moves([*moves]))
    return ready.answer(DIRS, version)


def test_log_dirs(ready: Rig, tmp_path: Path) -> None:
    sizes = {"orders-0": (10, 20), "orders-1": (7,), "both-0": (0,)}
    for name, segments in sizes.items():
        (tmp_path / "one" / name).mkdir()
        for base, size in enumerate(segments):
            (tmp_path / "one" / name / f"{base:020d}.log").write_bytes(bytes(size))
        (tmp_path / "one" / name / f"{0:020d}.index").write_bytes(bytes(100))
        (tmp_path / "one" / name / f"{9:020d}.log.deleted").write_bytes(bytes(100))
    response = described(ready, 5, DescribeLogDirsRequest(None))
    assert response.error_code == 0
    one, two = response.results
    found = {(t.name, p.partition_index): p.partition_size for t in one.topics for p in t.partitions}
    assert found == {("orders", 0): 30, ("orders", 1): 7, ("both", 0): 0}
    assert (one.log_dir, two.log_dir) == (str(tmp_path / "one"), str(tmp_path / "two"))
    assert not two.topics
    assert one.total_bytes > one.usable_bytes > 0
    ready.memory.words("failed_dirs").store(0, 1)
    wanted = [DescribeLogDirsRequest.DescribableLogDirTopic("orders", [1, 9])]
    one, two = described(ready, 4, DescribeLogDirsRequest(wanted)).results
    assert (one.error_code, one.total_bytes, one.topics) == (STORAGE, -1, [])
    assert (two.error_code, two.topics) == (0, [])


def test_many_partitions_are_described_piece_by_piece(ready: Rig, tmp_path: Path) -> None:
    """Check that the handler serves other requests in between."""
    many = topic_image("many", 9, partitions=50, first_slot=10)
    assert many.topic_id == topic_id(9)
    for number in range(50):
        (tmp_path / "one" / f"many-{number}").mkdir()
    ready.bulletin.publish_delta(delta(many))
    for partition in many.partitions.values():
        ready.table.write(partition.slot, partition_payload(many, partition.partition))
    ready.turn()
    wanted = [DescribeLogDirsRequest.DescribableLogDirTopic("many", list(range(50)))]
    ready.send(DIRS, 5, DescribeLogDirsRequest(wanted))
    ((call, _),) = calls_to_log(ready)
    answer_from_log(ready, call, Moves([]), turns=False)
    ready.handler.take_and_serve(0)
    assert ready.handler.scheduler.has_work()
    ready.turn()
    one, _ = ready.answer(DIRS, 5).results
    assert len(one.topics[0].partitions) == 50


# ---- AlterReplicaLogDirs, and what kafka-reassign-partitions asks before it ----


def move_to(*wanted: tuple[str, str, int]) -> AlterReplicaLogDirsRequest:
    """(directory, topic, partition)"""
    request = AlterReplicaLogDirsRequest
    return request(
        [
            request.AlterReplicaLogDir(path, [request.AlterReplicaLogDirTopic(topic, [partition])])
            for path, topic, partition in wanted
        ]
    )


def errors_of(response: Any) -> dict[tuple[str, int], int]:
    return {(t.topic_name, p.partition_index): p.error_code for t in response.results for p in t.partitions}


@pytest.mark.parametrize("version", [1, 2])
def test_moves_are_begun_by_the_log_process(ready: Rig, tmp_path: Path, version: int) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    long = "t" * 220
    wanted = move_to((two, "orders", 1), (one, "none", 3), ("/nowhere", "orders", 0), (two, long, 0))
    ready.send(MOVE, version, wanted)
    ((call, asked),) = calls_to_log(ready)
    assert asked == MovePartitions(
        [MovePartition("orders", 1, topic_id(1), 1), MovePartition("none", 3, bytes(16), 0)]
    )
    assert not ready.processor.replies()
    answer_from_log(ready, call, MovesBegun([0, UNKNOWN]))
    assert errors_of(ready.answer(MOVE, version)) == {
        ("orders", 1): 0,
        ("none", 3): UNKNOWN,
        ("orders", 0): LOG_DIR_NOT_FOUND,
        (long, 0): INVALID_TOPIC,
    }


def test_nothing_moves_to_a_directory_that_failed(ready: Rig, tmp_path: Path) -> None:
    ready.memory.words("failed_dirs").store(0, 0b10)
    response = ready.ask(MOVE, 2, move_to((str(tmp_path / "two"), "orders", 0)))
    assert errors_of(response) == {("orders", 0): STORAGE}
    assert not calls_to_log(ready)


def moving(log_dirs: Path, current_bytes: int, future_bytes: int) -> Path:
    """Write the replicas of orders-0, which moves from `one` to `two`. Return the future one's directory."""
    current, future = log_dirs / "one" / "orders-0", log_dirs / "two" / f"orders-0.{'a' * 32}-future"
    for directory, size in ((current, current_bytes), (future, future_bytes)):
        directory.mkdir()
        (directory / f"{0:020d}.log").write_bytes(bytes(size))
    return future


def test_a_future_replica_is_described(ready: Rig, tmp_path: Path) -> None:
    future = moving(tmp_path, 700, 300)
    moves = [MovingPartition("orders", 0, 1, str(future), 42), MovingPartition("gone", 0, 1, "/gone", 1)]
    one, two = described(ready, 5, DescribeLogDirsRequest(None), *moves).results
    for result, expected in ((one, (700, 0, False)), (two, (300, 42, True))):
        ((topic,),) = [result.topics]
        ((partition,),) = [topic.partitions]
        assert (topic.name, partition.partition_index) == ("orders", 0)
        assert (partition.partition_size, partition.offset_lag, partition.is_future_key) == expected


def test_moves_go_on_though_nobody_tells_of_them(ready: Rig, tmp_path: Path) -> None:
    """The log process has died, or its successor has not resumed them yet: the lag is not known."""
    moving(tmp_path, 700, 300)
    two = described(ready, 5, DescribeLogDirsRequest(None)).results[1]
    ready.send(DIRS, 5, DescribeLogDirsRequest(None))
    calls_to_log(ready)
    fence(ready, LOG, alive=False, stage=LOG_FENCE_CLOSE)
    ready.turn()
    for result in (two, ready.answer(DIRS, 5).results[1]):
        ((partition,),) = [topic.partitions for topic in result.topics]
        assert (partition.partition_size, partition.offset_lag, partition.is_future_key) == (300, -1, True)


def test_a_replica_that_gets_its_place_is_seen_in_one_or_the_other(ready: Rig, tmp_path: Path) -> None:
    """Whoever sees neither would take the move for given up."""
    future = moving(tmp_path, 700, 700)
    move = MovingPartition("orders", 0, 1, str(future), 0)
    future.rename(tmp_path / "two" / "orders-0")
    one, two = described(ready, 5, DescribeLogDirsRequest(None), move).results
    assert [p.is_future_key for result in (one, two) for p in result.topics[0].partitions] == [False, True]
    assert two.topics[0].partitions[0].partition_size == 700
    ready.memory.table().write(0, partition_payload(ORDERS, log_dir=1))
    one, two = described(ready, 5, DescribeLogDirsRequest(None), move).results
    assert (one.topics, [p.is_future_key for p in two.topics[0].partitions]) == ([], [False])


def test_partitions_are_where_they_can_be(ready: Rig) -> None:
    node = ready.handler.broker.metadata.node_id
    request = AlterPartitionReassignmentsRequest
    wanted: list[list[int] | None] = [[node], None, [], [node, node], [node, node + 1]]
    partitions = [request.ReassignablePartition(0, replicas) for replicas in wanted]
    topics = [request.ReassignableTopic("orders", partitions)]
    topics.append(request.ReassignableTopic("none", [request.ReassignablePartition(0, [node])]))
    response = ready.ask(REASSIGN, 1, request(topics=topics))
    found = [p.error_code for t in response.responses for p in t.partitions]
    assert found == [0, NO_REASSIGNMENT, *[INVALID_ASSIGNMENT] * 3, UNKNOWN]
    assert ready.ask(REASSIGNING, 0, ListPartitionReassignmentsRequest()).topics == []
