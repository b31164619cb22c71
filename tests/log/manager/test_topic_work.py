"""Topics are opened and removed a slice at a time: others are served between, and a kill harms nobody."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import count

import pytest

from mpbroker.ipc import calls
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.process import LogProcess
from mpbroker.protocol.errors import ErrorCode
from mpbroker.records.validation import at_once
from tests.support.log_node import MakeNode, Node, again
from tests.support.log_rig import TOPIC_ID, MakeRig, Rig, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import until
from tests.support.stepped_log import Broker, fence_coordinator, settle

PARTITIONS = 3
OTHERS = bytes(16 * [7])
Batch = Callable[..., bytearray]


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slice be over after one step."""
    monkeypatch.setattr("mpbroker.log.recovery.scheduler.STAY_WITH_CLIENTS_S", 0)
    monkeypatch.setattr("mpbroker.log.recovery.scheduler.STAY_S", 0)


def opened(b: Broker, topic: calls.EnsureTopic) -> list[tuple[int, int, int]]:
    b.rig.call(topic)
    b.settle()
    answer = b.rig.take_answer()
    assert isinstance(answer, calls.EnsuredTopic)
    return [(one.slot, one.slot_generation, 5) for one in answer.partitions]


def slices(process: LogProcess) -> Generator[int, None, None]:
    """Number the slices; a round of the turn comes between two of them, as in the loop."""
    for number in count():
        if not process.topics.advance():
            return
        process.work(0)
        yield number


def flags_of(rig: Rig, slots: list[int]) -> set[int]:
    return {rig.partition(slot).flags for slot in slots}


def test_producers_go_on_while_a_large_topic_is_removed(b: Broker) -> None:
    large = opened(b, calls.EnsureTopic("large", OTHERS, list(range(20)), {}, 5))
    b.rig.call(calls.RemoveTopic("large", OTHERS))
    b.process.work(0)
    assert flags_of(b.rig, [slot for slot, *_ in large]) == {PartitionFlag.PARTITION_DELETED}
    served = 0
    for number in slices(b.process):
        assert (b.rig.take_answer() is None) == bool(b.process.topics)
        b.rig.job([(b.targets[0], make_batch())], acks=1)
        b.rig.job([(large[number % 20], make_batch())], acks=1)
        b.process.work(0)
        done = [reply.results[0] for reply in b.rig.replies()]
        assert [one.base_offset for one in done] == [number, -1]
        assert done[1].error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        served += 1
    assert served > 3 * 20
    assert len(list(b.rig.directory.glob("large-*-delete"))) == 20


