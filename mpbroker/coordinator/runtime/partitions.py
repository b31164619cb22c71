"""The partitions of a coordinator's topic: the partition of a group or transactional id, and load states."""

from __future__ import annotations

from enum import Enum

from mpbroker.coordinator.runtime.java_hash import java_hash
from mpbroker.protocol.errors import ApiError, ErrorCode


class LoadState(Enum):
    """Whether a partition of a coordinator's topic has been read (Kafka: CoordinatorState)."""

    LOADING = 0
    LOADED = 1
    OFFLINE = 2


class TopicPartitions:
    """A topic's partitions. `states` is None if not known yet, and empty if the topic does not exist."""

    def __init__(self) -> None:
        self.states: list[LoadState] | None = None

    @property
    def is_missing(self) -> bool:
        """True if the topic is known not to exist."""
        return self.states == []

    def open(self, count: int) -> None:
        """Note the number of partitions, 0 if the topic does not exist. None of them has been read yet."""
        self.states = [LoadState.LOADING] * count

    def close(self) -> None:
        """Forget the partitions: whether the topic exists is not known until the next `open`."""
        self.states = None

    def set(self, partition: int, state: LoadState) -> None:
        assert self.states is not None
        self.states[partition] = state

    def reopen(self, partition: int) -> bool:
        """Set an offline partition to LOADING. Return False, and do nothing, if it is not offline."""
        if self.states is None or self.states[partition] is not LoadState.OFFLINE:
            return False
        self.states[partition] = LoadState.LOADING
        return True

    def is_loaded(self, partition: int) -> bool:
        known = self.states or []
        return partition < len(known) and known[partition] is LoadState.LOADED

    def partition_for(self, name: str) -> int:
        """Return the number of the partition for a group id or transactional id."""
        return java_hash(name) % len(self.states) if self.states else 0

    def check_loaded(self, name: str) -> None:
        """Raise ApiError if the name's partition is loading or offline. A missing topic is no error."""
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
        """Raise ApiError if any partition is still loading: a list of all names would be incomplete."""
        if self.states is None or LoadState.LOADING in self.states:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
