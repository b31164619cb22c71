from __future__ import annotations

import pytest

from mpbroker.config.resource_config import GROUP
from mpbroker.coordinator.groups.consumer import changes, target_assignments
from mpbroker.coordinator.groups.consumer.assignors import assignors
from mpbroker.coordinator.groups.consumer.assignors.group_spec import GroupSpec, PartitionAssignorError
from mpbroker.coordinator.groups.records import decode
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.messages import DeleteGroupsRequest
from mpbroker.records.iterate import iterate_batches
from tests.support.consumer_group_rig import Consumer, described, error_of, settle, settled
from tests.support.group_rig import GroupRig


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch, rig: GroupRig) -> GroupRig:
    """A group coordinator that computes a target in as many slices as there are members."""
    monkeypatch.setattr(target_assignments, "MEMBERS_AT_ONCE", 1)
    monkeypatch.setattr(changes, "PIECE_BYTES", 1)
    rig.coordinator.background.slice_s = 0
    return rig


def keys_written(rig: GroupRig) -> list[tuple[object, object]]:
    batches = [batch for log in rig.log.values() for batch in iterate_batches(log)]
    return [decode(r.key, r.value) or ("", "") for batch in batches for r in batch.records()]


# --- when a target is computed


def test_a_target_is_computed_once_in_an_interval(rig: GroupRig) -> None:
    a, b = Consumer(rig, "a"), Consumer(rig, "b")
    a.beat()
    rig.later(999)
    b.beat()
    found = described(rig)
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Assigning", 3, 2)
    rig.later(1)
    b.beat()
    found = described(rig)
    assert (found.group_state, found.assignment_epoch) == ("Reconciling", 3)


def test_a_group_may_have_no_interval(rig: GroupRig) -> None:
    rig.metadata.settings[GROUP, "g"] = {"consumer.assignment.interval.ms": "0"}
    Consumer(rig, "a").beat()
    Consumer(rig, "b").beat()
    assert described(rig).assignment_epoch == 3


def test_an_interval_is_over_although_the_clock_was_set_back(rig: GroupRig) -> None:
    Consumer(rig, "a").beat()
    Consumer(rig, "b").beat()
    assert described(rig).assignment_epoch == 2
    rig.now_ms -= 1_000
    Consumer(rig, "c").beat()
    assert described(rig).assignment_epoch == 4


# --- which assignor computes it


def test_the_assignor_with_most_votes_is_taken(rig: GroupRig) -> None:
    assert described_assignor(rig, None) == "uniform"
    assert described_assignor(GroupRig(group_consumer_assignors=("range", "uniform")), None) == "range"
    assert described_assignor(GroupRig(), "range", "range", "uniform") == "range"
    assert described_assignor(GroupRig(), "uniform", "range") == "range"


def described_assignor(rig: GroupRig, *votes: str | None) -> str:
    for number, vote in enumerate(votes):
        Consumer(rig, f"m{number}", assignor=vote).beat()
    return described(rig).assignor_name


def test_range_assigns_ranges(rig: GroupRig) -> None:
    a = settled(rig, "a", assignor="range")
    b = settled(rig, "b", a, assignor="range")
    assert (a.partitions, b.partitions) == ([0, 1], [2, 3])


def test_an_assignor_that_fails_is_said_and_all_is_undone(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: GroupSpec) -> None:
        raise PartitionAssignorError("no luck")

    monkeypatch.setattr(target_assignments, "ASSIGNORS", {"uniform": fails})
    answer = Consumer(rig, "a").beat()
    assert error_of(answer) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert answer.error_message == "Failed to compute a new target assignment for epoch 2: no luck"
    assert rig.coordinator.manager.groups == {}
    monkeypatch.setattr(target_assignments, "ASSIGNORS", assignors.ASSIGNORS)
    settled(rig, "a")


# --- in the background


def test_a_target_may_take_several_slices(sliced: GroupRig) -> None:
    consumers = [Consumer(sliced, f"m{number}", topics=("t", "u")) for number in range(3)]
    for one in consumers:
        assert one.beat().member_epoch in (0, 1, 2, 3)
        assert not one.owned
    settle(sliced, *consumers)
    assert sorted(one for c in consumers for one in c.partitions) == [0, 0, 1, 2, 3]
    before = described(sliced)
    sliced.reload()
    assert described(sliced) == before


def test_topics_may_be_deleted_between_slices(sliced: GroupRig, caplog: pytest.LogCaptureFixture) -> None:
    a, b = Consumer(sliced, "a", topics=("t", "u")), Consumer(sliced, "b", topics=("t", "u"))
    sliced.ask(a.request(), 1)
    sliced.ask(b.request(), 1)
    sliced.coordinator.tick()
    sliced.delete("u")
    settle(sliced, a, b)
    assert sorted(a.partitions + b.partitions) == [0, 1, 2, 3]
    assert "failed" not in caplog.text


