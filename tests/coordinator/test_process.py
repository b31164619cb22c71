"""The coordinator process over real rings: answers, order of things, full rings, fences and deaths."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.coordinator.log_link import QUESTIONS_UNDER_WAY
from mpbroker.coordinator.metadata import metadata_records
from mpbroker.coordinator.metadata.metadata_records import decode_record
from mpbroker.coordinator.metadata_controller import Phase
from mpbroker.coordinator.process import Coordinator
from mpbroker.ipc.calls import (
    Acknowledged,
    AllocateProducerIds,
    CreatedTopics,
    CreateTopic,
    CreateTopics,
    DeletedTopics,
    DeleteTopics,
    Failed,
    Message,
    ProducerIds,
    ReadSettings,
)
from mpbroker.ipc.process import ProcessContext
from mpbroker.ipc.slots import SlotKind, pack_produce, unpack_call
from mpbroker.ipc.topology import CALL_RING_SLOTS, COORDINATOR, SharedMemory
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import FeatureLevelRecord
from mpbroker.records.iterate import iterate_batches
from shm.clock import wall_ms
from tests.support.coordinator_tree import CLUSTER_ID, CoordinatorTree
from tests.support.polling import until


def create(*names: str, partitions: int = 1) -> CreateTopics:
    return CreateTopics([CreateTopic(name, partitions) for name in names])


def errors(answer: Message) -> dict[str | None, int]:
    assert isinstance(answer, CreatedTopics | DeletedTopics), answer
    return {topic.name: topic.error for topic in answer.topics}


def test_an_empty_broker_becomes_ready(tree: CoordinatorTree) -> None:
    tree.until(lambda: tree.handlers[0].bases == 1)
    assert tree.handlers[0].topics == {}
    assert tree.handlers[0].cluster_id == "MkU3OEVBNTcwNTJENDM2Qg"
    tree.until(lambda: tree.log.recovered == 1)
    assert tree.stop() == 0


def test_create_is_seen_by_all_before_it_is_answered(tree: CoordinatorTree) -> None:
    answer = tree.ask(CreateTopics([CreateTopic("a", 2, configs={"retention.ms": "7"})]))
    assert errors(answer) == {"a": 0}
    tree.pump()
    for fake in tree.handlers:
        image = fake.topics["a"]
        assert [(p.partition, p.slot, p.slot_generation) for p in image.partitions.values()] == [
            (0, 1, 1),
            (1, 2, 1),
        ]
        assert (image.configs, image.config_version, image.internal) == ({"retention.ms": "7"}, 1, False)


def test_delete_is_seen_by_all_before_the_log_process_removes(tree: CoordinatorTree) -> None:
    tree.ask(create("a", "b"))
    topic_id = tree.handlers[0].topics["a"].topic_id
    seen = []

    def look() -> None:
        for fake in tree.handlers:
            fake.pump()
            seen.append((set(fake.topics), fake.index, len(fake.answers)))

    tree.log.on_remove = look
    assert errors(tree.ask(DeleteTopics(["a"]))) == {"a": 0}
    assert tree.log.removed == [topic_id]
    first, second = (fake.index for fake in tree.handlers)
    assert seen == [({"b"}, first, 1), ({"b"}, second, 0)]
    assert errors(tree.ask(create("a"))) == {"a": 0}
    assert tree.handlers[0].topics["a"].topic_id != topic_id


def test_calls_of_several_handlers_are_decided_one_after_the_other(tree: CoordinatorTree) -> None:
    """Let two handlers ask for the same name in one round, and check that one of them gets it."""
    requests = [fake.call(create("a")) for fake in tree.handlers]
    tree.until(lambda: all(r in fake.answers for r, fake in zip(requests, tree.handlers, strict=True)))
    codes = [errors(fake.answers[r])["a"] for r, fake in zip(requests, tree.handlers, strict=True)]
    assert sorted(codes) == [0, 36]


def test_delete_and_create_again_in_one_go(tree: CoordinatorTree) -> None:
    fake = tree.handlers[0]
    requests = [fake.call(message) for message in (create("a"), DeleteTopics(["a"]), create("a"))]
    tree.until(lambda: requests[-1] in fake.answers and len(fake.answers) == 3)
    assert [errors(fake.answers[r]) for r in requests] == [{"a": 0}] * 3
    tree.pump()
    assert list(fake.topics) == ["a"]


def test_automatic_creation_by_two_at_once_gives_one_topic(tree: CoordinatorTree) -> None:
    call = CreateTopics([CreateTopic("a")], automatic=True)
    requests = [fake.call(call) for fake in tree.handlers]
    tree.until(lambda: all(r in fake.answers for r, fake in zip(requests, tree.handlers, strict=True)))
    answers = [fake.answers[r] for r, fake in zip(requests, tree.handlers, strict=True)]
    assert [errors(answer) for answer in answers] == [{"a": 0}] * 2
    assert len({answer.topics[0].topic_id for answer in answers}) == 1


def test_nothing_is_answered_before_it_is_durable(tree: CoordinatorTree) -> None:
    fake = tree.handlers[0]
    request = fake.call(create("a"))
    tree.until(tree.append_waits, pump_log=False)
    fake.pump()
    assert fake.answers == {}
    tree.until(lambda: request in fake.answers)


def test_a_refused_append_was_never_believed(tree: CoordinatorTree) -> None:
    tree.log.refuse = 56
    answer = tree.ask(create("a"))
    assert isinstance(answer, Failed)
    assert answer.error == 56
    assert errors(tree.ask(create("a"))) == {"a": 0}


def test_an_append_of_unknown_outcome_is_looked_up(tree: CoordinatorTree) -> None:
    tree.log.refuse = 7
    assert errors(tree.ask(create("a"))) == {"a": 0}


def test_producer_ids(tree: CoordinatorTree) -> None:
    assert tree.ask(AllocateProducerIds(), 0) == ProducerIds(0, 1000)
    assert tree.ask(AllocateProducerIds(), 1) == ProducerIds(1000, 1000)


def test_more_to_open_than_a_ring_holds(tree: CoordinatorTree) -> None:
    """Check that no more topics are under way than the ring for the answers has room for."""
    fake = tree.handlers[0]
    request = fake.call(create(*(f"t{i}" for i in range(600))))
    tree.until(tree.append_waits, pump_log=False)
    tree.log.pump()
    tree.until(lambda: tree.log.inbox.waiting() >= QUESTIONS_UNDER_WAY, pump_log=False)
    assert tree.log.inbox.waiting() < CALL_RING_SLOTS
    tree.until(lambda: request in fake.answers)
    assert set(errors(fake.answers[request]).values()) == {0}
    tree.pump()
    assert len(fake.topics) == 600


def test_more_answers_than_a_ring_holds(tree: CoordinatorTree) -> None:
    """Let one handler take no answers for a while, and check that others are served and nothing is lost."""
    slow = tree.handlers[0]
    slow.sleeps = True
    calls = 2 * CALL_RING_SLOTS - 50
    for _ in range(calls):
        tree.until(lambda: slow.outbox.waiting() < CALL_RING_SLOTS // 2)
        slow.call(AllocateProducerIds())
    tree.until(lambda: slow.inbox.waiting() == CALL_RING_SLOTS and slow.outbox.waiting() == 0)
    assert errors(tree.ask(create("a"), 1)) == {"a": 0}
    slow.sleeps = False
    tree.until(lambda: len(slow.answers) == calls)
    assert len({answer.first for answer in slow.answers.values()}) == calls


def test_a_partition_that_cannot_be_opened_is_tried_again(tree: CoordinatorTree) -> None:
    tree.log.broken.add("a")
    assert errors(tree.ask(create("a"))) == {"a": 0}
    tree.pump()
    assert tree.handlers[0].topics["a"].partitions[0].slot_generation == 0
    tree.log.broken.clear()
    tree.until(lambda: tree.handlers[0].topics["a"].partitions[0].slot_generation == 1)


def test_an_offline_partition_keeps_the_slot_that_says_so(tree: CoordinatorTree) -> None:
    tree.log.offline.add("a")
    assert errors(tree.ask(create("a"))) == {"a": 0}
    tree.pump()
    image = tree.handlers[0].topics["a"].partitions[0]
    assert (image.slot, image.slot_generation) == (1, 1)
    assert tree.log.ensured == ["a"]


def test_why_a_partition_is_offline_is_said_by_its_log_worker_alone(
    make_tree: Callable[..., CoordinatorTree], tmp_path: Path
) -> None:
    tree = make_tree()
    log, written = logging.getLogger("mpbroker"), tmp_path / "log"
    handler = logging.FileHandler(written)
    log.addHandler(handler)
    try:
        tree.serve()
        log.error("what is written gets there")
        tree.log.offline.add("offline")
        assert errors(tree.ask(create("offline"))) == {"offline": 0}
        tree.pump()
        assert tree.handlers[0].topics["offline"].partitions[0].slot_generation == 1
    finally:
        log.removeHandler(handler)
        handler.close()
    assert written.read_text() == "what is written gets there\n"


def test_a_full_bulletin_gets_a_new_base(
    make_tree: Callable[..., CoordinatorTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedMemory, "BULLETIN_BYTES", 4096 + 2 * 8192)
    tree = make_tree()
    tree.serve()
    for number in range(200):
        assert errors(tree.ask(create(f"topic-{number:040}"))) == {f"topic-{number:040}": 0}
        assert errors(tree.ask(DeleteTopics([f"topic-{number:040}"]))) == {f"topic-{number:040}": 0}
    tree.ask(create("last"))
    tree.pump()
    assert all(fake.bases > 2 and set(fake.topics) == {"last"} for fake in tree.handlers)


def test_a_base_waits_for_a_reader_that_is_behind(tree: CoordinatorTree) -> None:
    slow, other = tree.handlers
    tree.ask(create("a"))
    slow.follows = False
    tree.replace()
    tree.kill()
    seen = tree.log.recovered
    tree.start()
    request = other.call(create("b"))
    tree.until(lambda: tree.log.recovered > seen)
    assert not tree.is_ready()
    assert request not in other.answers
    slow.follows = True
    tree.until(lambda: request in other.answers)
    tree.pump()
    assert set(slow.topics) == set(other.topics) == {"a", "b"}


@pytest.mark.parametrize("kind", [SlotKind.ANSWER, SlotKind.PRODUCED])
def test_an_answer_to_what_nobody_asked_is_dropped(tree: CoordinatorTree, kind: SlotKind) -> None:
    """Check that its block is given back, and that the coordinator and its log worker continue."""
    stale, log = 7, tree.log
    if kind == SlotKind.ANSWER:
        slot = log.answer_slot(Acknowledged(), stale)
    else:
        slot = pack_produce(kind, -1, 0, 0, 0, 64, 1, 0, COORDINATOR, COORDINATOR, 0, stale)
    assert log.outbox.push(slot)
    tree.memory.doorbell(COORDINATOR).ring()
    assert errors(tree.ask(create("a"))) == {"a": 0}
    tree.until(lambda: not log.sizes)
    assert tree.stop() == 0


def test_a_successor_asks_with_numbers_of_its_own(make_tree: Callable[..., CoordinatorTree]) -> None:
    """Check that an answer to the predecessor is not taken for an answer to its successor."""
    tree = make_tree()
    numbers = []
    for incarnation in (1, 2):
        tree.start(incarnation)
        tree.until(lambda: tree.log.inbox.untaken(), pump_log=False)
        numbers.append({unpack_call(slot).request for slot in tree.log.inbox.untaken()})
        tree.kill()
    assert all(numbers)
    assert not numbers[0] & numbers[1]


def test_a_dead_handler_gets_no_answer_and_its_successor_does(tree: CoordinatorTree) -> None:
    dead = tree.handlers[0]
    dead.call(create("a"))
    tree.until(tree.append_waits, pump_log=False)
    tree.fence(dead.index, 0, pump_log=False)
    tree.memory.reset_rings_of(dead.index)
    dead.rebind()
    tree.fence(dead.index, 2, pump_log=False)
    assert errors(tree.ask(create("b"), 0)) == {"b": 0}
    assert len(dead.answers) == 1
    # What was decided stays decided: nobody was told, a retry would find it.
    assert errors(tree.ask(create("a"), 1)) == {"a": 36}


@pytest.mark.parametrize("step", ["taken", "written", "published", "ensuring"])
def test_the_log_process_dies_under_a_create(tree: CoordinatorTree, step: str) -> None:
    """Check the result, whatever was written.

    The answer is success, and there is one topic, in the slots of the log process's successor.
    """
    tree.ask(create("before"))
    tree.log.dies_at = step
    assert errors(tree.ask(create("a"))) == {"a": 0}
    assert tree.log_lives == 2
    tree.until(lambda: tree.handlers[0].topics["before"].partitions[0].slot_generation == 2)
    assert tree.handlers[0].topics["a"].partitions[0].slot_generation == 2
    tree.until(lambda: tree.log.recovered == 1)
    assert errors(tree.ask(create("a", "b"))) == {"a": 36, "b": 0}


@pytest.mark.parametrize("step", ["taken", "written", "published", "removing"])
def test_the_log_process_dies_under_a_delete(tree: CoordinatorTree, step: str) -> None:
    tree.ask(create("a"))
    topic_id = tree.handlers[0].topics["a"].topic_id
    tree.log.dies_at = step
    assert errors(tree.ask(DeleteTopics(["a"]))) == {"a": 0}
    assert tree.log_lives == 2
    assert topic_id in tree.log.removed
    assert errors(tree.ask(DeleteTopics(["a"]))) == {"a": 3}


def test_a_successor_knows_everything(tree: CoordinatorTree) -> None:
    tree.ask(CreateTopics([CreateTopic("a", 3, configs={"segment.ms": "9"}), CreateTopic("b")]))
    tree.ask(DeleteTopics(["b"]))
    tree.ask(AllocateProducerIds())
    before = dict(tree.handlers[0].topics)
    tree.replace()
    tree.until(lambda: tree.handlers[0].bases == 2)
    assert tree.handlers[0].topics == before
    assert tree.ask(AllocateProducerIds()) == ProducerIds(1000, 1000)


def levels(tree: CoordinatorTree) -> dict[str, int]:
    """Return the feature levels in the metadata log."""
    assert tree.log is not None
    records = [
        decode_record(record.value or b"")
        for batch in iterate_batches(tree.log.path.read_bytes())
        for record in batch.records()
    ]
    return {one.name: one.feature_level for one in records if isinstance(one, FeatureLevelRecord)}


def test_the_log_of_an_earlier_version_gets_the_levels_at_the_start(
    make_tree: Callable[..., CoordinatorTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = {"metadata.version": 30, "transaction.version": 2}
    monkeypatch.setattr(metadata_records, "FEATURE_LEVELS", earlier)
    tree = make_tree()
    tree.serve()
    tree.ask(ReadSettings())
    assert tree.log.end == 0, "an empty log stays empty until there is something to record"
    tree.ask(create("a"))
    assert levels(tree) == earlier
    monkeypatch.undo()
    tree.log.refuse = ErrorCode.KAFKA_STORAGE_ERROR
    tree.replace()
    tree.until(lambda: not tree.log.refuse)
    tree.ask(create("b"))
    assert levels(tree) == earlier | {"group.version": 1}, "the next round repeats refused levels"
    end = tree.log.end
    tree.replace()
    tree.ask(AllocateProducerIds())
    assert tree.log.end == end + 1, "the levels are written once"


def test_the_levels_need_no_other_record(
    make_tree: Callable[..., CoordinatorTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_records, "FEATURE_LEVELS", {"metadata.version": 30})
    tree = make_tree()
    tree.serve()
    tree.ask(AllocateProducerIds())
    monkeypatch.undo()
    tree.replace()
    tree.until(lambda: levels(tree) == metadata_records.FEATURE_LEVELS)


def test_a_successor_removes_what_its_predecessor_could_not(tree: CoordinatorTree) -> None:
    """Check it with a removal that is durable but was never sent to the log process."""
    tree.ask(create("a"))
    topic_id = tree.handlers[0].topics["a"].topic_id
    tree.handlers[0].call(DeleteTopics(["a"]))
    tree.until(tree.append_waits, pump_log=False)
    tree.log.pump()
    tree.kill()
    tree.start()
    tree.until(lambda: topic_id in tree.log.removed)
    tree.until(tree.is_ready)


def test_what_may_yet_become_durable_is_waited_for(tree: CoordinatorTree) -> None:
    """Check that a predecessor's round that is written but not synced is neither used nor forgotten."""
    tree.ask(create("a"))
    durable = (tree.log.end, tree.log.path.stat().st_size)
    tree.ask(create("b"))
    tree.kill()
    tree.log.publish_metadata_slot(durable)
    tree.start()
    request = tree.handlers[1].call(create("b"))
    tree.until(lambda: tree.memory.counters(COORDINATOR).status.startswith("waiting for all"))
    assert not tree.is_ready()
    tree.log.publish_metadata_slot()
    tree.until(lambda: request in tree.handlers[1].answers)
    assert errors(tree.handlers[1].answers[request]) == {"b": 36}


