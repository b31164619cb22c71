"""The interface of the coordinator process for the coordinators that run in it: metadata, appends, calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from mpbroker.coordinator.metadata.state import MetadataState, Topic
from mpbroker.coordinator.runtime.requests import Then
from mpbroker.coordinator.runtime.write_queue import Marker, PartitionBatch
from mpbroker.ipc.calls import Message as Call
from mpbroker.ipc.metadata import PartitionSlots
from mpbroker.protocol.errors import ErrorCode
from mpbroker.security.acls import Operation, ResourceType
from mpbroker.security.authorizer import Client
from shm.table import SlotTable

TopicBatch: TypeAlias = tuple[str, PartitionBatch]
"""The name of a topic, and a batch for one of its partitions."""
Appended: TypeAlias = Callable[[list[ErrorCode]], None]
"""Called with an error code per batch, when each is durable or refused. Not called if a log worker dies."""


class Host(Protocol):
    """The coordinator process, as its coordinators see it. (`Services` is the implementation.)"""

    @property
    def metadata(self) -> MetadataState:
        """The durable metadata of the cluster."""

    @property
    def table(self) -> SlotTable: ...

    @property
    def log_dirs(self) -> tuple[str, ...]: ...

    def partitions_of(self, name: str) -> int:
        """Return the number of the topic's partitions, 0 if it does not exist."""

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the topic's name, None if it does not exist."""

    def id_of(self, name: str) -> bytes | None:
        """Return the topic's id (16 bytes), None if the topic does not exist."""

    def images_of(self, topic_id: bytes) -> PartitionSlots | None:
        """Return the slots of the topic's partitions, None if the log workers have not opened them yet."""

    def is_allowed(self, client: Client, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether a client has a permission, by the durable access control entries."""

    def ask(self, call: Call, done: Callable[[Call], None]) -> None:
        """Send a call to the metadata controller of this process. `done` is called with the answer."""

    def append_for_us(self, topic: Topic, batches: list[PartitionBatch], done: Appended) -> None:
        """Append batches to partitions of a coordinator's topic. `done` is called with the outcomes."""

    def append_markers(self, batches: Sequence[TopicBatch], done: Appended) -> None:
        """Append transaction markers to partitions of any topics. `done` is called with the outcomes."""

    def write_offsets_marker(self, partition: int, marker: Marker, done: Then) -> None:
        """Append a marker to a partition of `__consumer_offsets`, after earlier appends to that partition."""
