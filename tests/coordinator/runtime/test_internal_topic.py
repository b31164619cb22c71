"""A coordinator's topic that is deleted while a round of records is on its way to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from mpbroker.coordinator.metadata.state import MetadataState, Topic
from mpbroker.coordinator.runtime.batches import PartitionBatch
from mpbroker.coordinator.runtime.internal_topic import InternalTopic, TopicSpec
from mpbroker.coordinator.runtime.loading import Contents
from mpbroker.coordinator.runtime.partitions import TopicPartitions
from mpbroker.coordinator.runtime.requests import Waiter
from mpbroker.coordinator.runtime.write_queue import WriteQueue
from mpbroker.ipc.calls import Message
from mpbroker.ipc.metadata import Places
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
        self.contents = cast(Contents, None)
        self.rounds: list[Callable[[list[ErrorCode]], None]] = []
        self.heard: list[ErrorCode] = []
        self.queue = WriteQueue[bytes](
            "thing", lambda entry: (b"k", entry), lambda _: 0, lambda: 0, lambda: 1 << 20, lambda *_: None
        )
        self.topic = InternalTopic(TopicSpec(NAME, 1, 1 << 20, "things", "they"), self, self, self)

    # --- Host

    def images_of(self, _topic_id: bytes) -> Places:
        return Places.of([])

    def answer_waiter(self, _waiter: Waiter, _answer: Message) -> bool:
        raise NotImplementedError

    def ask(self, call: Message, done: Callable[[Message], None]) -> None:
        raise NotImplementedError

    def append_for_us(
        self, _topic: Topic, _batches: list[PartitionBatch], done: Callable[[list[ErrorCode]], None]
    ) -> None:
        self.rounds.append(done)

    # --- TopicState and TopicListener

    def unload(self) -> None:
        self.partitions.close()

    def creation_failed(self) -> None:
        raise NotImplementedError

    def topic_loaded(self) -> None:
        pass

    def step(self) -> None:
        self.topic.load()
        self.topic.append_round()

    def append(self) -> None:
        self.queue.append("a", [b"v"], self.heard.append)
        self.step()


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
