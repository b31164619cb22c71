"""The group coordinator within the coordinator process: its requests and its topic.

`__consumer_offsets` is created when somebody first joins a group or commits an offset. When it is read again,
since the log process died, sessions start anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.coordinator import GroupCoordinator
from mpbroker.coordinator.groups.loading import GroupContents
from mpbroker.coordinator.groups.records import Entry, encode
from mpbroker.coordinator.groups.transactional import Transactions
from mpbroker.coordinator.runtime.answers import Then, Waiter
from mpbroker.coordinator.runtime.batches import Marker
from mpbroker.coordinator.runtime.envelope import Envelopes
from mpbroker.coordinator.runtime.journal import Journal
from mpbroker.coordinator.runtime.surroundings import Surroundings, Topics
from mpbroker.coordinator.runtime.topic import Kind, OwnTopic
from mpbroker.ipc.calls import ForwardedRequest
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.topic_names import GROUP_TOPIC
from shm import clock
from shm.table import SlotTable

# What makes the first record of all: these wait until there is a topic for it.
BEGINNERS: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT})


class GroupService:
    def __init__(
        self,
        config: BrokerConfig,
        table: SlotTable,
        surroundings: Surroundings,
        transactions: Transactions,
    ) -> None:
        self._all_topics = Topics(surroundings)
        self._forwarded = Envelopes(surroundings.answer_waiter)
        self._journal = Journal[Entry](
            "group",
            encode,
            lambda group_id: self.coordinator.partition_for(group_id),
            clock.wall_ms,
            lambda: config.message_max_bytes,
            lambda group_id, waiter: self.coordinator.went_wrong(group_id, waiter),
        )
        self.coordinator = GroupCoordinator(
            config,
            clock,
            self._journal,
            self._forwarded,
            self._all_topics,
            lambda: str(uuid.uuid4()),
            transactions,
        )
        self._topic = OwnTopic(
            Kind(
                GROUP_TOPIC,
                config.offsets_topic_num_partitions,
                config.offsets_topic_segment_bytes,
                "groups and committed offsets",
                "consumer groups",
            ),
            table,
            config.log_dirs,
            self.coordinator,
            GroupContents(self.coordinator),
            self._journal,
            surroundings,
            self._read,
            self.receive,
            self._forwarded.fail,
        )

    # --- requests

    def receive(self, waiter: Waiter, request: ForwardedRequest) -> None:
        if self._topic.is_missing and request.api_key in BEGINNERS:
            self._topic.hold(waiter, request)
            return
        client = request.client_id, request.client_host
        self._forwarded.handle(
            waiter, request, lambda body: self.coordinator.handle(waiter, body, request.version, client)
        )

    def abandon(self, waiter: Waiter) -> None:
        """Whoever made this request is gone; it is still answered, to end it."""
        self._topic.abandon(waiter)
        self.coordinator.abandon(waiter)

    def abandon_all(self, is_gone: Callable[[Waiter], bool]) -> None:
        """A handler died with all it had asked for."""
        self._topic.abandon_all(is_gone)
        for waiter in self.coordinator.rebalances.waiters():
            if is_gone(waiter):
                self.coordinator.abandon(waiter)

    def write_marker(self, partition: int, marker: Marker, then: Then) -> None:
        self.coordinator.write_marker(partition, marker, then)

    # --- topics

    def topics_deleted(self, names: list[str]) -> None:
        self.coordinator.topics_deleted(names)

    def _read(self) -> None:
        """All that the topic has is known."""
        committed = self.coordinator.offsets.topics()
        self.coordinator.topics_deleted({name for name in committed if not self._all_topics.id_of(name)})

    # --- the loop's view

    def log_died(self) -> None:
        """Whoever waits is told NOT_COORDINATOR."""
        self._topic.forget()

    def step(self, is_serving: bool) -> None:
        """`is_serving`: the log process is there and has opened all topics."""
        self._topic.step(is_serving)

    def sleep_ms(self, most_ms: int) -> int:
        """How long there is nothing to do for us, at most."""
        return self._topic.sleep_ms(most_ms)

    @property
    def has_work(self) -> bool:
        """Whether something could be on its way to the log, and is not."""
        return self._journal.has_work

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to the log. Those who wait for others may wait in vain."""
        return self._journal.is_idle
