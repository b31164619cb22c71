"""DeleteGroups, and the expiry of offsets and groups. (Kafka: GroupCoordinatorShard.cleanupGroupMetadata.)"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from functools import partial

from mpbroker.config.broker import MINUTE_MS, BrokerConfig
from mpbroker.coordinator.groups.classic.group import Group, GroupState
from mpbroker.coordinator.groups.classic.rebalances import Rebalances
from mpbroker.coordinator.groups.consumer.changes import Changes
from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.members import ConsumerGroupMembers
from mpbroker.coordinator.groups.group_manager import AnyGroup, GroupMetadataManager
from mpbroker.coordinator.groups.offset_manager import OffsetMetadataManager
from mpbroker.coordinator.groups.records import Entry, GroupKey
from mpbroker.coordinator.runtime.requests import Answers, RequestContext, Then, Waiter, response_error
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.coordinator.runtime.write_queue import WriteQueue
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import DeleteGroupsRequest, DeleteGroupsResponse

log = logging.getLogger("mpbroker.coordinator.groups")


@dataclass(eq=False)
class DeleteGroups:
    _config: BrokerConfig
    _clock: Clock
    _timers: Timers
    _queue: WriteQueue[Entry]
    _manager: GroupMetadataManager
    _offset_manager: OffsetMetadataManager
    _rebalances: Rebalances
    _consumer_members: ConsumerGroupMembers
    _answers: Answers

    def __post_init__(self) -> None:
        self._offsets = self._offset_manager.offsets
        self._set_cleanup()

    def delete(self, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse | None:
        """Delete groups that have no members. The response has an error code for each group."""
        names = list(dict.fromkeys(request.groups_names))
        results = [DeleteGroupsResponse.DeletableGroupResult(name) for name in names]
        missing = 0

        def written(result: DeleteGroupsResponse.DeletableGroupResult, error: ErrorCode) -> None:
            nonlocal missing
            missing -= 1
            result.error_code = response_error(error)
            if not missing:
                self._answers.answer(context.waiter, DeleteGroupsResponse(results=results))

        doomed: list[tuple[AnyGroup, DeleteGroupsResponse.DeletableGroupResult]] = []
        for result in results:
            try:
                group = self._manager.existing(result.group_id)
                if not group.is_empty:
                    raise ApiError(ErrorCode.NON_EMPTY_GROUP)
                doomed.append((group, result))
            except ApiError as error:
                result.error_code = error.code
        missing = len(doomed)
        for group, result in doomed:
            self._bury(group, partial(written, result), context.waiter)
        return None if doomed else DeleteGroupsResponse(results=results)

    def _bury(self, group: AnyGroup, then: Then, waiter: Waiter | None = None) -> None:
        """Delete the group with its offsets."""
        if isinstance(group, ConsumerGroup):
            self._bury_consumer_group(group, then, waiter)
        else:
            self._bury_classic_group(group, then, waiter)

    def _bury_consumer_group(self, group: ConsumerGroup, then: Then, waiter: Waiter | None) -> None:
        """Delete the group at once. Restore it if the deletion is refused."""
        keys = self._offsets.keys_of(group.group_id)

        def written(error: ErrorCode) -> None:
            self._manager.deleting -= Counter({group.group_id: 1})
            self._offsets.end(keys)
            for key in () if error else keys:
                self._offsets.apply(key, None)
            then(error)

        changes = Changes(group)
        self._consumer_members.delete(changes)
        self._manager.remove(group)
        self._manager.deleting[group.group_id] += 1
        changes.or_else(partial(self._manager.add, group))
        self._offsets.begin(keys)
        entries: list[Entry] = [*((key, None) for key in keys), *changes.entries]
        self._queue.append(group.group_id, entries, written, waiter, undo=changes.undo)

    def _bury_classic_group(self, group: Group, then: Then, waiter: Waiter | None) -> None:
        """Delete the group. It is Dead, and refuses joins, until the deletion is durable."""
        group.enter(GroupState.DEAD, self._clock.wall_ms())
        self._rebalances.end_group(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        group.expect_no_joins()
        keys = self._offsets.keys_of(group.group_id)

        def written(error: ErrorCode) -> None:
            self._offsets.end(keys)
            if error:
                group.enter(GroupState.EMPTY, self._clock.wall_ms())
            else:
                for key in keys:
                    self._offsets.apply(key, None)
                self._manager.remove(group)
            then(error)

        self._offsets.begin(keys)
        entries: list[Entry] = [*((key, None) for key in keys), (GroupKey(group.group_id), None)]
        self._queue.append(group.group_id, entries, written, waiter)

    # --- periodic work

    def _set_cleanup(self) -> None:
        at = self._clock.monotonic_ms() + self._config.offsets_retention_check_interval_ms
        self._timers.set("cleanup", at, self._cleanup)

    def _cleanup(self) -> None:
        """Delete expired offsets, and groups with neither members nor offsets."""
        self._set_cleanup()
        now_ms, retention_ms = self._clock.wall_ms(), self._config.offsets_retention_minutes * MINUTE_MS
        for group in list(self._manager.groups.values()):
            keys = self._offsets.expired(group, now_ms, retention_ms)
            if len(keys) < len(self._offsets.keys_of(group.group_id)):
                if keys:
                    self._offset_manager.expire(group.group_id, keys)
            elif group.is_empty and not self._is_awaited(group):
                log.info("group %.255s: empty and without offsets, it is deleted", group.group_id)
                self._bury(group, lambda _error: None)
            elif keys:
                self._offset_manager.expire(group.group_id, keys)

    def _is_awaited(self, group: AnyGroup) -> bool:
        """Return whether a client is about to join the group, or a transaction has offsets of the group."""
        joins = isinstance(group, Group) and bool(group.pending_joins)
        return joins or self._offsets.is_in_transaction(group.group_id)
