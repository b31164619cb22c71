from __future__ import annotations

from typing import Any

import pytest

from mpbroker.coordinator.groups.consumer.member_steps import MemberSteps
from mpbroker.coordinator.groups.consumer.members import SESSION
from mpbroker.coordinator.groups.consumer.records import PartitionMetadata, PartitionMetadataKey
from mpbroker.coordinator.groups.records import decode
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import ConsumerGroupHeartbeatRequest
from mpbroker.records.iterate import iterate_batches
from tests.support.consumer_group_rig import OWNED, Consumer, described, error_of, settle, settled
from tests.support.group_rig import GroupRig


def test_a_first_member_gets_all_partitions(rig: GroupRig) -> None:
    a = Consumer(rig, "a")
    answer = a.beat()
    assert (answer.member_epoch, a.partitions) == (2, [0, 1, 2, 3])
    assert answer.heartbeat_interval_ms == 5_000
    assert a.beat().assignment is None
    group = described(rig)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)


def test_a_second_member_takes_what_the_first_gives_up(rig: GroupRig) -> None:
    a, b = Consumer(rig, "a"), Consumer(rig, "b")
    a.beat()
    rig.later(2_000)
    assert b.beat().member_epoch == 3
    assert not b.owned
    a.beat()
    assert len(a.owned) == 2
    b.beat()
    assert not b.owned  # until the first has said that it gave them up
    a.beat()
    b.beat()
    assert sorted(a.partitions + b.partitions) == [0, 1, 2, 3]
    settle(rig, a, b)
    assert described(rig).group_state == "Stable"


def test_a_member_that_leaves_frees_its_partitions(rig: GroupRig) -> None:
    a, b = Consumer(rig, "a"), Consumer(rig, "b")
    settle(rig, a)
    b.beat()
    settle(rig, a, b)
    assert b.leave().member_epoch == -1
    settle(rig, a)
    assert a.partitions == [0, 1, 2, 3]
    assert error_of(b.leave()) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_repeated_heartbeat_restarts_the_session(rig: GroupRig) -> None:
    a = Consumer(rig, "a")
    settle(rig, a)
    a.beat()
    (repeat,) = rig.repeats.values()
    for _ in range(3):
        rig.later(40_000)
        assert repeat.again()
    rig.later(44_999)
    assert described(rig).group_state == "Stable"
    rig.later(1)
    assert described(rig).group_state == "Empty"
    assert not repeat.again()


# --- the checks, in Kafka's order

JOIN = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ["t"], "topic_partitions": []}
INVALID = ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("fields", "version", "code", "text"),
    [
        ({**JOIN, "member_id": ""}, 1, INVALID, "MemberId can't be empty."),
        ({"member_id": " \x01", "member_epoch": 3}, 0, INVALID, "MemberId can't be empty."),
        ({"member_id": "", "member_epoch": -1}, 0, INVALID, "MemberId can't be empty."),
        ({**JOIN, "group_id": " "}, 1, INVALID, "GroupId can't be empty."),
        ({**JOIN, "instance_id": ""}, 1, INVALID, "InstanceId can't be empty."),
        ({**JOIN, "rack_id": "\t"}, 1, INVALID, "RackId can't be empty."),
        (
            {**JOIN, "rebalance_timeout_ms": -1},
            1,
            INVALID,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            {**JOIN, "topic_partitions": None},
            1,
            INVALID,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {**JOIN, "topic_partitions": [OWNED(bytes(16), [0])]},
            1,
            INVALID,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {**JOIN, "subscribed_topic_names": None},
            1,
            INVALID,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"member_epoch": -2}, 1, INVALID, "InstanceId can't be null."),
        ({"member_epoch": -3}, 1, INVALID, "MemberEpoch is invalid."),
        ({"member_epoch": -(2**31)}, 1, INVALID, "MemberEpoch is invalid."),
        (
            {**JOIN, "server_assignor": "x"},
            1,
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            "ServerAssignor x is not supported. Supported assignors: uniform, range.",
        ),
        ({"member_epoch": 1}, 1, ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found."),
        ({"member_epoch": -1}, 1, ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found."),
    ],
)
def test_requests_are_checked(
    rig: GroupRig, fields: dict[str, Any], version: int, code: ErrorCode, text: str
) -> None:
    request = ConsumerGroupHeartbeatRequest("g", "m", 0, topic_partitions=None)
    for name, value in fields.items():
        setattr(request, name, value)
    answer = rig.now(request, version)
    assert (error_of(answer), answer.error_message) == (code, text)
    assert rig.coordinator.manager.find("g") is None