def test_stop_finishes_what_is_under_way(tree: CoordinatorTree) -> None:
    fake = tree.handlers[0]
    request = fake.call(create("a"))
    tree.until(tree.append_waits, pump_log=False)
    assert tree.stop() == 0
    fake.pump()
    assert errors(fake.answers[request]) == {"a": 0}


def test_damaged_metadata_stops_the_broker(
    make_tree: Callable[..., CoordinatorTree], capfd: pytest.CaptureFixture[str]
) -> None:
    tree = make_tree()
    tree.serve()
    tree.ask(create("a"))
    tree.kill()
    data = bytearray(tree.log.path.read_bytes())
    data[-3] ^= 1
    tree.log.path.write_bytes(data)
    tree.start()
    tree.until(lambda: tree.log.inbox.waiting() > 0, pump_log=False)
    tree.log.pump()
    assert tree.reap() == 99
    assert "restore it from a copy" in capfd.readouterr().err


def test_a_topic_is_new_until_it_is_open_or_the_log_process_dies(tree: CoordinatorTree) -> None:
    """Check which topics count as new.

    A new topic cannot miss records. For any other topic an empty partition would replace acknowledged
    records.
    """
    tree.log.broken.add("a")
    tree.ask(create("a", "b"))
    tree.until(lambda: tree.log.ensured.count("a") > 1)
    assert tree.log.new == ["a", "b", "a"]
    tree.replace()
    tree.log.broken.clear()
    tree.until(lambda: tree.handlers[0].topics["a"].partitions[0].slot_generation == 1)
    assert tree.log.new == ["a", "b", "a"]