def test_many_topics_share_a_listing_and_go_one_by_one(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    b, real, listed = Broker(rig()), LogDirectory.names, []

    def names(log_dir: LogDirectory) -> list[str]:
        listed.append(log_dir)
        return real(log_dir)

    ids = [bytes(16 * [number]) for number in range(100, 110)]
    for number, topic_id in enumerate(ids):
        opened(b, calls.EnsureTopic(f"x-{number}", topic_id, [0, 1], {}, 5))
    monkeypatch.setattr(LogDirectory, "names", names)
    for number, topic_id in enumerate(ids):
        b.rig.call(calls.RemoveTopic(f"x-{number}", topic_id))
    b.process.work(0)
    gone, left = [], []
    for _ in slices(b.process):
        if answer := b.rig.take_answer():
            assert isinstance(answer, calls.RemovedTopic)
            gone.append(answer.topic_id)
            left.append(len([path for path in b.rig.directory.glob("x-*") if "delete" not in path.name]))
    assert gone == ids
    assert left == list(range(18, -1, -2)), "none is answered before its directories have other names"
    assert len(listed) == 1


def test_whoever_removes_does_not_wait_for_whoever_creates(b: Broker) -> None:
    b.rig.call(calls.EnsureTopic("large", OTHERS, list(range(40)), {}, 5))
    b.rig.call(calls.RemoveTopic("t", TOPIC_ID))
    b.process.work(0)
    answers = [answer for _ in slices(b.process) if (answer := b.rig.take_answer())]
    assert [type(answer) for answer in answers] == [calls.RemovedTopic, calls.EnsuredTopic]


# ---- and if it is killed right here?


def removed_up_to(made: Node, slice_: int) -> tuple[list[int], bool]:
    """Remove a topic that has records, up to a slice. Return its slots, and whether it was removed before."""
    targets = made.open(ensure(PARTITIONS))
    for target in targets:
        assert made.produce(target, make_batch(), 5) == [0] * 5
    made.checkpoint()
    steps = made.process.manager.removing("t", TOPIC_ID)
    done = [None for _, _ in zip(range(slice_), steps, strict=False)]
    return [target.slot for target in targets], len(done) < slice_


def left_of(made: Node) -> list[str]:
    """Return the ends of the names that the topic's directories have."""
    return sorted(name.rpartition("-")[2] for name in made.names() if name.startswith("t-"))


def is_new(made: Node) -> None:
    """Check that the topic of this name is another one."""
    (target,) = made.open(again(new_from=None))
    assert (target.error, made.end_of(target)) == (0, 0)
    assert made.produce(target, make_batch()) == [0]


# Steps: three partitions take part in three of them each, and the names are listed in one.
LAST_STEP = 4 * PARTITIONS + 1


@pytest.mark.parametrize("slice_", range(LAST_STEP + 1))
def test_the_successor_of_a_killed_one_removes_the_rest(n: Node, slice_: int) -> None:
    """Check it if the coordinator asks again."""
    slots, was_over = removed_up_to(n, slice_)
    assert not was_over
    assert flags_of(n.rig, slots) == {PartitionFlag.PARTITION_DELETED}
    process = n.succeed()
    at_once(process.manager.removing("t", TOPIC_ID))
    assert flags_of(n.rig, slots) == {PartitionFlag.PARTITION_DELETED}
    assert left_of(n) == ["delete"] * PARTITIONS
    is_new(n)


def test_every_step_was_killed(n: Node) -> None:
    assert removed_up_to(n, LAST_STEP + 1)[1]


@pytest.mark.parametrize("slice_", range(0, LAST_STEP + 1, 3))
def test_a_successor_whom_nobody_asks_again_deletes_the_rest(n: Node, slice_: int) -> None:
    """Check it if the coordinator died, too: its successor knows nothing of the removal."""
    removed_up_to(n, slice_)
    process = n.succeed()
    at_once(process.manager.removal.setting_strays_aside({}))
    assert left_of(n) == ["delete"] * PARTITIONS
    process.manager.removal.deletions.begin_due(float("inf"))
    until(lambda: process.io_thread.is_idle, "the files are deleted")
    assert left_of(n) == []
    is_new(n)


def test_a_topic_that_came_back_under_its_id_keeps_its_directory(n: Node) -> None:
    """A slot of its former life may still say that it was deleted."""
    removed_up_to(n, LAST_STEP + 1)
    process = n.succeed()
    directory = next(n.rig.directory.glob("t-0.*-delete"))
    directory.rename(n.rig.directory / "t-0")
    at_once(process.manager.removal.setting_strays_aside({"t": TOPIC_ID}))
    assert "0" in left_of(n)


@pytest.mark.parametrize("slice_", range(0, LAST_STEP + 1, 3))
def test_a_successor_opens_a_topic_of_that_name_first(n: Node, slice_: int) -> None:
    removed_up_to(n, slice_)
    process = n.succeed()
    is_new(n)
    at_once(process.manager.removing("t", TOPIC_ID))
    assert left_of(n) == ["0", *["delete"] * PARTITIONS]
    n.checkpoint()
    assert n.offsets() == ["__cluster_metadata 0 0", "t 0 1"]


@pytest.mark.parametrize("slice_", range(0, LAST_STEP + 1, 3))
def test_a_broker_that_is_killed_serves_nothing_of_the_topic(n: Node, slice_: int) -> None:
    """Check it as without slices: what has its old name still belongs to no topic."""
    removed_up_to(n, slice_)
    process = n.boot()
    at_once(process.manager.removal.setting_strays_aside({}))
    assert len(left_of(n)) == PARTITIONS
    assert set(left_of(n)) <= {"delete", "stray"}
    is_new(n)


# ---- others who come between


@pytest.mark.parametrize("slice_", range(0, LAST_STEP + 1, 2))
def test_made_anew_between_two_slices(n: Node, slice_: int) -> None:
    process = n.process
    for target in n.open(ensure(PARTITIONS)):
        n.produce(target, make_batch(), 5)
    n.checkpoint()
    n.rig.call(calls.RemoveTopic("t", TOPIC_ID))
    process.work(0)
    for number in slices(process):
        if number == slice_:
            break
    n.rig.call(again(new_from=None))
    settle(process)
    answers = [n.rig.take_answer(), n.rig.take_answer()]
    (ensured,) = (one for one in answers if isinstance(one, calls.EnsuredTopic))
    assert calls.RemovedTopic(TOPIC_ID) in answers
    (target,) = ensured.partitions
    assert (target.error, n.end_of(target)) == (0, 0)
    assert n.produce(target, make_batch(), 2) == [0, 0]
    assert left_of(n) == ["0", *["delete"] * PARTITIONS]
    n.checkpoint()
    assert n.offsets() == ["__cluster_metadata 0 0", "t 0 2"]


def test_a_dead_coordinators_removal_is_finished_and_no_news_to_its_successor(rig: MakeRig) -> None:
    """Check it also where the removal has begun because another topic of the name was to be opened."""
    r = rig()
    process = r.in_process()
    r.call(ensure(PARTITIONS))
    r.call(calls.EnsureTopic("u", OTHERS, [0, 1], {}, 5))
    settle(process)
    assert [type(r.take_answer()) for _ in range(2)] == [calls.EnsuredTopic] * 2
    r.call(again())
    r.call(calls.RemoveTopic("u", OTHERS))
    process.work(0)
    for _ in range(2):
        assert process.topics.advance()
    assert len(process.manager.removal.unfinished()) == 2
    fence_coordinator(r, process)
    assert process.topics.is_removing
    settle(process)
    assert r.take_answer() is None
    assert process.manager.removal.unfinished() == []
    assert len(list(r.directory.glob("[tu]-*-delete"))) == PARTITIONS + 2
    assert not list(r.directory.glob("[tu]-?"))


def test_a_stop_finishes_what_is_being_removed(n: Node) -> None:
    process = n.process
    for target in n.open(ensure(PARTITIONS)):
        n.produce(target, make_batch())
    n.rig.call(calls.RemoveTopic("t", TOPIC_ID))
    process.work(0)
    process.topics.advance()
    n.stop()
    assert left_of(n) == ["delete"] * PARTITIONS
    assert (n.dirs[0] / ".kafka_cleanshutdown").exists()
    assert n.offsets() == ["__cluster_metadata 0 0"]


def test_a_log_directory_that_fails_meanwhile_leaves_it_deleted(node: MakeNode) -> None:
    """Check that a deleted partition does not become one that is only offline, for a successor to keep."""
    made = node(2)
    process = made.boot()
    slots = [target.slot for target in made.open(ensure(PARTITIONS))]
    steps = process.manager.removing("t", TOPIC_ID)
    next(steps)
    process.turn.storage_failed(1, 5)
    settle(process)
    assert all(made.rig.partition(slot).flags & PartitionFlag.PARTITION_DELETED for slot in slots)
    assert any(made.rig.partition(slot).flags & PartitionFlag.PARTITION_OFFLINE for slot in slots)
    at_once(steps)
    assert all(made.rig.partition(slot).flags & PartitionFlag.PARTITION_DELETED for slot in slots)


def test_the_strays_of_a_topic_are_told_at_once(node: MakeNode, caplog: pytest.LogCaptureFixture) -> None:
    made = node()
    process = made.boot()
    for name in ("nobody-0", "nobody-1", "none-0"):
        (made.dirs[0] / name).mkdir()
    at_once(process.manager.removal.setting_strays_aside({}))
    said = [one.getMessage() for one in caplog.records if "belong to no topic" in one.getMessage()]
    assert [line.partition(" belong")[0] for line in said] == [
        f"{made.dirs[0]}: 2 partition(s) of nobody",
        f"{made.dirs[0]}: 1 partition(s) of none",
    ]


@pytest.mark.parametrize("slice_", range(5))
def test_topics_that_come_and_go_while_strays_are_set_aside(
    node: MakeNode, monkeypatch: pytest.MonkeyPatch, slice_: int
) -> None:
    """Check that a topic that the coordinator has not named is no stray if it is younger than the order."""
    monkeypatch.setattr("mpbroker.log.manager.removal.NAMES_AT_ONCE", 1)
    made = node()
    process = made.boot()
    made.open(ensure(PARTITIONS))
    (made.dirs[0] / "nobody-0").mkdir()
    made.rig.call(calls.Recovered({"t": TOPIC_ID}))
    process.work(0)
    for _ in range(slice_):
        assert process.topics.advance()
    (new,) = made.open(calls.EnsureTopic("new", OTHERS, [0], {}, 5, 0))
    assert made.produce(new, make_batch()) == [0]
    at_once(process.manager.removing("t", TOPIC_ID))
    settle(process)
    assert calls.Acknowledged() in [made.rig.take_answer() for _ in range(2)]
    assert left_of(made) == ["delete"] * PARTITIONS
    assert "new-0" in made.names()
    (stray,) = (name for name in made.names() if name.startswith("nobody-0"))
    assert stray.endswith("-stray")
    assert made.produce(new, make_batch()) == [0]
