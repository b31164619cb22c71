from __future__ import annotations

from typing import Any

import pytest

from mpbroker.coordinator.groups.consumer.group import ConsumerGroup
from mpbroker.coordinator.groups.consumer.members import SESSION, SYNC
from mpbroker.protocol.consumer_protocol import decode_assignment, version_of
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.support.consumer_group_rig import Consumer, described
from tests.support.group_rig import REBALANCE_MS, SESSION_MS, GroupRig, code_of, outcome
from tests.support.mixed_group_rig import NewClient, OldClient, run, subscription

REFUSED = ErrorCode.KAFKA_STORAGE_ERROR
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID


def group_with(old: int, **how: Any) -> tuple[GroupRig, NewClient, list[OldClient]]:
    """A consumer group at rest, with a member of the consumer protocol and classic members."""
    rig = GroupRig(**{"group_initial_rebalance_delay_ms": 0, **how})
    new = NewClient(rig, "n")
    clients = [OldClient(rig, f"o{n}", is_cooperative=True) for n in range(old)]
    run(rig, [new])
    run(rig, [new, *clients])
    return rig, new, clients


def ids(rig: GroupRig) -> set[str]:
    return {member.member_id for member in described(rig).members}


def join(rig: GroupRig, *, version: int = 9, **how: Any) -> JoinGroupResponse:
    fields: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": [("cooperative-sticky", subscription(0, ["t"], {}, -1))],
    }
    request = JoinGroupRequest(**(fields | how))
    request.protocols = [JoinGroupRequest.JoinGroupRequestProtocol(*one) for one in request.protocols]
    answer = rig.now(request, version)
    assert isinstance(answer, JoinGroupResponse)
    return answer


# --- JoinGroup


def test_a_client_joins_and_assigns_nothing() -> None:
    rig, new, _ = group_with(0)
    asked = join(rig)
    assert code_of(asked) is ErrorCode.MEMBER_ID_REQUIRED
    assert ids(rig) == {"n"}
    answer = join(rig, member_id=asked.member_id)
    epoch = described(rig).group_epoch
    assert (answer.generation_id, answer.protocol_type, answer.protocol_name) == (
        epoch,
        "consumer",
        "cooperative-sticky",
    )
    assert (answer.leader, answer.members, answer.member_id) == ("", [], asked.member_id)
    (member,) = [one for one in described(rig).members if one.member_id == asked.member_id]
    assert (member.member_type, member.client_id, member.client_host) == (0, "c", "/127.0.0.1")
    assert member.subscribed_topic_names == ["t"]
    assert new.member_id in ids(rig)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": [("other", subscription(0, ["t"], {}, -1))]}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": [("cooperative-sticky", b"malformed")]}, ErrorCode.UNKNOWN_SERVER_ERROR),
        # It has been removed, and does not know it: it must give up what it has before it joins.
        (
            {"protocols": [("cooperative-sticky", subscription(1, ["t"], {"t": [0]}, 2))], "member_id": "x"},
            UNKNOWN,
        ),
        ({"member_id": "x", "group_instance_id": "i"}, UNKNOWN),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
def test_joins_that_are_refused(how: dict[str, Any], code: ErrorCode) -> None:
    rig, _, _ = group_with(1)
    before = described(rig)
    request: dict[str, Any] = {"version": 3} | how
    if code is ErrorCode.INVALID_SESSION_TIMEOUT:
        with pytest.raises(AssertionError):
            join(rig, **request)
    else:
        answer = join(rig, **request)
        assert (code_of(answer), answer.member_id) == (code, request.get("member_id", ""))
    assert described(rig) == before


def test_a_client_of_another_protocol_joins_when_no_classic_member_needs_the_first() -> None:
    rig, _, _ = group_with(0)
    protocols = [("other", subscription(0, ["t"], {}, -1)), ("third", subscription(0, ["t"], {}, -1))]
    assert not join(rig, version=3, protocols=protocols).error_code
    assert not join(rig, version=3, protocols=protocols[1:]).error_code
    assert join(rig, version=3, protocols=protocols[:1]).error_code


