"""What the coordinator process does for the state machines in it, and what each of them makes of that.

(How requests of clients come to them: `envelope`.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mpbroker.coordinator.runtime.answers import Waiter
from mpbroker.coordinator.runtime.batches import PartitionBatch
from mpbroker.coordinator.state import MetadataState, Topic
from mpbroker.ipc.calls import Message as Call
from mpbroker.ipc.metadata import Places
from mpbroker.protocol.errors import ErrorCode


class Surroundings(Protocol):
    """What the coordinator process does for the state machines in it."""

    @property
    def metadata(self) -> MetadataState: ...

    def images_of(self, topic_id: bytes) -> Places | None:
        """Where the log process has the topic's partitions; None: it has not opened them yet."""

    def answer_waiter(self, waiter: Waiter, answer: Call) -> bool:
        """False: nobody hears it."""

    def ask(self, call: Call, done: Callable[[Call], None]) -> None:
        """`done` hears the answer."""

    def append_for_us(
        self, topic: Topic, batches: list[PartitionBatch], done: Callable[[list[ErrorCode]], None]
    ) -> None: ...


class Topics:
    """Those there are, by name and by id."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings

    def partitions_of(self, name: str) -> int:
        """0 if there is no such topic."""
        topic_id = self.id_of(name)
        return 0 if topic_id is None else self._surroundings.metadata.topics[topic_id].partitions

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._surroundings.metadata.topics.get(topic_id)
        return None if topic is None else topic.name

    def id_of(self, name: str) -> bytes | None:
        return self._surroundings.metadata.ids.get(name)
