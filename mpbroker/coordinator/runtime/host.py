"""The coordinator process as the coordinators in it use it: metadata, appends, answers and calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mpbroker.coordinator.metadata.state import MetadataState, Topic
from mpbroker.coordinator.runtime.batches import PartitionBatch
from mpbroker.coordinator.runtime.requests import Waiter
from mpbroker.ipc.calls import Message as Call
from mpbroker.ipc.metadata import Places
from mpbroker.protocol.errors import ErrorCode
from shm.table import SlotTable


class Host(Protocol):
    @property
    def metadata(self) -> MetadataState:
        """The metadata that is durable now."""

    @property
    def table(self) -> SlotTable: ...

    @property
    def log_dirs(self) -> tuple[str, ...]: ...

    def images_of(self, topic_id: bytes) -> Places | None:
        """Return where the log workers have the topic's partitions, None if they have not opened them yet."""

    def answer_waiter(self, waiter: Waiter, answer: Call) -> bool:
        """Send the answer. Returns False if nobody will hear it."""

    def ask(self, call: Call, done: Callable[[Call], None]) -> None:
        """Have the process decide a call, and pass the answer to `done`."""

    def append_for_us(
        self, topic: Topic, batches: list[PartitionBatch], done: Callable[[list[ErrorCode]], None]
    ) -> None:
        """Append batches to partitions of the topic.

        `done` hears an error for each batch when all are durable or refused, never if a log worker dies.
        """


class HostTopics:
    """The topics of the host's metadata. (A TopicIndex.)"""

    def __init__(self, host: Host) -> None:
        self._host = host

    def partitions_of(self, name: str) -> int:
        metadata = self._host.metadata
        topic_id = metadata.ids.get(name)
        return 0 if topic_id is None else metadata.topics[topic_id].partitions

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._host.metadata.topics.get(topic_id)
        return None if topic is None else topic.name

    def id_of(self, name: str) -> bytes | None:
        return self._host.metadata.ids.get(name)
