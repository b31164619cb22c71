"""New partitions share syncs, and nobody hears of one before; a start makes again what is half of one."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mpbroker.ipc import calls
from mpbroker.log.manager import creation
from mpbroker.log.manager.creation import Creation
from mpbroker.log.process import LogProcess
from mpbroker.storage.checkpoints import read_topic_id
from tests.support.log_node import OTHER_ID, SEGMENT, STORAGE_ERROR, Node
from tests.support.log_rig import TOPIC_ID, MakeRig, Rig, ensure
from tests.support.log_writer import make_batch
from tests.support.polling import until
from tests.support.stepped_log import settle

FILES = ["partition.metadata", "leader-epoch-checkpoint"]


class Syncs:
    """The syncs of new partitions: their directories, and whether the whole file system was synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.errors: list[int] = []
        self.done: list[list[str]] = []
        self.whole = 0
        sync, at_once = Creation._sync, creation._synced_at_once

        def counted(self_: Creation) -> None:
            self.may_go.wait()
            self.done.append(sorted(log.name for log in self_._syncing))
            sync(self_)

        def whole(*arguments: object) -> bool:
            if self.errors:
                raise OSError(self.errors[0], os.strerror(self.errors.pop(0)))
            was = at_once(*arguments)  # type: ignore[arg-type]
            self.whole += was
            return was

        monkeypatch.setattr(Creation, "_sync", counted)
        monkeypatch.setattr(creation, "_synced_at_once", whole)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Syncs]:
    made = Syncs(monkeypatch)
    yield made
    made.may_go.set()


def topic(number: int, partitions: int = 3) -> calls.EnsureTopic:
    return calls.EnsureTopic(f"n{number}", bytes(15) + bytes([number + 2]), list(range(partitions)), {}, 5, 0)


def answers(rig: Rig) -> list[calls.Message]:
    return list(iter(rig.take_answer, None))


def opened(process: LogProcess) -> int:
    """Let the loop do what it can without the I/O thread; return how many topics wait for their answer."""
    process.work(0)
    until(lambda: not process.topics._opening, "all are open", process.topics.advance)
    return len(process.topics._opened)


def test_topics_that_are_created_together_share_a_sync(rig: MakeRig, syncs: Syncs) -> None:
    made = rig()
    process = made.in_process()
    syncs.done.clear()
    for number in range(9):
        made.call(topic(number))
    assert opened(process) == 9
    settle(process)
    assert [len(names) for names in syncs.done] == [27]
    assert syncs.whole == 1
    assert len(answers(made)) == 9


def test_a_topic_is_answered_when_it_is_on_disk(rig: MakeRig, syncs: Syncs) -> None:
    """Check that what comes while a sync is under way has the next one, and that others append meanwhile."""
    made = rig()
    process = made.in_process()
    made.call(topic(0, 1))
    settle(process)
    (first,) = answers(made)
    assert isinstance(first, calls.EnsuredTopic)
    syncs.done.clear()
    syncs.may_go.clear()
    for number in (1, 2):
        made.call(topic(number))
        opened(process)
    assert process.topics.only_awaits_threads
    assert process.topics
    assert answers(made) == []
    place = first.partitions[0]
    made.job([((place.slot, place.slot_generation, 5), make_batch())])
    until(lambda: bool(made.replies()), "the batch is appended", lambda: process.work(5))
    assert answers(made) == []
    syncs.may_go.set()
    settle(process)
    assert [len(names) for names in syncs.done] == [3, 3]
    assert syncs.whole == 0
    assert len(answers(made)) == 2


def test_a_sync_that_fails_takes_the_directory_offline(rig: MakeRig, syncs: Syncs) -> None:
    made = rig()
    process = made.in_process()
    syncs.errors.append(errno.EIO)
    made.call(topic(0))
    opened(process)
    until(lambda: process.manager.creation._errors is not None, "the sync is over")
    process.topics.advance()
    (answer,) = answers(made)
    assert isinstance(answer, calls.EnsuredTopic)
    assert all(process.manager.logs[one.slot].state.is_offline for one in answer.partitions)