@pytest.mark.parametrize("bound", [{"group_consumer_max_size": 2}, {"group_max_members_bytes": 100_000}])
def test_members_and_their_memory_are_bounded(bound: dict[str, int]) -> None:
    rig, _, (old,) = group_with(1, **bound)
    large = [("cooperative-sticky", subscription(0, ["t"], {}, -1) + bytes(100_000))]
    protocols = {"protocols": large} if "group_max_members_bytes" in bound else {}
    assert code_of(join(rig, version=3, **protocols)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not join(rig, member_id=old.member_id).error_code


def test_a_static_member_is_replaced_at_once() -> None:
    rig, new, _ = group_with(0)
    first = OldClient(rig, "a", is_cooperative=True, instance="i")
    run(rig, [new, first])
    epoch, owned, memory = described(rig).group_epoch, first.owned, rig.coordinator.manager.memory.used_bytes
    second = OldClient(rig, "a", is_cooperative=True, instance="i")
    first.owned = set()
    run(rig, [new, second])
    assert (second.owned, second.generation, described(rig).group_epoch) == (owned, epoch, epoch)
    assert rig.coordinator.manager.memory.used_bytes == memory
    for request in (
        HeartbeatRequest("g", epoch, first.member_id, "i"),
        SyncGroupRequest("g", epoch, first.member_id, "i"),
    ):
        assert code_of(rig.now(request)) is ErrorCode.FENCED_INSTANCE_ID
    answer = join(rig, member_id=first.member_id, group_instance_id="i")
    assert (code_of(answer), answer.member_id) == (ErrorCode.FENCED_INSTANCE_ID, first.member_id)


def test_an_answer_waits_until_it_is_durable() -> None:
    rig, new, _ = group_with(0)
    old = OldClient(rig, "o", join_version=3)
    waiter = old.join()
    assert waiter not in rig.answers
    member_id = next(name for name in members_of(rig) if name != "n")
    sync = rig.sync(member_id, members_of(rig)[member_id].epoch)
    assert sync not in rig.answers
    rig.append_round(REFUSED)
    answer: Any = rig.answers[waiter]
    assert (code_of(answer), answer.member_id) == (ErrorCode.NOT_COORDINATOR, "")
    assert code_of(rig.answers[sync]) is ErrorCode.NOT_COORDINATOR
    assert ids(rig) == {"n"}
    assert [rig.coordinator.timers.count(kind) for kind in (SESSION, SYNC)] == [1, 0]
    run(rig, [new, old])


def members_of(rig: GroupRig) -> dict[str, Any]:
    group = rig.coordinator.manager.find("g")
    assert isinstance(group, ConsumerGroup)
    return group.members


# --- how partitions move


def test_an_eager_member_gives_up_all_by_joining_again() -> None:
    rig, new, _ = group_with(0)
    new.leave()
    new.epoch, new.owned = 0, set()
    old = OldClient(rig, "o")
    run(rig, [old])
    new.step()
    rig.settle()
    assert not new.owned
    joins = old.joins
    for _ in range(10):
        old.step()
        new.step()
        rig.settle()
        rig.later(2_000)
    assert old.joins == joins + 1
    assert len(old.owned) == len(new.owned) == 2


def test_a_cooperative_member_joins_twice_and_keeps_the_rest() -> None:
    rig = GroupRig(group_initial_rebalance_delay_ms=0)
    old, new = OldClient(rig, "o", is_cooperative=True), NewClient(rig, "n")
    run(rig, [old])
    before, joins = set(old.owned), old.joins
    for _ in range(10):
        old.step()
        new.step()
        rig.settle()
        assert len(old.owned & before) >= 2
        rig.later(2_000)
    assert old.joins == joins + 2
    assert len(old.owned) == len(new.owned) == 2


def test_a_member_is_asked_to_join_again_when_its_partitions_are_free() -> None:
    rig, new, _ = group_with(0)
    old = OldClient(rig, "o", join_version=3)
    old.step()
    rig.later(2_000)
    new.step()
    rig.settle()
    old.step()  # hears that it has joined
    old.step()
    assert old.does == "heartbeat"
    assert not old.owned
    assert rig.heartbeat(old.member_id, old.generation) is ErrorCode.NONE
    for _ in range(2):
        new.step()  # hears that it has to give up two, says that it has done so
        rig.settle()
    assert rig.heartbeat(old.member_id, old.generation) is REBALANCE
    run(rig, [new, old])


def test_heartbeats_of_classic_members_alone_follow_what_happens() -> None:
    """No member of the consumer protocol is there to begin epochs and compute targets."""
    rig, new, clients = group_with(2, group_consumer_migration_policy="disabled")
    new.leave()
    run(rig, clients)
    assert set.union(*(client.owned for client in clients)) == {(rig.id_of("t"), n) for n in range(4)}
    rig.topics["t"] = 6
    rig.coordinator.topics_changed(["t"])
    run(rig, clients)
    assert isinstance(rig.coordinator.manager.find("g"), ConsumerGroup)


# --- SyncGroup and Heartbeat


def test_the_assignment_has_the_version_of_the_subscription() -> None:
    rig, _, (old,) = group_with(1)
    answer = rig.now(SyncGroupRequest("g", old.generation, old.member_id), 5)
    assert version_of(answer.assignment) == old.version
    assert decode_assignment(answer.assignment)[0].keys() == {"t"}
    assert (answer.protocol_type, answer.protocol_name) == (None, None)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": "x"}, UNKNOWN),
        ({"member_id": "n"}, UNKNOWN),  # uses the consumer protocol
        ({"group_instance_id": "i"}, UNKNOWN),
        ({"generation_id": 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "range"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "consumer", "protocol_name": "cooperative-sticky"}, ErrorCode.NONE),
    ],
)
def test_requests_are_checked(fields: dict[str, Any], code: ErrorCode) -> None:
    rig, _, (old,) = group_with(1)
    request = SyncGroupRequest("g", old.generation, old.member_id)
    beat = HeartbeatRequest("g", old.generation, old.member_id)
    for name, value in fields.items():
        setattr(request, name, value)
        if hasattr(beat, name):
            setattr(beat, name, value)
    assert code_of(rig.now(request, 5)) is code
    if code is not ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        assert code_of(rig.now(beat, 4)) is code


