"""Commits and fetches of offsets with the epochs of members (KIP-848, KIP-1251)."""

from __future__ import annotations

from typing import Any

import pytest

from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.offset_checks import (
    check_commit,
    check_commit_in_transaction,
    check_fetch,
)
from mpbroker.coordinator.groups.consumer.records import (
    ClassicMember,
    CurrentAssignment,
    CurrentKey,
    MemberKey,
    MemberMetadata,
    MemberState,
)
from mpbroker.coordinator.groups.member_memory import MemberMemory
from mpbroker.protocol.errors import ApiError, ErrorCode
from tests.support.consumer_group_rig import Consumer, settle
from tests.support.group_rig import GroupRig, outcome

T = b"t" * 16
NONE, STALE, UNKNOWN = ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION


def group_with_members() -> ConsumerGroup:
    """Return a group of `new` and `old`, which uses the classic protocol.

    Each has epoch 9, partition 0 since epoch 5, and has to give up partition 1, which it has since epoch 7.
    """
    group = ConsumerGroup("g", MemberMemory())
    current = CurrentAssignment(9, 8, MemberState.UNREVOKED_PARTITIONS, {T: {0: 5}}, {T: {1: 7}})
    classic = ClassicMember(1000, (("range", b""),))
    for member_id, metadata in (("new", MemberMetadata()), ("old", MemberMetadata(classic=classic))):
        group.replay(MemberKey("g", member_id), metadata._replace(client_id="c"))
        group.replay(CurrentKey("g", member_id), current)
    return group


def error_of(check: Any, *arguments: Any) -> ErrorCode:
    try:
        check(*arguments)
    except ApiError as error:
        return error.code
    return NONE


@pytest.mark.parametrize(
    ("member_id", "epoch", "partitions", "version", "error"),
    [
        ("new", 9, [2, 3], 9, NONE),
        ("new", 9, [0], 8, ErrorCode.UNSUPPORTED_VERSION),
        ("new", 10, [0], 9, STALE),
        ("new", 8, [0, 1], 9, NONE),
        ("new", 7, [0, 1], 9, NONE),
        ("new", 6, [0], 9, NONE),
        ("new", 6, [0, 1], 9, STALE),
        ("new", 5, [0], 9, NONE),
        ("new", 4, [0], 9, STALE),
        ("new", 8, [0, 2], 9, STALE),
        ("new", -1, [0], 9, STALE),
        ("new", 8, [], 9, NONE),
        ("", -1, [0], 9, UNKNOWN),
        ("other", 9, [0], 9, UNKNOWN),
        ("other", 9, [0], 1, UNKNOWN),
        ("old", 9, [0], 2, NONE),
        ("old", 8, [0], 2, NONE),
        ("old", 8, [2], 2, ILLEGAL),
        ("old", 10, [0], 9, ILLEGAL),
    ],
)
def test_a_member_commits_with_the_epochs_in_which_it_had_a_partition(
    member_id: str, epoch: int, partitions: list[int], version: int, error: ErrorCode
) -> None:
    asked = [(T, partition) for partition in partitions]
    assert error_of(check_commit, group_with_members(), member_id, epoch, asked, version) is error


def test_a_tool_may_commit_for_a_group_without_members() -> None:
    group = ConsumerGroup("g", MemberMemory())
    assert error_of(check_commit, group, "", -1, [(T, 0)], 2) is NONE
    assert error_of(check_commit, group, "", 0, [(T, 0)], 9) is UNKNOWN
    assert error_of(check_commit_in_transaction, group, "m", None, -1, [(T, 0)]) is NONE


@pytest.mark.parametrize(
    ("member_id", "instance_id", "epoch", "error"),
    [
        ("", None, -1, NONE),
        ("", "x", -1, UNKNOWN),
        ("", None, 0, UNKNOWN),
        ("new", None, -1, ILLEGAL),
        ("new", None, 9, NONE),
        ("new", None, 5, NONE),
        ("new", None, 4, ILLEGAL),
        ("new", None, 10, ILLEGAL),
        ("old", None, 10, ILLEGAL),
        ("other", None, 9, UNKNOWN),
    ],
)
def test_in_transactions_an_old_epoch_is_an_illegal_generation(
    member_id: str, instance_id: str | None, epoch: int, error: ErrorCode
) -> None:
    arguments = (group_with_members(), member_id, instance_id, epoch, [(T, 0)])
    assert error_of(check_commit_in_transaction, *arguments) is error


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        (None, -1, NONE),
        (None, 0, UNKNOWN),
        ("", -1, UNKNOWN),
        ("other", 9, UNKNOWN),
        ("new", 9, NONE),
        ("new", 8, STALE),
        ("new", 10, STALE),
        ("new", -1, STALE),
        ("old", 8, ILLEGAL),
    ],
)
def test_a_member_fetches_with_its_epoch(member_id: str | None, epoch: int, error: ErrorCode) -> None:
    assert error_of(check_fetch, group_with_members(), member_id, epoch) is error


def test_a_client_that_has_not_heard_of_its_new_epoch_commits(rig: GroupRig) -> None:
    """It commits what it still has. A partition that it has given up is another member's."""
    a, b = Consumer(rig, "a"), Consumer(rig, "b")
    settle(rig, a)
    b.beat()
    rig.later(2_000)
    b.beat()
    a.beat()
    rig.ask(a.request(), 1)
    rig.settle()
    (kept, _), given_up = a.partitions, ({0, 1, 2, 3} - set(a.partitions)).pop()
    assert outcome(rig, rig.commit(5, "a", 2, partition=kept)) is NONE
    assert rig.committed(partition=kept) == 5
    waiter = rig.commit(6, "a", 2, partition=given_up)
    rig.settle()
    assert outcome_of_all(rig, waiter) is STALE
    assert rig.committed(partition=given_up) == -1


def outcome_of_all(rig: GroupRig, waiter: int) -> ErrorCode:
    answer: Any = rig.answers[waiter]
    return answer if isinstance(answer, ErrorCode) else outcome(rig, waiter)
