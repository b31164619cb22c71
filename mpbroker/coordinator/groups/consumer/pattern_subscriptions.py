"""Subscriptions to regular expressions: which topics they match, and when this is looked up again.

A group's patterns are resolved together, in the background, with the permissions of the client whose
heartbeat started the work. (Kafka: GroupMetadataManager.maybeUpdateRegularExpressions,
handleRegularExpressionsResult.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.groups.consumer.changes import Changes, Writer, pieces
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.member_request import MemberRequest
from mpbroker.coordinator.groups.consumer.members import PATTERN_JOB
from mpbroker.coordinator.groups.consumer.records import PatternKey, ResolvedPattern
from mpbroker.coordinator.groups.consumer.regular_expressions import compiled, is_refresh_due, resolve
from mpbroker.coordinator.groups.consumer.topic_metadata import TopicMetadata
from mpbroker.coordinator.groups.group_counts import GroupCounts
from mpbroker.coordinator.runtime.background import Background, Job
from mpbroker.coordinator.runtime.host import Host
from mpbroker.coordinator.runtime.timers import Clock
from mpbroker.security.acls import Operation, ResourceType

# An estimate of what a record takes beside the names.
RECORD_BYTES: Final = 100

Matches: TypeAlias = Mapping[str, frozenset[str] | None]
"""Topics by pattern; None where a pattern keeps those that it had."""

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class PatternSubscriptions:
    """The patterns of all groups. `_find` returns a consumer group by its id, None if there is none."""

    _config: BrokerConfig
    _clock: Clock
    _background: Background
    _host: Host
    _topics: TopicMetadata
    _writer: Writer
    _counts: GroupCounts
    _find: Callable[[str], ConsumerGroup | None]

    def update(self, request: MemberRequest) -> None:
        """Follow a member's change of pattern, and resolve the group's patterns again if that is due.

        Raises ApiError if the pattern is invalid.
        """
        group, old, new = request.group, request.before.metadata.pattern, request.member.metadata.pattern
        is_new = False
        if old != new:
            request.subscription_changed = True
            if old and not group.pattern_subscribers[old]:
                request.changes.put(PatternKey(group.group_id, old), None)
            if new and group.pattern_subscribers[new] == 1:
                compiled(new)
                is_new = True
            elif new in group.patterns or (old and not new):
                request.bumps = True
        if group.pattern_subscribers:
            self._refresh_if_due(request, is_new=is_new)

    def _refresh_if_due(self, request: MemberRequest, *, is_new: bool) -> None:
        group, client = request.group, request.context.client
        if self._background.is_running(PATTERN_JOB, group.group_id):
            return
        last, metadata = next(iter(group.patterns.values()), None), self._host.metadata
        if not is_refresh_due(
            self._clock.wall_ms(),
            None if last is None else last.resolved_ms,
            self._config.group_consumer_regex_refresh_interval_ms,
            subscribed=len(group.pattern_subscribers),
            resolved=len(group.patterns),
            is_new=is_new,
            has_new_topics=last is not None and metadata.has_topics_since(last.version),
        ):
            return
        version, is_first_slice = metadata.next_offset, True

        def may_describe(topic: str) -> bool:
            return self._host.is_allowed(client, Operation.DESCRIBE, ResourceType.TOPIC, topic)

        def resolved(found: Matches) -> None:
            rest = pieces(found, _size_of)
            first = next(rest, {})
            if is_first_slice and len(first) == len(found):
                self._put(request.changes, version, first)
            else:
                writes = self._write(group.group_id, version, chain((first,), rest))
                self._background.put_off(PATTERN_JOB, group.group_id, writes, lambda _: None)

        job = resolve(group.group_id, group.pattern_subscribers, metadata.ids, may_describe)
        # A client that names topics too gets those first, as Kafka always does it: librdkafka expects that.
        run = self._background.put_off if request.member.metadata.topics else self._background.start
        run(PATTERN_JOB, group.group_id, job, resolved)
        is_first_slice = False

    def _write(self, group_id: str, version: int, found: Iterable[Matches]) -> Job[None]:
        """Write the topics that patterns match. Each item of `found` becomes durable by itself."""
        for piece in found:
            group = self._find(group_id)
            if group is None:
                return
            changes = Changes(group)
            self._put(changes, version, piece)
            self._writer.write(changes, lambda _error: None)
            yield

    def _put(self, changes: Changes, version: int, found: Matches) -> None:
        """Write which topics the patterns match. Begin an epoch if these or the topics' hash have changed."""
        group, now_ms, bumps = changes.group, self._clock.wall_ms(), False
        for pattern, topics in found.items():
            if not group.pattern_subscribers[pattern]:
                continue
            known = group.patterns.get(pattern)
            before = frozenset[str]() if known is None else known.topics
            if topics is None:
                topics = before
            bumps |= topics != before
            changes.put(PatternKey(group.group_id, pattern), ResolvedPattern(topics, version, now_ms))
        metadata_hash = self._topics.hash_of(group)
        if bumps or metadata_hash != group.metadata_hash:
            changes.begin_epoch(metadata_hash)
            self._counts.rebalances += 1
            log.info(
                "group %.255s: epoch %d, for its patterns match other topics", group.group_id, group.epoch
            )


def _size_of(pattern: str, topics: frozenset[str] | None) -> int:
    return RECORD_BYTES + len(pattern) + sum(map(len, topics or ())) + len(topics or ())
