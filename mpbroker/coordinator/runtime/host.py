"""The coordinator process as the coordinators in it use it: metadata, appends and calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from mpbroker.coordinator.metadata.state import MetadataState, Topic
from mpbroker.coordinator.runtime.requests import Then
from mpbroker.coordinator.runtime.write_queue import Marker, PartitionBatch
from mpbroker.ipc.calls import Message as Call
from mpbroker.ipc.metadata import PartitionSlots
from mpbroker.protocol.errors import ErrorCode
from shm.table import SlotTable

TopicBatch: TypeAlias = tuple[str, PartitionBatch]
"""A batch with the name of its topic."""
Appended: TypeAlias = Callable[[list[ErrorCode]], None]
"""Called with an error for each batch when all are durable or refused; never if a log worker dies."""


class Host(Protocol):
    """The coordinator process, as its coordinators see it. (Services implements it.)"""

    @property
    def metadata(self) -> MetadataState:
        """The durable metadata."""

    @property
    def table(self) -> SlotTable: ...

    @property
    def log_dirs(self) -> tuple[str, ...]: ...

    def partitions_of(self, name: str) -> int:
        """Return the number of the topic's partitions, 0 if it does not exist."""

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the topic's name, None if it does not exist."""

    def id_of(self, name: str) -> bytes | None:
        """Return the topic's id, 16 bytes, None if it does not exist."""

    def images_of(self, topic_id: bytes) -> PartitionSlots | None:
        """Return the slots of the topic's partitions, None if the log workers have not opened them yet."""

    def ask(self, call: Call, done: Callable[[Call], None]) -> None:
        """Have the process decide a call, and pass the answer to `done`."""

    def append_for_us(self, topic: Topic, batches: list[PartitionBatch], done: Appended) -> None:
        """Append batches to partitions of the topic."""

    def append_markers(self, batches: Sequence[TopicBatch], done: Appended) -> None:
        """Append markers of transactions to partitions of any topics."""

    def write_offsets_marker(self, partition: int, marker: Marker, done: Then) -> None:
        """Append a marker to a partition of `__consumer_offsets`, after earlier appends to it."""
