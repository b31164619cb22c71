"""The topics there are, as the state machines of groups and transactions look them up."""

from __future__ import annotations

from typing import Protocol


class TopicIndex(Protocol):
    def partitions_of(self, name: str) -> int:
        """Return the number of the topic's partitions, 0 if there is no such topic."""

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the topic's name, None if there is no such topic."""

    def id_of(self, name: str) -> bytes | None:
        """Return the topic's id, 16 bytes, None if there is no such topic."""
