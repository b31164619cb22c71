"""Checks whether a client may commit or fetch the offsets of a consumer group.

(Kafka: ConsumerGroup.validateOffsetCommit, validateOffsetFetch; KIP-848, KIP-1251.)
"""

from __future__ import annotations

from collections.abc import Iterable

from mpbroker.coordinator.groups.consumer.group import ConsumerGroup, Member
from mpbroker.protocol.consumer_protocol import NO_MEMBER
from mpbroker.protocol.errors import ApiError, ErrorCode

FIRST_COMMIT_VERSION_WITH_EPOCH = 9


def check_commit(
    group: ConsumerGroup,
    member_id: str,
    epoch: int,
    partitions: Iterable[tuple[bytes, int]],
    version: int,
) -> None:
    """Raise ApiError unless the client may commit offsets of `partitions`, pairs of topic id and number.

    A member may commit with a former epoch for partitions that it has had since then.
    """
    if epoch < 0 and not group.members:
        return
    member = group.member(member_id)
    if not member.is_classic and version < FIRST_COMMIT_VERSION_WITH_EPOCH:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
        )
    _check_epoch(member, epoch, partitions)


def check_commit_in_transaction(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    partitions: Iterable[tuple[bytes, int]],
) -> None:
    """Raise ApiError unless the client may commit in a transaction. A client need not name a member."""
    if epoch < 0 and (not group.members or (member_id == NO_MEMBER and instance_id is None)):
        return
    try:
        _check_epoch(group.member(member_id), epoch, partitions)
    except ApiError as error:
        if error.code is ErrorCode.STALE_MEMBER_EPOCH:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION) from error
        raise


def _check_epoch(member: Member, epoch: int, partitions: Iterable[tuple[bytes, int]]) -> None:
    current = member.current
    if epoch == current.epoch:
        return
    if epoch > current.epoch:
        raise ApiError(_stale(member))
    for topic_id, partition in partitions:
        since = None
        for assignment in (current.assigned, current.revoking):
            since = assignment.get(topic_id, {}).get(partition, since)
        if since is None or epoch < since:
            raise ApiError(_stale(member))


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Raise ApiError unless the client may fetch offsets. A client need not name a member."""
    if member_id is None and epoch < 0:
        return
    member = group.member(member_id or NO_MEMBER)
    if epoch != member.epoch:
        raise ApiError(_stale(member))


def _stale(member: Member) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
