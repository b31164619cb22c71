"""A coordinator's topic: deleted while a round of records is on its way to it, or opened piece by piece."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import cast

import pytest

from mpbroker.coordinator.metadata.state import MetadataState, Topic
from mpbroker.coordinator.runtime import loading
from mpbroker.coordinator.runtime.internal_topic import CREATE_RETRY_S, InternalTopic, TopicSpec
from mpbroker.coordinator.runtime.loading import Contents
from mpbroker.coordinator.runtime.partitions import LoadState, TopicPartitions
from mpbroker.coordinator.runtime.requests import Waiter
from mpbroker.coordinator.runtime.write_queue import PartitionBatch, WriteQueue
from mpbroker.ipc.calls import Failed, Message
from mpbroker.ipc.metadata import PartitionImage, PartitionSlots
from mpbroker.ipc.table import PAYLOAD_BYTES, Partition, PartitionFlag, unpack_partition
from mpbroker.protocol.errors import ErrorCode
from shm.table import SlotTable

NAME = "__consumer_offsets"
TOPIC = Topic(NAME, bytes(16), 1, {})


class TopicRig:
    """The process and the state machine around a topic without anything to read, and the rounds for it."""

    def __init__(self) -> None:
        self.metadata = MetadataState(topics={TOPIC.topic_id: TOPIC}, ids={NAME: TOPIC.topic_id})
        self.table = cast(SlotTable, None)
        self.log_dirs = ("/",)
        self.partitions = TopicPartitions()
        self.places = PartitionSlots.of([])
        self.contents = cast(Contents, self)
        self.asked = self.failures = 0
        self.rounds: list[Callable[[list[ErrorCode]], None]] = []
        self.heard: list[ErrorCode] = []
        self.queue = WriteQueue[bytes](
            "thing", lambda entry: (b"k", entry), lambda _: 0, lambda: 0, lambda: 1 << 20, lambda *_: None
        )
        self.topic = InternalTopic(TopicSpec(NAME, 1, 1 << 20, "things", "they"), self, self, self)

    # --- Host

    def images_of(self, _topic_id: bytes) -> PartitionSlots:
        return self.places

    def answer_waiter(self, _waiter: Waiter, _answer: Message) -> bool:
        raise NotImplementedError

    def ask(self, _call: Message, done: Callable[[Message], None]) -> None:
        self.asked += 1
        done(Failed(ErrorCode.KAFKA_STORAGE_ERROR, "no room"))

    def append_for_us(
        self, _topic: Topic, _batches: list[PartitionBatch], done: Callable[[list[ErrorCode]], None]
    ) -> None:
        self.rounds.append(done)

    # --- TopicState and TopicListener

    def unload(self) -> None:
        self.partitions.close()

    def creation_failed(self) -> None:
        self.failures += 1

    def topic_loaded(self) -> None:
        pass

    # --- Contents

    def begin(self) -> None:
        pass

    def end(self, end: Partition) -> None:
        self.partitions.set(end.partition, LoadState.LOADED)

    def fail(self, partition: int) -> None:
        self.partitions.set(partition, LoadState.OFFLINE)

    def step(self) -> None:
        self.topic.load()
        self.topic.append_round()

    def append(self) -> None:
        self.queue.append("a", [b"v"], self.heard.append)
        self.step()


def test_partitions_that_wait_for_room_are_said_once_and_read_when_they_are_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that nobody is told to restore a directory: it is a new topic on a full disk."""
    caplog.set_level(logging.INFO)
    empty = unpack_partition(bytes(PAYLOAD_BYTES))._replace(generation=1, flags=PartitionFlag.PARTITION_LIVE)
    monkeypatch.setattr(loading, "read_partition", lambda _table, slot: empty._replace(partition=slot))
    monkeypatch.setattr(loading, "batches_below", lambda *_: iter(()))
    rig = TopicRig()
    for opened in (1, 1, 2, 4):
        rig.places = PartitionSlots.of(
            PartitionImage(number, number, int(number < opened)) for number in range(4)
        )
        rig.step()
        rig.step()
        assert [rig.partitions.is_loaded(number) for number in range(4)] == [n < opened for n in range(4)]
    assert [(one.levelname, one.getMessage().partition(":")[0]) for one in caplog.records] == [
        ("WARNING", "3 of 4 partitions of __consumer_offsets cannot be opened for now"),
        ("INFO", "all partitions of __consumer_offsets are open"),
    ]


def test_a_creation_that_fails_is_tried_and_logged_once_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that each request is refused at once, so that its client comes again."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    rig = TopicRig()
    for _ in range(3):
        for _ in range(10):
            rig.topic.create()
        now_s += CREATE_RETRY_S
    assert (rig.asked, len(caplog.records), rig.failures) == (3, 3, 30)


def test_the_outcome_of_a_round_for_a_topic_that_is_gone_is_void() -> None:
    rig = TopicRig()
    rig.append()
    rig.metadata = MetadataState()
    rig.step()
    assert rig.heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    rig.metadata = MetadataState(topics={TOPIC.topic_id: TOPIC}, ids={NAME: TOPIC.topic_id})
    rig.append()
    before, now = rig.rounds
    before([ErrorCode.KAFKA_STORAGE_ERROR])
    assert len(rig.heard) == 1
    now([ErrorCode.NONE])
    assert rig.heard[1:] == [ErrorCode.NONE]
