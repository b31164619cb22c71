"""The group coordinator within the coordinator process.

`__consumer_offsets` is created when somebody first joins a group or commits an offset. When it is read again,
since a log worker died, sessions start anew.
"""

from __future__ import annotations

import uuid

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.coordinator import GroupCoordinator
from mpbroker.coordinator.groups.txn_offset_commit import Transactions
from mpbroker.coordinator.runtime.envelope import Envelopes
from mpbroker.coordinator.runtime.host import Host, HostTopics
from mpbroker.coordinator.runtime.internal_topic import TopicSpec
from mpbroker.coordinator.runtime.runtime import CoordinatorRuntime
from mpbroker.protocol.topic_names import GROUP_TOPIC
from shm import clock


class GroupCoordinatorService(CoordinatorRuntime):
    def __init__(self, config: BrokerConfig, host: Host, transactions: Transactions) -> None:
        envelopes = Envelopes(host.answer_waiter)
        self.coordinator = GroupCoordinator(
            config, clock, envelopes, HostTopics(host), lambda: str(uuid.uuid4()), transactions
        )
        spec = TopicSpec(
            GROUP_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_segment_bytes,
            "groups and committed offsets",
            "consumer groups",
        )
        super().__init__(spec, host, self.coordinator, envelopes)