def test_the_log_process_is_told_of_every_topic_that_there_is(tree: CoordinatorTree) -> None:
    tree.ask(create("a", "b"))
    ids = {name: topic.topic_id for name, topic in tree.handlers[0].topics.items()}
    seen = tree.log.recovered
    tree.kill()
    tree.log.broken.add("a")
    tree.start()
    tree.until(lambda: tree.log.recovered > seen)
    assert tree.log.existing == ids


def test_an_answer_that_there_is_no_memory_for(tree: CoordinatorTree) -> None:
    """Let one handler hold all reply memory, and check that only callers meanwhile get an error."""
    pid, (fake, still) = tree.pid, tree.handlers
    assert errors(tree.ask(create("a"))) == {"a": 0}

    def wrong(count: int) -> CreateTopics:
        """Return a call whose answer has the invalid names, 32 KB each."""
        return create(*("?" * 32_000 + str(number) for number in range(count)))

    still.sleeps = True
    requests = [still.call(wrong(300)) for _ in range(3)]
    refused = fake.call(wrong(600))
    tree.until(lambda: refused in fake.answers)
    assert fake.answers[refused] == Failed(-1, "no block")
    assert errors(tree.ask(create("b"))) == {"b": 0}
    still.sleeps = False
    tree.until(lambda: all(request in still.answers for request in requests))
    assert errors(tree.ask(create("c"), 1)) == {"c": 0}
    assert tree.pid == pid