@pytest.mark.parametrize("times", [1, 2])
def test_no_room_at_a_sync_passes(
    rig: MakeRig, syncs: Syncs, monkeypatch: pytest.MonkeyPatch, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that the files are written again: a sync that failed may have dropped what they had."""
    monkeypatch.setattr(creation, "RETRY_S", 0.0)
    made = rig()
    process = made.in_process()
    syncs.errors += [errno.ENOSPC] * times
    made.call(topic(0))
    opened(process)
    until(lambda: process.manager.creation._errors is not None, "the sync is over")
    for path in made.directory.glob("n0-*/*"):
        if path.name in FILES:
            path.write_bytes(b"")
    assert answers(made) == []
    settle(process)
    assert "new partitions are not on disk yet" in caplog.text
    assert "Make the file system larger" in caplog.text
    assert len(answers(made)) == 1
    assert not any(path.read_bytes() == b"" for name in FILES for path in made.directory.glob(f"n0-*/{name}"))


@pytest.mark.parametrize("is_under_way", [False, True])
def test_files_of_removed_partitions_are_not_written_again(
    rig: MakeRig, syncs: Syncs, monkeypatch: pytest.MonkeyPatch, is_under_way: bool
) -> None:
    """Check that another topic of that name keeps its id, made by a coordinator whose predecessor died.

    The removal comes before the next sync, or while that is under way.
    """
    monkeypatch.setattr(creation, "RETRY_S", 0.0 if is_under_way else 1000.0)
    made = rig()
    process = made.in_process()
    syncs.errors.append(errno.ENOSPC)
    made.call(topic(0))
    opened(process)
    until(lambda: process.manager.creation._errors is not None, "the sync is over")
    syncs.may_go.clear()
    process.topics.advance()
    made.call(msgspec.structs.replace(topic(0), topic_id=OTHER_ID))
    for _ in range(100):
        process.work(0)
        process.topics.advance()
    process.manager.creation._retry_at = 0.0
    syncs.may_go.set()
    settle(process)
    assert len(answers(made)) == 2
    assert {read_topic_id(path) for path in made.directory.glob("n0-?")} == {OTHER_ID}


def test_a_topic_that_is_on_disk_waits_for_no_other(
    rig: MakeRig, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a coordinator that asks for all topics again while one of them finds no room."""
    monkeypatch.setattr(creation, "RETRY_S", 1000.0)
    made = rig()
    process = made.in_process()
    made.call(topic(0))
    settle(process)
    assert len(answers(made)) == 1
    syncs.errors.append(errno.ENOSPC)
    made.call(topic(1))
    opened(process)
    until(lambda: process.manager.creation._errors is not None, "the sync is over")
    made.call(topic(1))
    made.call(topic(0))
    assert opened(process) == 2
    (answer,) = answers(made)
    assert isinstance(answer, calls.EnsuredTopic)
    assert answer.topic_id == topic(0).topic_id


def test_what_is_removed_meanwhile_is_not_missed(rig: MakeRig, syncs: Syncs) -> None:
    """Check a removal that a coordinator asks for, after the death of the one that asked for the topic."""
    made = rig()
    process = made.in_process()
    syncs.may_go.clear()
    made.call(topic(0))
    opened(process)
    for directory in list(made.directory.glob("n0-*")):
        shutil.move(directory, directory.with_name(f"{directory.name}.gone"))
    syncs.may_go.set()
    settle(process)
    assert len(answers(made)) == 1
    assert not process.turn.failed_dirs


def test_a_successor_syncs_what_its_predecessor_may_not_have(syncs: Syncs, n: Node) -> None:
    (used, _) = n.open(ensure(2))
    assert n.produce(used, make_batch()) == [0]
    syncs.done.clear()
    n.succeed()
    n.open(ensure(2))
    assert syncs.done == [["__cluster_metadata-0"], ["t-1"]]
    syncs.done.clear()
    n.stop()
    n.boot()
    n.open(ensure(2))
    assert not syncs.done


def test_a_stop_syncs_what_waits(syncs: Syncs, n: Node) -> None:
    process = n.process
    n.rig.call(ensure(2))
    process.work(0)
    while process.topics._opening:
        process.topics._advance(process.topics._opening, "opened")
    assert syncs.done == [["__cluster_metadata-0"]]
    n.stop()
    assert syncs.done[1:] == [["t-0", "t-1"]]
    assert (n.dirs[0] / ".kafka_cleanshutdown").exists()


# ---- what a power cut leaves


def nothing(directory: Path) -> None:
    shutil.rmtree(directory)


def no_files(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def no_id(directory: Path) -> None:
    (directory / "partition.metadata").unlink()


def an_empty_id(directory: Path) -> None:
    (directory / "partition.metadata").write_bytes(b"")


def zeros(directory: Path) -> None:
    for name in FILES:
        (directory / name).write_bytes(bytes((directory / name).stat().st_size))


def an_unfinished_id(directory: Path) -> None:
    (directory / "partition.metadata").rename(directory / "partition.metadata.tmp")


def no_segment(directory: Path) -> None:
    (directory / SEGMENT).unlink()


@pytest.mark.parametrize("harm", [nothing, no_files, no_id, an_empty_id, zeros, an_unfinished_id, no_segment])
@pytest.mark.parametrize("is_new", [True, False])
def test_half_of_a_new_partition_is_made_again(n: Node, harm: Callable[[Path], None], is_new: bool) -> None:
    n.open(ensure(2))
    n.crash()
    harm(n.dirs[0] / "t-1")
    n.boot()
    (first, second) = n.open(calls.EnsureTopic("t", TOPIC_ID, [0, 1], {}, 5, 0 if is_new else None))
    assert (first.error, second.error) == (0, 0)
    assert n.produce(second, make_batch()) == [0]
    assert n.names() == ["__cluster_metadata-0", "t-0", "t-1"]
    n.boot()
    assert n.end_of(n.open(ensure(2))[1]) == 1


@pytest.mark.parametrize("harm", [an_empty_id, zeros])
def test_a_partition_with_records_is_never_made_again(n: Node, harm: Callable[[Path], None]) -> None:
    assert n.produce(n.open(ensure(1))[0], make_batch()) == [0]
    n.crash()
    harm(n.dirs[0] / "t-0")
    n.boot()
    assert n.open(ensure(1))[0].error == STORAGE_ERROR
    assert (n.dirs[0] / "t-0" / SEGMENT).stat().st_size > 0


def test_what_is_not_of_a_creation_alone_is_set_aside(n: Node) -> None:
    n.open(ensure(1))
    n.crash()
    no_id(n.dirs[0] / "t-0")
    (n.dirs[0] / "t-0" / "note.txt").write_text("an operator's")
    n.boot()
    assert n.open(calls.EnsureTopic("t", OTHER_ID, [0], {}, 5))[0].error == 0
    (stray,) = (name for name in n.names() if name.endswith("-stray"))
    assert (n.dirs[0] / stray / "note.txt").exists()
