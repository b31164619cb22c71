"""Subscriptions to regular expressions: which topics they match, and when this is looked up again.

A group's patterns are resolved together, in the background, with the permissions of the client whose
heartbeat caused it. (Kafka: GroupMetadataManager.maybeUpdateRegularExpressions,
handleRegularExpressionsResult.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.members import PATTERN_JOB
from mpbroker.coordinator.groups.consumer.records import EpochKey, GroupEpoch, PatternKey, ResolvedPattern
from mpbroker.coordinator.groups.consumer.regular_expressions import (
    Resolver,
    check_pattern,
    is_refresh_due,
)
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.runtime.background import Background
from mpbroker.coordinator.runtime.requests import RequestContext
from mpbroker.coordinator.runtime.timers import Clock

if TYPE_CHECKING:
    from mpbroker.coordinator.groups.consumer.heartbeat import Heartbeat

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class PatternSubscriptions:
    """The patterns of all groups. `_find` returns a consumer group by its id, None if there is none."""

    _config: BrokerConfig
    _clock: Clock
    _background: Background
    _topics: TopicMetadata
    _resolver: Resolver
    _writer: Writer
    _find: Callable[[str], ConsumerGroup | None]
    # The version of the metadata that has the topic created last.
    _created_version: int = field(default=0, init=False)

    def topics_created(self) -> None:
        """Note that patterns may match new topics."""
        self._created_version = self._resolver.version

    def update(self, beat: Heartbeat) -> None:
        """Follow a member's change of pattern, and look up the group's topics again if it is due.

        Raises ApiError if the pattern is invalid.
        """
        group, old, new = beat.group, beat.before.metadata.pattern, beat.member.metadata.pattern
        is_new = False
        if old != new:
            beat.subscription_changed = True
            if old and not group.pattern_subscribers[old]:
                beat.changes.put(PatternKey(group.group_id, old), None)
            if new and group.pattern_subscribers[new] == 1:
                check_pattern(new)
                is_new = True
            elif new in group.patterns or (old and not new):
                beat.bumps = True
        if group.pattern_subscribers:
            self._refresh_if_due(beat.context, group, is_new=is_new)

    def _refresh_if_due(self, context: RequestContext, group: ConsumerGroup, *, is_new: bool) -> None:
        if self._background.is_running(PATTERN_JOB, group.group_id):
            return
        last = next(iter(group.patterns.values()), None)
        if not is_refresh_due(
            last_ms=None if last is None else last.resolved_ms,
            now_ms=self._clock.wall_ms(),
            interval_ms=self._config.group_consumer_regex_refresh_interval_ms,
            has_unresolved=is_new or len(group.pattern_subscribers) != len(group.patterns),
            has_new_topics=last is not None and last.version < self._created_version,
        ):
            return
        job = self._resolver.resolve(list(group.pattern_subscribers), context.principal, context.client_host)
        then = partial(self._resolved, group.group_id, self._resolver.version)
        self._background.start(PATTERN_JOB, group.group_id, job, then)

    def _resolved(self, group_id: str, version: int, found: Mapping[str, frozenset[str]]) -> None:
        """Keep what the patterns match. A change of it begins an epoch."""
        group = self._find(group_id)
        if group is None:
            return
        changes, now_ms, bumps = Changes(group), self._clock.wall_ms(), False
        for pattern, topics in found.items():
            if not group.pattern_subscribers[pattern]:
                continue
            known = group.patterns.get(pattern)
            bumps |= topics != (frozenset() if known is None else known.topics)
            changes.put(PatternKey(group_id, pattern), ResolvedPattern(topics, version, now_ms))
        metadata_hash = self._topics.hash_of(group.subscribed_topics)
        if bumps or metadata_hash != group.metadata_hash:
            changes.put(EpochKey(group_id), GroupEpoch(group.epoch + 1, metadata_hash))
            log.info("group %.255s: epoch %d, since its patterns match other topics", group_id, group.epoch)
        if changes.entries:
            self._writer.write(changes, lambda _error: None)