def begin_epoch(rig: GroupRig) -> None:
    """Another member joins, and there is a new target."""
    Consumer(rig, "another").beat()
    rig.later(1_001)
    Consumer(rig, "another").beat()


@pytest.mark.parametrize("request_type", [SyncGroupRequest, HeartbeatRequest])
def test_a_member_that_is_behind_has_to_join_in_time(request_type: Any) -> None:
    rig, new, _ = group_with(0, group_consumer_migration_policy="disabled")
    old = OldClient(rig, "o", is_cooperative=True, session_ms=10 * REBALANCE_MS)
    run(rig, [new, old])
    begin_epoch(rig)
    assert code_of(rig.now(request_type("g", old.generation, old.member_id), 4)) is REBALANCE
    rig.later(REBALANCE_MS - 1)
    assert old.member_id in ids(rig)
    # A second request to join does not give it more time.
    assert rig.heartbeat(old.member_id, old.generation) is REBALANCE
    rig.later(1)
    assert old.member_id not in ids(rig)


def test_a_member_is_asked_to_join_again_when_it_has_to_give_up_a_topic() -> None:
    rig, new, _ = group_with(0, group_consumer_assignment_interval_ms=10_000)
    old = OldClient(rig, "o", is_cooperative=True, topics=("t", "u"))
    run(rig, [new, old])
    # There is no new target within the interval.
    old.topics, old.does = ("t",), "join"
    old.step()
    rig.settle()
    old.step()
    epoch = described(rig).assignment_epoch
    assert old.generation == epoch
    assert rig.heartbeat(old.member_id, old.generation) is REBALANCE