def jobs(rig: GroupRig) -> int:
    return rig.coordinator.timers.count("assignment")


@pytest.mark.parametrize("slices", [0, 1, 2, 3])
def test_the_target_of_an_epoch_that_is_undone_is_not_written(sliced: GroupRig, slices: int) -> None:
    """Two members join. Before, between or after the slices of the computation, the log refuses that."""
    for member_id in "ab":
        sliced.ask(Consumer(sliced, member_id).request(), 1)
    for _ in range(slices):
        sliced.coordinator.tick()
    sliced.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert jobs(sliced) == 0
    sliced.later(1_000)
    assert sliced.coordinator.manager.groups == {}
    assert keys_written(sliced) == []
    settled(sliced, "c")


def test_the_epoch_that_follows_an_undone_one_has_its_own_target(sliced: GroupRig) -> None:
    """It has the same number, and other members."""
    a = settled(sliced, "a")
    sliced.ask(Consumer(sliced, "b").request(), 1)
    sliced.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    c = Consumer(sliced, "c")
    settle(sliced, a, c)
    assert (a.epoch, len(a.owned), len(c.owned)) == (3, 2, 2)


def test_a_piece_that_is_refused_is_computed_again(
    sliced: GroupRig, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Consumer(sliced, "a"), Consumer(sliced, "b")
    for one in (a, b):
        sliced.ask(one.request(), 1)
    while sliced.coordinator.manager.find_consumer("g").targets == {}:  # type: ignore[union-attr]
        sliced.append_round()
        sliced.coordinator.tick()
    sliced.append_round(ErrorCode.KAFKA_STORAGE_ERROR)
    assert sliced.coordinator.manager.find_consumer("g").targets == {}  # type: ignore[union-attr]
    settle(sliced, a, b)
    assert sorted(a.partitions + b.partitions) == [0, 1, 2, 3]
    assert "was not written: KAFKA_STORAGE_ERROR" in caplog.text


@pytest.mark.parametrize("outcome", [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR])
def test_a_deleted_group_gets_no_target(sliced: GroupRig, outcome: ErrorCode) -> None:
    consumers = [Consumer(sliced, member_id) for member_id in "abc"]
    for one in consumers:
        sliced.ask(one.request(), 1)
    sliced.append_round()
    for one in consumers:
        one.leave()
    assert jobs(sliced) == 1
    sliced.ask(DeleteGroupsRequest(["g"]), 2)
    sliced.append_round(outcome)
    sliced.later(1_000)
    found = described(sliced)
    if outcome:
        assert found.group_state == "Empty"
        settle(sliced, *(Consumer(sliced, member_id) for member_id in "abc"))
    else:
        assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        sliced.reload()
        assert sliced.coordinator.manager.groups == {}


def test_a_large_target_is_written_in_pieces_after_what_the_request_changed(
    rig: GroupRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's epoch is the last record, so that a reload in between computes the target again."""
    monkeypatch.setattr(changes, "PIECE_BYTES", 1)
    a = settled(rig, "a")
    settled(rig, "b", a)
    before = len(keys_written(rig))
    rig.ask(Consumer(rig, "c").request(), 1)
    assert jobs(rig) == 1
    rig.settle()
    rig.later(0)
    written = [type(key).__name__ for key, _ in keys_written(rig)[before:]]
    assert written[:3] == ["MemberKey", "EpochKey", "CurrentKey"]
    assert written[3:] == ["TargetMemberKey"] * (len(written) - 4) + ["TargetKey"]


def cut(rig: GroupRig, place: int) -> GroupRig:
    """Return a coordinator that has read the log up to the batch with this number."""
    batches = list(iterate_batches(rig.log[3]))
    after = GroupRig({**rig.log, 3: b"".join(batch.bytes for batch in batches[:place])})
    after.now_ms = rig.now_ms
    return after


def test_a_group_is_assigned_whatever_was_written_of_its_target(sliced: GroupRig) -> None:
    consumers = [Consumer(sliced, member_id) for member_id in "abc"]
    for one in consumers:
        one.beat()
    settle(sliced, *consumers)
    for place in range(len(list(iterate_batches(sliced.log[3]))) + 1):
        rig = cut(sliced, place)
        again = [Consumer(rig, member_id) for member_id in "abc"]
        settle(rig, *again)
        assert sorted(one for c in again for one in c.partitions) == [0, 1, 2, 3]