@pytest.mark.parametrize("drops_after", [None, 1, 4])
def test_a_large_topic_is_decided_in_pieces(
    make_tree: Callable[..., CoordinatorTree], monkeypatch: pytest.MonkeyPatch, drops_after: int | None
) -> None:
    """Check that others are heard between, and that a log that dies meanwhile lets it be decided anew."""
    monkeypatch.setattr("mpbroker.coordinator.metadata_controller.RECORDS_AT_ONCE", 2)
    made = make_tree()
    context = ProcessContext(COORDINATOR, made.memory, made.config)
    coordinator = Coordinator(context, CLUSTER_ID, wall_ms, lambda: uuid.uuid4().bytes)

    def turn() -> None:
        coordinator.step()
        made.log.pump()
        for fake in made.handlers:
            fake.pump()

    until(lambda: coordinator.metadata.phase is Phase.SERVING, "the coordinator serves", turn)
    first, second = made.handlers
    large = first.call(create("large", partitions=9))
    coordinator.step()
    small = second.call(create("small"))
    steps = 1
    while coordinator.metadata._drafting is not None:
        assert coordinator.something_waits()
        if steps == drops_after:
            coordinator.metadata._drop_draft()
        coordinator.step()
        steps += 1
        assert [type(call) for _, call in coordinator.metadata._calls][-1:] == [CreateTopics], "it is heard"
    assert steps >= 8, "ten records, two at a time, are encoded and made true"
    until(lambda: large in first.answers and small in second.answers, "both are answered", turn)
    assert errors(first.answers[large]) == {"large": 0}
    assert errors(second.answers[small]) == {"small": 0}
    assert len(second.topics["large"].partitions) == 9