def test_a_member_that_has_joined_again_has_time_for_the_next_time() -> None:
    rig, new, (old,) = group_with(1)
    another = NewClient(rig, "another")
    run(rig, [new, old, another], until=lambda: old.does == "join")
    run(rig, [new, old, another])
    for _ in range(REBALANCE_MS // 4_000 + 2):
        for client in (new, another):
            client.step()
        assert rig.heartbeat(old.member_id, old.generation) is ErrorCode.NONE
        rig.later(4_000)


def test_a_member_that_joined_has_to_sync_in_time() -> None:
    rig, new, _ = group_with(0)
    old = OldClient(rig, "o", join_version=3)
    old.step()
    rig.settle()
    old.step()
    assert old.does == "sync"
    for _ in range(REBALANCE_MS // 4_000 + 1):
        new.step()
        rig.heartbeat(old.member_id, old.generation)
        rig.later(4_000)
    assert ids(rig) == {"n"}


@pytest.mark.parametrize("reloads", [False, True])
def test_a_silent_member_is_removed_after_its_own_session(reloads: bool) -> None:
    rig, new, (old,) = group_with(1)
    rig.heartbeat(old.member_id, old.generation)
    if reloads:
        before = described(rig)
        rig.later(SESSION_MS - 1)
        rig.reload()
        assert described(rig) == before
    rig.later(SESSION_MS - 1)
    assert old.member_id in ids(rig)
    rig.later(1)
    assert ids(rig) == {"n"}
    old.owned = set()
    run(rig, [new])


def test_a_member_turns_to_the_consumer_protocol_under_its_id() -> None:
    rig, new, (old,) = group_with(1)
    begin_epoch(rig)
    rig.heartbeat(old.member_id, old.generation)  # it shall join
    turned = NewClient(rig, old.member_id)
    old.owned = set()
    for _ in range(REBALANCE_MS // 4_000 + 1):
        new.step()
        turned.step()
        rig.settle()
        rig.later(4_000)
    assert {"n", turned.member_id} <= ids(rig)
    assert all(one.member_type == 1 for one in described(rig).members)


# --- LeaveGroup and offsets


def test_members_leave() -> None:
    rig, new, clients = group_with(3)
    static = OldClient(rig, "s", is_cooperative=True, instance="i")
    run(rig, [new, *clients, static])
    before, epoch = described(rig), described(rig).group_epoch
    assert rig.leave(("x", None)) == [UNKNOWN]
    assert described(rig) == before
    answers = rig.leave(
        (clients[0].member_id, None),
        (clients[0].member_id, None),
        ("x", None),
        ("", "i"),
        ("x", "i"),
        ("", "j"),
    )
    assert answers == [0, UNKNOWN, 0, ErrorCode.FENCED_INSTANCE_ID, UNKNOWN]
    assert ids(rig) == {"n", clients[1].member_id, clients[2].member_id}
    assert described(rig).group_epoch == epoch + 1
    run(rig, [new, *clients[1:]])


def test_a_refused_leave_leaves_the_member() -> None:
    rig, new, (old,) = group_with(1)
    another = OldClient(rig, "o2", is_cooperative=True)
    run(rig, [new, old, another])
    waiter = rig.ask(old.farewell(), 5)
    rig.append_round(REFUSED)
    assert code_of(rig.answers[waiter]) is ErrorCode.NOT_COORDINATOR
    run(rig, [new, old, another])
    rig.later(SESSION_MS)
    assert ids(rig) == {"n"}


def test_offsets_are_committed_in_a_generation_that_is_the_epoch() -> None:
    rig, _, (old,) = group_with(1)
    mine = next(number for _, number in old.owned)
    for version in (2, 9):
        assert commit(rig, old, 0, mine, version) is ErrorCode.NONE
        assert commit(rig, old, 1, mine, version) is ErrorCode.ILLEGAL_GENERATION
        assert commit(rig, old, -2, mine, version) is ErrorCode.ILLEGAL_GENERATION
    assert outcome(rig, rig.commit(1, "x", old.generation)) is UNKNOWN


def commit(rig: GroupRig, old: OldClient, later: int, partition: int, version: int) -> ErrorCode:
    waiter = rig.commit(7, old.member_id, old.generation + later, partition=partition, version=version)
    return outcome(rig, waiter)


def test_requests_to_an_empty_group() -> None:
    rig, new, _ = group_with(0)
    new.leave()
    assert code_of(rig.now(SyncGroupRequest("g", 2, "n"))) is UNKNOWN
    assert rig.heartbeat("n", 2) is UNKNOWN
    assert rig.leave(("n", None)) == [UNKNOWN]
    identity = LeaveGroupRequest.MemberIdentity("", "i")
    assert rig.now(LeaveGroupRequest("g", members=[identity]), 5).members[0].error_code == UNKNOWN