def test_a_full_group_is_said_before_an_unknown_member(rig: GroupRig) -> None:
    Consumer(rig, "a").beat()
    answer = Consumer(rig, "b", epoch=1).beat()
    assert error_of(answer) is ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.error_message == "Member b is not a member of group g."
    rig = GroupRig(group_consumer_max_size=1)
    a = Consumer(rig, "a")
    a.beat()
    for consumer in (Consumer(rig, "b", epoch=1), Consumer(rig, "b")):
        answer = consumer.beat()
        assert error_of(answer) is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert answer.error_message == "The consumer group has reached its maximum capacity of 1 members."
    assert not a.beat().error_code


def test_the_coordinator_makes_ids_for_clients_of_the_first_version(rig: GroupRig) -> None:
    request = Consumer(rig, "").request()
    request.subscribed_topic_regex = None
    answer = rig.now(request, 0)
    assert (answer.error_code, answer.member_id) == (0, "id1")


# --- epochs


def test_an_epoch_from_the_future_is_fenced(rig: GroupRig) -> None:
    a = Consumer(rig, "a")
    a.beat()
    for epoch in (3, 2**31 - 1):
        answer = a.beat(member_epoch=epoch)
        assert error_of(answer) is ErrorCode.FENCED_MEMBER_EPOCH
        assert answer.error_message == (
            f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group "
            "coordinator (2). The member must abandon all its partitions and rejoin."
        )


def test_the_epoch_before_is_accepted_of_a_client_that_lost_the_answer(rig: GroupRig) -> None:
    a, b = Consumer(rig, "a"), Consumer(rig, "b")
    settle(rig, a)
    b.beat()
    rig.later(2_000)
    b.beat()
    a.beat()
    a.beat()  # It has given up two partitions, and gets epoch 3.
    assert a.epoch == 3
    settle(rig, a, b)
    t = rig.id_of("t") or b""
    (kept, other), lost = a.partitions, b.partitions[0]
    for owned in ([], [OWNED(t, [kept])], [OWNED(t, [kept]), OWNED(t, [other])]):
        assert not a.beat(member_epoch=2, topic_partitions=owned).error_code
    for owned in (None, [OWNED(t, [kept, lost])], [OWNED(t, [kept]), OWNED(t, [lost])], [OWNED(b"?" * 16)]):
        answer = rig.now(a.request(member_epoch=2, topic_partitions=owned), 1)
        assert error_of(answer) is ErrorCode.FENCED_MEMBER_EPOCH, owned
        assert "has a smaller member epoch (2) than the one known" in answer.error_message
    answer = rig.now(a.request(member_epoch=1, topic_partitions=[]), 1)
    assert error_of(answer) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_client_that_drops_a_late_answer_and_does_not_say_so_learns_its_assignment(rig: GroupRig) -> None:
    a, b = Consumer(rig, "a"), Consumer(rig, "b")
    settle(rig, a)
    b.beat()
    rig.later(2_000)
    rig.now(a.request(), 1)  # It has to give up two partitions.
    rig.reload()
    a.beat()
    assert len(a.owned) == 2
    a.beat()
    rig.now(b.request(), 1)  # It gets these two.
    b.beat()
    assert len(b.owned) == 2
    settle(rig, a, b)
    assert sorted(a.partitions + b.partitions) == [0, 1, 2, 3]
    assert a.beat().assignment is None


def test_a_member_that_joins_again_keeps_its_place(rig: GroupRig) -> None:
    a = settled(rig, "a")
    had = set(a.owned)
    a.epoch, a.owned = 0, set()
    answer = a.beat()
    assert (answer.member_epoch, a.owned) == (2, had)
    assert described(rig).group_epoch == 2


def test_all_is_told_to_a_client_that_tells_all(rig: GroupRig) -> None:
    a = settled(rig, "a")
    assert a.beat().assignment is None
    a.is_full = True
    assert a.beat().assignment is not None
    assert a.beat(rebalance_timeout_ms=1, topic_partitions=[]).assignment is None


# --- what changes the group's epoch


@pytest.mark.parametrize(
    ("change", "epoch"),
    [
        ({"subscribed_topic_names": ["t", "u"]}, 3),
        ({"subscribed_topic_names": ["t", "t"]}, 2),
        ({"subscribed_topic_names": []}, 3),
        ({"rack_id": "r"}, 2),
        ({"server_assignor": "range"}, 2),
        ({"rebalance_timeout_ms": 7}, 2),
    ],
)
def test_only_a_change_of_topics_begins_an_epoch(rig: GroupRig, change: dict[str, Any], epoch: int) -> None:
    a = settled(rig, "a")
    a.beat(**change)
    assert described(rig).group_epoch == epoch
    before = described(rig)
    rig.reload()
    assert described(rig) == before


def test_topics_that_come_grow_and_go_begin_epochs(rig: GroupRig) -> None:
    a = settled(rig, "a", topics=("t", "new"))
    for change in (lambda: rig.create("new", 2), lambda: rig.create("new", 3), lambda: rig.delete("new")):
        epoch = a.epoch
        change()
        settle(rig, a)
        assert a.epoch == epoch + 1
        assert len(a.owned) == 4 + rig.partitions_of("new")
    rig.create("other", 3)
    settle(rig, a)
    assert a.epoch == 5
    rig.create("new", 3)
    settle(rig, a)
    assert len(a.owned) == 7


