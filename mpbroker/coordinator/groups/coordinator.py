"""The coordinator of consumer groups: the methods that serve requests, and periodic work.

The coordinator gets decoded requests, a clock and the records of its topic. It answers through `answers` and
writes through `queue`. A request is answered when the record of its decision is durable. (Kafka:
GroupCoordinatorService, GroupCoordinatorShard.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.resource_config import GroupSettings
from mpbroker.coordinator.groups.classic.join_group import JoinGroup
from mpbroker.coordinator.groups.classic.members import Members
from mpbroker.coordinator.groups.classic.rebalances import Rebalances
from mpbroker.coordinator.groups.classic_protocol import ClassicProtocol
from mpbroker.coordinator.groups.consumer.changes import Writer
from mpbroker.coordinator.groups.consumer.classic_requests import ClassicRequests
from mpbroker.coordinator.groups.consumer.describe import ConsumerGroupDescribe
from mpbroker.coordinator.groups.consumer.downgrade import Downgrade
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.group_lookup import GroupLookup
from mpbroker.coordinator.groups.consumer.heartbeat import ConsumerGroupHeartbeat
from mpbroker.coordinator.groups.consumer.member_steps import MemberSteps
from mpbroker.coordinator.groups.consumer.members import ConsumerGroupMembers
from mpbroker.coordinator.groups.consumer.pattern_subscriptions import PatternSubscriptions
from mpbroker.coordinator.groups.consumer.target_assignments import TargetAssignments
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.consumer.upgrade import Upgrade
from mpbroker.coordinator.groups.delete_groups import DeleteGroups
from mpbroker.coordinator.groups.describe import DescribeGroups
from mpbroker.coordinator.groups.group_config_manager import GroupConfigManager
from mpbroker.coordinator.groups.group_counts import GroupCounts
from mpbroker.coordinator.groups.group_manager import GroupContents, GroupMetadataManager
from mpbroker.coordinator.groups.offset_manager import OffsetMetadataManager
from mpbroker.coordinator.groups.offsets import Offsets
from mpbroker.coordinator.groups.records import Entry, encode
from mpbroker.coordinator.groups.txn_offset_commit import Transactions, TxnOffsetCommit
from mpbroker.coordinator.runtime.background import Background
from mpbroker.coordinator.runtime.host import Host
from mpbroker.coordinator.runtime.partitions import TopicPartitions
from mpbroker.coordinator.runtime.requests import Answers, Serve, Waiter
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.coordinator.runtime.write_queue import WriteQueue
from mpbroker.protocol.api_keys import ApiKey
from mpbroker.protocol.errors import ErrorCode


class GroupCoordinator:
    """The state machine of groups (implements Shard). `new_id` returns the random part of a member id."""

    creators: Final = frozenset(
        {
            ApiKey.JOIN_GROUP,
            ApiKey.OFFSET_COMMIT,
            ApiKey.TXN_OFFSET_COMMIT,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
        }
    )

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        answers: Answers,
        host: Host,
        new_id: Callable[[], str],
        transactions: Transactions,
    ) -> None:
        self._clock = clock
        self._answers = answers
        self._host = host
        self.timers = Timers()
        self.partitions = TopicPartitions()
        self.queue = queue = WriteQueue[Entry](
            "group",
            encode,
            self.partitions.partition_for,
            clock.wall_ms,
            lambda: config.message_max_bytes,
            self.refuse_waiters,
        )
        self.offsets = Offsets()
        self.rebalances = rebalances = Rebalances(config, self.timers, clock, queue, answers.answer)
        settings = GroupConfigManager(config, host).group_settings
        topics, self._writer = TopicMetadata(host), Writer(queue, answers)
        self._consumer_members = consumer_members = ConsumerGroupMembers(
            settings,
            self.timers,
            clock,
            topics,
            self._writer,
            lambda group_id: self.manager.find_consumer(group_id),
            lambda changes, leaving: self._downgrade.without(changes, leaving),
        )
        self.manager = manager = GroupMetadataManager(
            config, clock, self.partitions, self.offsets, rebalances, consumer_members
        )
        self._downgrade = Downgrade(config, manager, rebalances, consumer_members, topics, self._writer)
        self.contents = GroupContents(manager, self.offsets)
        self._offset_manager = offset_manager = OffsetMetadataManager(
            config, clock, queue, self.offsets, host, manager, rebalances, answers
        )
        self.txn_offset_commit = TxnOffsetCommit(
            clock, queue, self.offsets, offset_manager, manager, transactions, answers
        )
        describe = DescribeGroups(manager, self._writer, answers)
        delete = DeleteGroups(
            config, clock, self.timers, queue, manager, offset_manager, rebalances, consumer_members, answers
        )
        self.served: Mapping[ApiKey, Serve] = {
            ApiKey.OFFSET_COMMIT: offset_manager.commit,
            ApiKey.TXN_OFFSET_COMMIT: self.txn_offset_commit.commit,
            ApiKey.OFFSET_FETCH: offset_manager.fetch,
            ApiKey.OFFSET_DELETE: offset_manager.delete,
            ApiKey.DESCRIBE_GROUPS: describe.describe,
            ApiKey.LIST_GROUPS: describe.list,
            ApiKey.DELETE_GROUPS: delete.delete,
            **self._serve_members(config, settings, topics, new_id),
        }
        # The other members of the protocol `Shard`.
        self.unload = manager.unload
        self.abandon = rebalances.abandon
        self.withdraw = rebalances.withdraw
        self.waiters = rebalances.waiters

    def _serve_members(
        self,
        config: BrokerConfig,
        settings: Callable[[str], GroupSettings],
        topics: TopicMetadata,
        new_id: Callable[[], str],
    ) -> Mapping[ApiKey, Serve]:
        """Return the methods that serve the requests of members, of both protocols, by ApiKey."""
        clock, host, manager, rebalances = self._clock, self._host, self.manager, self.rebalances
        members, writer, downgrade = self._consumer_members, self._writer, self._downgrade
        self.background = background = Background(self.timers, clock)
        self.counts = counts = GroupCounts(self.timers, clock, background, manager)
        lookup = GroupLookup(config, manager, Upgrade(config, manager, rebalances, members, topics), members)
        steps = MemberSteps(
            lookup.check_memory,
            members,
            PatternSubscriptions(
                config, clock, background, host, topics, writer, counts, manager.find_consumer
            ),
            TargetAssignments(config, settings, clock, background, topics, writer),
            topics,
            counts,
        )
        heartbeat = ConsumerGroupHeartbeat(config, host, settings, lookup, members, steps, writer, new_id)
        classic = ClassicProtocol(
            config,
            manager,
            JoinGroup(config, self.queue, manager, self.offsets, rebalances, new_id, self._answers.answer),
            Members(config, manager, rebalances),
            ClassicRequests(lookup, members, steps, downgrade, rebalances, topics, writer, new_id),
            downgrade,
        )
        return {
            ApiKey.JOIN_GROUP: classic.join,
            ApiKey.SYNC_GROUP: classic.sync,
            ApiKey.HEARTBEAT: classic.heartbeat,
            ApiKey.LEAVE_GROUP: classic.leave,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: heartbeat.heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribe(
                config, manager, topics, writer, self.background, self._answers
            ).describe,
        }

    def topic_loaded(self) -> None:
        """Delete the offsets of topics that were deleted while no coordinator ran."""
        self.topics_deleted({name for name in self.offsets.topics() if not self._host.id_of(name)})

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Delete the offsets of deleted topics, so that a new topic with the same name has no offsets."""
        for group_id, keys in list(self.offsets.keys_of_topics(names)):
            self._offset_manager.expire(group_id, keys)

    def topics_changed(self, names: Iterable[str]) -> None:
        """Let the groups that subscribe to created, deleted or enlarged topics look at them again."""
        changed = set(names)
        for group in self.manager.groups.values():
            if isinstance(group, ConsumerGroup) and any(map(group.is_subscribed_to, changed)):
                group.must_check_metadata = True

    def tick(self) -> None:
        """Run the timers that have expired."""
        self.timers.run(self._clock.monotonic_ms(), "group", self.refuse_waiters)

    def refuse_waiters(self, group_id: str, waiter: Waiter | None = None) -> None:
        """Fail `waiter` after an internal error. If it is None, fail all waiting requests of the group."""
        group = self.manager.find(group_id)
        if waiter is not None:
            self._answers.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)
        elif isinstance(group, ConsumerGroup):
            group.is_assigning = False
        elif group is not None:
            self.rebalances.end_waits(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
