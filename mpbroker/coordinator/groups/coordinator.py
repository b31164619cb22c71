"""The group coordinator: every request about groups and their offsets, and the state that they change.

Fed with decoded requests, a clock and what the log says; it answers through `answer` and writes through
`writer`. A decision is answered when its record is durable. (Kafka: GroupCoordinatorService, -Shard.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from mpbroker.config.broker import MINUTE_MS, BrokerConfig
from mpbroker.coordinator.groups.commits import Commits, Topics
from mpbroker.coordinator.groups.group import NO_MEMBER, Group, GroupState
from mpbroker.coordinator.groups.joins import Join, Joins
from mpbroker.coordinator.groups.offsets import Offsets
from mpbroker.coordinator.groups.rebalances import Rebalances, Writer
from mpbroker.coordinator.groups.records import Entry, GroupKey, GroupValue, OffsetKey
from mpbroker.coordinator.groups.transactional import TransactionalCommits, Transactions
from mpbroker.coordinator.runtime.answers import Answers, Then, Waiter, response_error
from mpbroker.coordinator.runtime.batches import Marker
from mpbroker.coordinator.runtime.partitions import PartitionState, java_hash
from mpbroker.coordinator.runtime.timers import Clock, Timers
from mpbroker.protocol.errors import ApiError, ErrorCode
from mpbroker.protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    Message,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
    TxnOffsetCommitRequest,
)

CLASSIC: Final = "classic"
FIRST_DESCRIBE_VERSION_WITH_ERRORS: Final = 6
# What members have said of themselves can be large.
DESCRIBED_BYTES: Final = 1 << 20

log = logging.getLogger("mpbroker")


class GroupCoordinator:
    """`partitions` of `__consumer_offsets`: None while that is not known, empty while it does not exist."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        writer: Writer,
        answers: Answers,
        topics: Topics,
        new_id: Callable[[], str],
        transactions: Transactions,
    ) -> None:
        self.timers = Timers()
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.partitions: list[PartitionState] | None = None
        self._config = config
        self._clock = clock
        self._writer = writer
        self._answers = answers
        self.rebalances = Rebalances(config, self.timers, clock, writer, answers.answer)
        self._joins = Joins(config, self.rebalances, new_id, answers.answer)
        self._commits = Commits(config, clock, writer, self.offsets, topics, self.rebalances)
        self._transactional = TransactionalCommits(
            clock, writer, self.offsets, self._commits, self, transactions, answers
        )
        self._set_cleanup()

    # --- requests

    def handle(self, waiter: Waiter, request: Message, version: int, client: tuple[str, str]) -> None:
        """`client`: its id and host."""
        try:
            response = self._serve(waiter, request, version, client)
        except ApiError as error:
            self._answers.fail(waiter, error.code)
        else:
            if response is not None:
                self._answers.answer(waiter, response)

    def _serve(
        self, waiter: Waiter, request: Message, version: int, client: tuple[str, str]
    ) -> Message | None:
        """None: the answer comes later, or went out already."""
        match request:
            case JoinGroupRequest():
                self._join(Join(waiter, request, version, *client))
                return None
            case SyncGroupRequest():
                return self._sync(waiter, request)
            case HeartbeatRequest():
                return self._heartbeat(request)
            case LeaveGroupRequest():
                return self._leave(request)
            case OffsetCommitRequest():
                self.check_loaded(request.group_id)
                group = self._commits.group_for(request, self.find(request.group_id), version)
                self.add(group)
                return self._commits.commit(waiter, group, request, self._answers.answer)
            case TxnOffsetCommitRequest():
                self._transactional.commit(waiter, request, version)
                return None
            case OffsetFetchRequest():
                return self._commits.fetch(waiter, request, self.check_loaded, self._answers.answer)
            case OffsetDeleteRequest():
                return self._commits.delete(
                    waiter, self._existing(request.group_id), request, self._answers.answer
                )
            case DescribeGroupsRequest():
                return DescribeGroupsResponse(groups=self._describe_some(request.groups, version))
            case ListGroupsRequest():
                return self._list(request)
            case DeleteGroupsRequest():
                return self._delete_groups(waiter, request)
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)

    def abandon(self, waiter: Waiter) -> None:
        """Nobody is there any more to hear the answer."""
        self.rebalances.abandon(waiter)

    def partition_for(self, group_id: str) -> int:
        return java_hash(group_id) % len(self.partitions) if self.partitions else 0

    def find(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def add(self, group: Group) -> None:
        """If it is a new one."""
        self.groups.setdefault(group.group_id, group)

    def check_loaded(self, group_id: str) -> None:
        """Raises ApiError. (Kafka answers NOT_COORDINATOR for a partition that another broker leads.)"""
        if self.partitions is None:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if not self.partitions:
            return
        state = self.partitions[self.partition_for(group_id)]
        if state is PartitionState.LOADING:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        if state is PartitionState.OFFLINE:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _live(self, group_id: str) -> Group:
        """A group with members, for one of them. Raises ApiError."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        self.check_loaded(group_id)
        group = self.find(group_id)
        if group is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return group

    def _existing(self, group_id: str) -> Group:
        """Raises ApiError."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        self.check_loaded(group_id)
        group = self.find(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        return group

    # --- members

    def _join(self, join: Join) -> None:
        request = join.request
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        shortest, longest = (
            self._config.group_min_session_timeout_ms,
            self._config.group_max_session_timeout_ms,
        )
        if not shortest <= request.session_timeout_ms <= longest:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        self.check_loaded(request.group_id)
        group = self.find(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self.groups[request.group_id] = self._new_group(request.group_id)
        self._joins.join(group, join)
        never_used = group.generation == 0 and not group.members and not group.pending_joins
        if never_used and group.state is GroupState.EMPTY and not self.offsets.has_any(group.group_id):
            del self.groups[group.group_id]

    def _new_group(self, group_id: str) -> Group:
        return Group(group_id, state_ms=self._clock.wall_ms())

    def _sync(self, waiter: Waiter, request: SyncGroupRequest) -> SyncGroupResponse | None:
        group = self._live(request.group_id)
        if group.state is GroupState.EMPTY:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        for asked, ours in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol),
        ):
            if asked is not None and ours is not None and asked != ours:
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        self.rebalances.synced(group, member.member_id)
        if group.state is GroupState.STABLE:
            return SyncGroupResponse(
                protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
            )
        self.rebalances.wait_for_sync(group, member, waiter)
        if group.leader == member.member_id:
            self.rebalances.store_assignment(group, {a.member_id: a.assignment for a in request.assignments})
        return None

    def _heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        try:
            group = self._live(request.group_id)
        except ApiError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # The member cannot be known yet; that it lives is all it wanted to say.
                return HeartbeatResponse()
            raise
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        self.rebalances.keep_alive(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        return HeartbeatResponse()

    def _leave(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        asked = request.members
        results = [LeaveGroupResponse.MemberResponse(m.member_id, m.group_instance_id) for m in asked]
        try:
            group = self._live(request.group_id)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
                raise
            for result in results:
                result.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            return LeaveGroupResponse(members=results)
        for identity, result in zip(asked, results, strict=True):
            try:
                self._leave_one(group, identity)
            except ApiError as error:
                result.error_code = error.code
        gone = [r.member_id or f"instance {r.group_instance_id}" for r in results if not r.error_code]
        if gone and group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.rebalances.rebalance_or_complete(group, f"{', '.join(gone)} left")
        elif gone:
            self.rebalances.complete_join_phase_if_due(group)
        return LeaveGroupResponse(members=results)

    def _leave_one(self, group: Group, identity: LeaveGroupRequest.MemberIdentity) -> None:
        """Raises ApiError. An operator may name a static member without knowing its member id."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == NO_MEMBER and instance_id is not None:
            member_id = group.static_members.get(instance_id, NO_MEMBER)
        if member_id in group.pending_joins:
            self.rebalances.expect_no_more(group, member_id)
            group.remove(member_id)
            return
        member = group.check_member(member_id, instance_id)
        reason = identity.reason or "not provided"
        log.info("group %s: %s leaves (%s)", group.group_id, member_id, reason)
        self.rebalances.remove(group, member)

    # --- looking and deleting

    def _describe_some(self, names: list[str], version: int) -> list[DescribeGroupsResponse.DescribedGroup]:
        """Of the first, at least one: as many as can be answered at once. The handler asks for the rest."""
        described: list[DescribeGroupsResponse.DescribedGroup] = []
        size = 0
        for name in names:
            if size >= DESCRIBED_BYTES:
                break
            group = self._describe(name, version)
            size += sum(len(m.member_metadata) + len(m.member_assignment) for m in group.members)
            described.append(group)
        return described

    def _describe(self, group_id: str, version: int) -> DescribeGroupsResponse.DescribedGroup:
        described = DescribeGroupsResponse.DescribedGroup(group_id=group_id)
        try:
            self.check_loaded(group_id)
        except ApiError as error:
            described.error_code, described.error_message = error.code, error.code.message
            return described
        group = self.find(group_id)
        if group is None or group.state is GroupState.DEAD:
            described.group_state = GroupState.DEAD.value
            if version >= FIRST_DESCRIBE_VERSION_WITH_ERRORS:
                described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
                described.error_message = f"Group {group_id} not found."
            return described
        is_stable = group.state is GroupState.STABLE
        described.group_state = group.state.value
        described.protocol_type = group.protocol_type or ""
        described.protocol_data = group.protocol or "" if is_stable else ""
        described.members = [
            DescribeGroupsResponse.DescribedGroupMember(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                m.metadata(group.protocol) if is_stable else b"",
                m.assignment,
            )
            for m in group.members.values()
        ]
        return described

    def _list(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """Raises ApiError: half a list would look like a whole one."""
        if self.partitions is None or PartitionState.LOADING in self.partitions:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {state.strip().lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        groups = self.groups.values() if not types or CLASSIC in types else ()
        return ListGroupsResponse(
            groups=[
                ListGroupsResponse.ListedGroup(g.group_id, g.protocol_type or "", g.state.value, CLASSIC)
                for g in groups
                if g.state is not GroupState.DEAD and (not states or g.state.value.lower() in states)
            ]
        )

    def _delete_groups(self, waiter: Waiter, request: DeleteGroupsRequest) -> DeleteGroupsResponse | None:
        names = list(dict.fromkeys(request.groups_names))
        results = [DeleteGroupsResponse.DeletableGroupResult(name) for name in names]
        missing = 0

        def written(result: DeleteGroupsResponse.DeletableGroupResult, error: ErrorCode) -> None:
            nonlocal missing
            missing -= 1
            result.error_code = response_error(error)
            if not missing:
                self._answers.answer(waiter, DeleteGroupsResponse(results=results))

        doomed: list[tuple[Group, DeleteGroupsResponse.DeletableGroupResult]] = []
        for result in results:
            try:
                group = self._existing(result.group_id)
                if group.state is not GroupState.EMPTY:
                    raise ApiError(ErrorCode.NON_EMPTY_GROUP)
                doomed.append((group, result))
            except ApiError as error:
                result.error_code = error.code
        missing = len(doomed)
        for group, result in doomed:
            self._bury(group, partial(written, result), waiter)
        return None if doomed else DeleteGroupsResponse(results=results)

    def _bury(self, group: Group, then: Then, waiter: Waiter | None = None) -> None:
        """Deletes the group with all its offsets; until that is durable it is dead, and nobody can join."""
        group.enter(GroupState.DEAD, self._clock.wall_ms())
        self.rebalances.forget(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        group.pending_joins.clear()
        keys = self.offsets.keys_of(group.group_id)

        def written(error: ErrorCode) -> None:
            self.offsets.end(keys)
            if error:
                group.enter(GroupState.EMPTY, self._clock.wall_ms())
            else:
                self._remove_offsets(keys)
                if self.groups.get(group.group_id) is group:
                    del self.groups[group.group_id]
            then(error)

        self.offsets.begin(keys)
        entries: list[Entry] = [(key, None) for key in keys]
        self._writer.write(group.group_id, [*entries, (GroupKey(group.group_id), None)], written, waiter)

    def _remove_offsets(self, keys: Iterable[OffsetKey]) -> None:
        for key in keys:
            self.offsets.apply(key, None)

    # --- the ends of transactions

    def write_marker(self, partition: int, marker: Marker, then: Then) -> None:
        """Ends a transaction in that partition of `__consumer_offsets`; `then` follows when that is durable,
        or refused: it may be tried again later.
        """
        known = self.partitions or []
        if partition < len(known) and known[partition] is PartitionState.LOADED:
            self._transactional.write_marker(partition, marker, then)
        else:
            then(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # --- what nobody asks for

    def topics_deleted(self, names: Iterable[str]) -> None:
        """Their offsets go with them: a new topic of that name begins anew."""
        for group_id, keys in list(self.offsets.keys_of_topics(names)):
            self._commits.expire(group_id, keys)

    def _set_cleanup(self) -> None:
        at = self._clock.monotonic_ms() + self._config.offsets_retention_check_interval_ms
        self.timers.set("cleanup", at, self._cleanup)

    def _cleanup(self) -> None:
        """Offsets that are too old, and groups that have neither members nor offsets any more."""
        self._set_cleanup()
        now_ms, retention_ms = self._clock.wall_ms(), self._config.offsets_retention_minutes * MINUTE_MS
        for group in list(self.groups.values()):
            keys = self.offsets.expired(group, now_ms, retention_ms)
            if len(keys) < len(self.offsets.keys_of(group.group_id)):
                if keys:
                    self._commits.expire(group.group_id, keys)
            elif group.state is GroupState.EMPTY and not self._is_awaited(group):
                log.info("group %s: empty and without offsets, it is deleted", group.group_id)
                self._bury(group, lambda _error: None)
            elif keys:
                self._commits.expire(group.group_id, keys)

    def _is_awaited(self, group: Group) -> bool:
        """Whether somebody is about to use it, though nothing says so in the log yet."""
        return bool(group.pending_joins) or self.offsets.is_in_transaction(group.group_id)

    def tick(self) -> None:
        """Does what is due."""
        self.timers.run(self._clock.monotonic_ms(), "group", self.went_wrong)

    def went_wrong(self, group_id: str, waiter: Waiter | None = None) -> None:
        """By a fault of ours: the waiter, or whoever waits for others of the group, is told to ask again."""
        group = self.groups.get(group_id)
        if waiter is not None:
            self._answers.fail(waiter, ErrorCode.UNKNOWN_SERVER_ERROR)
        elif group is not None:
            self.rebalances.end_waits(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # --- coming and going

    def opened(self, partitions: int) -> None:
        """`__consumer_offsets` has so many partitions, none of which was read yet; 0: it is not there."""
        self.partitions = [PartitionState.LOADING] * partitions

    def loaded(self, partition: int, groups: dict[str, GroupValue | None]) -> None:
        """All records of the partition are applied; `groups` has the last of each group."""
        # Groups of other partitions are known, or not read yet; there may be very many of them.
        new = (name for name in self.offsets.groups() if name not in self.groups)
        names = {name for name in new if self.partition_for(name) == partition}
        for name, value in groups.items():
            if value is not None:
                names.discard(name)
                group = self.groups[name] = Group.from_record(name, value)
                for member in group.members.values():
                    self.rebalances.keep_alive(group, member)
                if len(group.members) > self._config.group_max_size:
                    self.rebalances.prepare(group, "more members than group.max.size allows")
        for name in names:
            self.groups[name] = Group(name)
        self._set(partition, PartitionState.LOADED)

    def failed(self, partition: int) -> None:
        """The partition cannot be read."""
        for name in self.offsets.groups():
            if self.partition_for(name) == partition:
                self.offsets.forget(name)
        self.offsets.forget_transactions(partition)
        self._set(partition, PartitionState.OFFLINE)

    def reopened(self, partition: int) -> bool:
        """Whether the partition was offline, and is loading now."""
        if self.partitions is None or self.partitions[partition] is not PartitionState.OFFLINE:
            return False
        self._set(partition, PartitionState.LOADING)
        return True

    def _set(self, partition: int, state: PartitionState) -> None:
        assert self.partitions is not None
        self.partitions[partition] = state

    def unload(self) -> None:
        """What the log says is not known any more: nobody waits, nothing is believed."""
        for group in self.groups.values():
            self.rebalances.forget(group, ErrorCode.NOT_COORDINATOR)
        for name in self.offsets.groups():
            self.offsets.forget(name)
        self.offsets.forget_transactions()
        self.groups.clear()
        self.partitions = None
