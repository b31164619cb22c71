"""Counts groups by protocol and state, and rebalances of the consumer protocol, for the metrics.

All groups are counted now and then, in slices between other work. (Kafka: GroupCoordinatorMetricsShard, whose
gauges are updated once a minute.)
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from mpbroker.coordinator.groups.classic.group import GroupState
from mpbroker.coordinator.groups.consumer.group import ConsumerGroupState
from mpbroker.coordinator.groups.group_manager import GroupMetadataManager
from mpbroker.coordinator.runtime.background import Background, Job
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.ipc.counters import Counter
from shm.counters import CounterPage

State: TypeAlias = GroupState | ConsumerGroupState

COUNT_EVERY_MS: Final = 5_000
JOB: Final = "counts"
# Groups and members that are looked at in one slice.
LOOKED_AT_ONCE: Final = 1_000
WORDS: Final[Mapping[State, Counter]] = {
    ConsumerGroupState.EMPTY: Counter.COUNT_GROUPS_EMPTY,
    ConsumerGroupState.ASSIGNING: Counter.COUNT_GROUPS_ASSIGNING,
    ConsumerGroupState.RECONCILING: Counter.COUNT_GROUPS_RECONCILING,
    ConsumerGroupState.STABLE: Counter.COUNT_GROUPS_STABLE,
}
ALL_WORDS: Final = (Counter.COUNT_CLASSIC_GROUPS, *WORDS.values())


@dataclass(eq=False)
class GroupCounts:
    """Counts the groups now and then. `rebalances`: how many have begun since the last `publish`."""

    _timers: Timers
    _clock: Clock
    _background: Background
    _manager: GroupMetadataManager
    rebalances: int = field(default=0, init=False)
    _counted: Mapping[Counter, int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._set_timer()

    def publish(self, counters: CounterPage) -> None:
        """Write new counts to `counters`, the page that the metrics are made from."""
        if self.rebalances:
            counters.add(Counter.COUNT_GROUP_REBALANCES, self.rebalances)
            self.rebalances = 0
        if self._counted is not None:
            for word in ALL_WORDS:
                counters.set(word, self._counted.get(word, 0))
            self._counted = None

    def _set_timer(self) -> None:
        self._timers.set(JOB, self._clock.monotonic_ms() + COUNT_EVERY_MS, self._begin)

    def _begin(self) -> None:
        self._background.start(JOB, "", self._count(), self._end)

    def _count(self) -> Job[Mapping[Counter, int]]:
        found: Tally[State] = Tally()
        states: list[State] = []
        looked_at = 0
        for group in list(self._manager.groups.values()):
            states.append(group.state)
            looked_at += 1 + len(group.members)
            if looked_at >= LOOKED_AT_ONCE:
                found.update(states)
                states.clear()
                looked_at = 0
                yield
        found.update(states)
        words: Tally[Counter] = Tally()
        for state, count in found.items():
            words[WORDS.get(state, Counter.COUNT_CLASSIC_GROUPS)] += count
        return words

    def _end(self, counted: Mapping[Counter, int]) -> None:
        self._counted = counted
        self._set_timer()