def test_metadata_of_older_versions_is_deleted_with_the_next_epoch(rig: GroupRig) -> None:
    a = settled(rig, "a")
    group = rig.coordinator.manager.find_consumer("g")
    assert group is not None
    group.replay(PartitionMetadataKey("g"), PartitionMetadata())
    a.beat(subscribed_topic_names=["u"])
    assert not group.has_partition_metadata
    written = [decode(r.key, r.value) for b in iterate_batches(rig.log[3]) for r in b.records()]
    assert (PartitionMetadataKey("g"), None) in written


def test_a_subscription_that_grows_is_within_the_bound_of_memory() -> None:
    rig = GroupRig(group_max_members_bytes=2_000)
    memory = rig.coordinator.manager.memory
    a = settled(rig, "a")
    before = described(rig)
    answer = a.beat(subscribed_topic_names=[f"topic-{number}" for number in range(10)])
    assert error_of(answer) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert described(rig) == before
    assert not a.beat(subscribed_topic_names=["a", "b", "c"]).error_code
    assert error_of(Consumer(rig, "b").beat()) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert a.leave().member_epoch == -1
    assert memory.used_bytes == 0


def test_a_topic_may_be_named_twice_in_what_is_owned(rig: GroupRig) -> None:
    """A partition that is named first counts, too: it is not given to another member."""
    a, b = Consumer(rig, "a", is_lazy=True), Consumer(rig, "b")
    a.beat()
    a.catch_up()
    rig.later(2_000)
    b.beat()
    a.beat()
    t = rig.id_of("t") or b""
    owned = [OWNED(t, [0, 1, 2, 3]), OWNED(t, [])]
    a.beat(topic_partitions=owned)
    b.beat()
    assert not b.owned


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_a_refused_write_is_undone_with_what_builds_on_it(
    rig: GroupRig, refused: ErrorCode, code: ErrorCode
) -> None:
    """Two members that join in one round have epochs that build on each other."""
    a, b = Consumer(rig, "a"), Consumer(rig, "b")
    first = rig.ask(a.request(), 1)
    second = rig.ask(b.request(), 1)
    rig.append_round(refused)
    for waiter in (first, second):
        assert error_of(rig.answers[waiter]) is code  # type: ignore[arg-type]
    assert rig.coordinator.manager.groups == {}
    assert rig.coordinator.manager.memory.used_bytes == 0
    assert rig.coordinator.timers.count(SESSION) == 0
    assert rig.queue.is_idle
    assert settled(rig, "a").partitions == [0, 1, 2, 3]


def test_a_subscription_that_no_record_can_hold_is_refused(rig: GroupRig) -> None:
    a = Consumer(rig, "a", topics=tuple(f"{number:0100}" for number in range(20_000)))
    answer = a.beat()
    assert error_of(answer) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert rig.coordinator.manager.groups == {}
    assert rig.coordinator.manager.memory.used_bytes == 0


def steps_of(monkeypatch: pytest.MonkeyPatch, consumer: Consumer, **how: Any) -> int:
    """Send a heartbeat. Return how many members' steps it has run."""
    run: list[object] = []
    assign = MemberSteps.assign
    with monkeypatch.context() as patch:
        patch.setattr(MemberSteps, "assign", lambda *args: (run.append(args), assign(*args)))
        assert not consumer.beat(**how).error_code
    return len(run)


def test_a_heartbeat_of_an_idle_member_runs_no_step(rig: GroupRig, monkeypatch: pytest.MonkeyPatch) -> None:
    a = Consumer(rig, "a")
    settle(rig, a)
    # For longer than a session.
    for _ in range(4):
        rig.later(30_000)
        assert steps_of(monkeypatch, a) == 0
    assert described(rig).group_state == "Stable"
    rig.later(60_000)
    assert error_of(a.beat()) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    "how",
    [
        {"topic_partitions": []},
        {"subscribed_topic_names": ["t"]},
        {"subscribed_topic_regex": "t.*"},
        {"server_assignor": "range"},
        {"rack_id": "rack"},
        {"rebalance_timeout_ms": 1_000},
    ],
)
def test_a_heartbeat_that_brings_news_runs_the_steps(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    a = Consumer(rig, "a")
    settle(rig, a)
    assert steps_of(monkeypatch, a, **how) == 1


def test_a_group_that_changes_runs_the_steps_of_its_members(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = Consumer(rig, "a"), Consumer(rig, "b")
    settle(rig, a)
    b.beat()
    assert steps_of(monkeypatch, a) == 1
    settle(rig, a, b)
    assert steps_of(monkeypatch, a) + steps_of(monkeypatch, b) == 0
    assert a.leave()
    assert steps_of(monkeypatch, b) == 1
