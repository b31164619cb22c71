"""A coordinator's topic that is deleted while a round of records is on its way to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from mpbroker.coordinator.runtime.answers import Waiter
from mpbroker.coordinator.runtime.batches import PartitionBatch
from mpbroker.coordinator.runtime.journal import Journal
from mpbroker.coordinator.runtime.loading import Contents
from mpbroker.coordinator.runtime.partitions import PartitionState
from mpbroker.coordinator.runtime.timers import Timers
from mpbroker.coordinator.runtime.topic import Kind, OwnTopic
from mpbroker.coordinator.state import MetadataState, Topic
from mpbroker.ipc.calls import Message
from mpbroker.ipc.metadata import Places
from mpbroker.protocol.errors import ErrorCode
from shm.table import SlotTable

NAME = "__consumer_offsets"
TOPIC = Topic(NAME, bytes(16), 1, {})


class Around:
    """The process and the state machine: a topic without anything to read, and the rounds for it."""

    def __init__(self) -> None:
        self.metadata = MetadataState(topics={TOPIC.topic_id: TOPIC}, ids={NAME: TOPIC.topic_id})
        self.timers = Timers()
        self.partitions: list[PartitionState] | None = None
        self.rounds: list[Callable[[list[ErrorCode]], None]] = []
        self.heard: list[ErrorCode] = []
        self.journal = Journal[bytes](
            "thing", lambda entry: (b"k", entry), lambda _: 0, lambda: 0, lambda: 1 << 20, lambda *_: None
        )
        kind = Kind(NAME, 1, 1 << 20, "things", "they")
        contents, table = cast(Contents, None), cast(SlotTable, None)
        self.topic = OwnTopic(
            kind,
            table,
            ("/",),
            self,
            contents,
            self.journal,
            self,
            lambda: None,
            lambda *_: None,
            lambda *_: None,
        )

    def images_of(self, _topic_id: bytes) -> Places:
        return Places.of([])

    def answer_waiter(self, _waiter: Waiter, _answer: Message) -> bool:
        return True

    def ask(self, call: Message, done: Callable[[Message], None]) -> None:
        raise NotImplementedError

    def append_for_us(
        self, _topic: Topic, _batches: list[PartitionBatch], done: Callable[[list[ErrorCode]], None]
    ) -> None:
        self.rounds.append(done)

    def opened(self, partitions: int) -> None:
        self.partitions = [PartitionState.LOADED] * partitions

    def reopened(self, _partition: int) -> bool:
        return False

    def unload(self) -> None:
        self.partitions = None

    def tick(self) -> None:
        pass

    def write(self) -> None:
        self.journal.write("a", [b"v"], self.heard.append)
        self.topic.step(is_serving=True)


def test_the_outcome_of_a_round_for_a_topic_that_is_gone_is_nobodys() -> None:
    around = Around()
    around.write()
    around.metadata = MetadataState()
    around.topic.step(is_serving=True)
    assert around.heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    around.metadata = MetadataState(topics={TOPIC.topic_id: TOPIC}, ids={NAME: TOPIC.topic_id})
    around.write()
    before, now = around.rounds
    before([ErrorCode.KAFKA_STORAGE_ERROR])
    assert len(around.heard) == 1
    now([ErrorCode.NONE])
    assert around.heard[1:] == [ErrorCode.NONE]
