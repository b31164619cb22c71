"""The partitions of a coordinator's topic: the one for each name, and how far each has been read."""

from __future__ import annotations

from enum import Enum

from mpbroker.coordinator.runtime.java_hash import java_hash
from mpbroker.protocol.errors import ApiError, ErrorCode


class LoadState(Enum):
    """How far a partition of a coordinator's topic has been read (Kafka: CoordinatorState)."""

    LOADING = 0
    LOADED = 1
    OFFLINE = 2


class TopicPartitions:
    """The partitions, by number. `states`: None until the topic was looked up, empty if it does not exist."""

    def __init__(self) -> None:
        self.states: list[LoadState] | None = None

    @property
    def is_missing(self) -> bool:
        """True if the topic is known not to exist."""
        return self.states == []

    def open(self, count: int) -> None:
        """Note the number of partitions, none of which was read yet; 0 without a topic."""
        self.states = [LoadState.LOADING] * count

    def close(self) -> None:
        """Note that the topic has to be looked up again."""
        self.states = None

    def set(self, partition: int, state: LoadState) -> None:
        assert self.states is not None
        self.states[partition] = state

    def reopen(self, partition: int) -> bool:
        """Let an offline partition load again. Returns False if it was not offline."""
        if self.states is None or self.states[partition] is not LoadState.OFFLINE:
            return False
        self.states[partition] = LoadState.LOADING
        return True

    def is_loaded(self, partition: int) -> bool:
        known = self.states or []
        return partition < len(known) and known[partition] is LoadState.LOADED

    def partition_for(self, name: str) -> int:
        """Return the partition that has the records of a group or transactional id."""
        return java_hash(name) % len(self.states) if self.states else 0

    def check_loaded(self, name: str) -> None:
        """Raise ApiError unless the name's partition is loaded, or the topic does not exist."""
        if self.states is None:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if not self.states:
            return
        state = self.states[self.partition_for(name)]
        if state is LoadState.LOADING:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if state is LoadState.OFFLINE:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def check_none_is_loading(self) -> None:
        """Raise ApiError while a partition is loading, because a list of all names would be incomplete."""
        if self.states is None or LoadState.LOADING in self.states:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
