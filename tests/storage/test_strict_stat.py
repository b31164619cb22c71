"""What cannot be looked at is not taken for missing, whatever Path.exists and Path.is_dir say of it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.inspection import dump, recover
from mpbroker.inspection.partition import Partition, check
from mpbroker.log.directories import future_replica
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.partition.transaction_index_rebuild import remake
from mpbroker.log.scrub.scrubber import ColdFile, SegmentScrub
from mpbroker.storage import journal, names
from mpbroker.storage.checkpoints import write_topic_id
from mpbroker.storage.damage import Place
from mpbroker.storage.names import segment_name
from mpbroker.storage.strict_stat import is_directory, is_there
from mpbroker.storage.transaction_index import AbortedTransaction, packed
from tests.log.test_failing_calls import fail, is_offline, two_dirs
from tests.support.full_disk import failing_with
from tests.support.log_node import MakeJournaled, MakeNode
from tests.support.log_rig import TOPIC_ID, ensure
from tests.support.log_writer import make_batch

Hidden = Callable[[Path], None]


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Hidden:
    """The disk fails where one wants to look at it; as Python 3.14 and later ones tell of that."""

    def hide(path: Path) -> None:
        fail("stat", path, monkeypatch)
        for name in ("exists", "is_dir"):
            monkeypatch.setattr(Path, name, quiet(getattr(Path, name)))

    return hide


def quiet(ask: Callable[[Path], bool]) -> Callable[[Path], bool]:
    def call(path: Path) -> bool:
        try:
            return ask(path)
        except OSError:
            return False

    return call


def raises() -> pytest.RaisesExc[OSError]:
    return pytest.raises(OSError, check=lambda error: error.errno == errno.EIO)


def test_what_there_is(tmp_path: Path, hidden: Hidden) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(link)
    assert (is_there(file), is_directory(file)) == (True, False)
    assert (is_there(tmp_path), is_directory(tmp_path)) == (True, True)
    for missing in (tmp_path / "other", file / "below", link):
        assert not is_there(missing)
        assert not is_directory(missing)
    hidden(file)
    with raises():
        is_there(file)
    with raises():
        is_directory(file)


# ---- a partition in two directories


@pytest.mark.parametrize("mark", [names.MOVED, names.STAYED])
def test_the_marks_of_a_move(tmp_path: Path, hidden: Hidden, mark: str) -> None:
    log_dirs = []
    for number in range(2):
        path = tmp_path / str(number)
        (path / "t-0").mkdir(parents=True)
        write_topic_id(path / "t-0", TOPIC_ID)
        log_dirs.append(LogDirectory(number, path, group=False, failed=False))
    marked = log_dirs[1].path / "t-0"
    (marked / mark).touch()
    # The other one's is left from before, and would count alone.
    (log_dirs[0].path / "t-0" / mark).touch()
    hidden(marked / mark)
    with raises():
        future_replica.settle(log_dirs)
    with raises():
        future_replica.unmark(marked)
    assert [sorted(entry.name for entry in log_dir.path.iterdir()) for log_dir in log_dirs] == 2 * [["t-0"]]


# ---- a start


@pytest.mark.parametrize("name", [names.CLEAN_SHUTDOWN, names.DURABLE_MARK, "t-{}"])
def test_a_start(node: MakeNode, hidden: Hidden, name: str) -> None:
    """Check that the other directory is served, and that nothing is made anew in the failed one."""
    made, _, targets = two_dirs(node)
    for target in targets:
        assert made.produce(target, make_batch()) == [0]
    number = made.open(ensure(4)).index(targets[1])
    made.stop()
    there = made.names(0)
    hidden(made.dirs[1] / name.format(number))
    made.boot()
    opened = made.open(ensure(4))
    assert made.rig.partition(opened[number].slot).log_dir == 1
    assert is_offline(made, opened[number])
    first = next(one for one in opened if made.rig.partition(one.slot).log_dir == 0)
    assert made.produce(first, make_batch()) == [0]
    assert made.names(0) == there


def test_a_successor_does_without_no_journal(journaled: MakeJournaled, hidden: Hidden) -> None:
    """Check that the directory goes offline: only the predecessor's journal has unsynced records."""
    made = journaled(2)
    made.boot()
    targets = made.open(ensure(4))
    where = [made.rig.partition(target.slot).log_dir for target in targets]
    for target in targets:
        assert made.produce(target, make_batch()) == [0]
    hidden(made.dirs[1] / journal.NAME)
    made.succeed()
    opened = made.open(ensure(4))
    assert [is_offline(made, one) for one in opened] == [number == 1 for number in where]


def test_recovery_points_that_may_be_there(journaled: MakeJournaled, hidden: Hidden) -> None:
    """Check that unreadable recovery points are an error: a replay would overwrite compacted segments."""
    made = journaled(2)
    made.boot()
    for target in made.open(ensure(4)):
        assert made.produce(target, make_batch()) == [0]
    made.crash()
    hidden(made.dirs[1] / names.RECOVERY_POINTS)
    log_dir = LogDirectory(1, made.dirs[1], group=True, failed=False)
    with raises():
        log_dir.take_over(str)


def test_a_recovery_does_not_believe_that_high_watermarks_are_none(tmp_path: Path, hidden: Hidden) -> None:
    (tmp_path / names.DURABLE_MARK).touch()
    hidden(tmp_path / names.DURABLE_MARK)
    with raises():
        recover._is_group(tmp_path)


# ---- files of a segment


def test_aborted_transactions_are_not_replaced(tmp_path: Path, hidden: Hidden) -> None:
    """Check that an index that cannot be read is kept: some transactions are found nowhere else."""
    (tmp_path / segment_name(0)).touch()
    path = tmp_path / segment_name(0, names.TXN_INDEX_SUFFIX)
    path.write_bytes(packed([AbortedTransaction(5, 1, 2, 1)]))
    had = path.read_bytes()
    hidden(path)
    with raises():
        remake(tmp_path, 0, lambda _: None)
    assert path.read_bytes() == had


@pytest.mark.parametrize("name", [segment_name(0) + names.SWAP_FILE_SUFFIX, segment_name(9)])
def test_neighbours_of_a_scrubbed_segment(tmp_path: Path, hidden: Hidden, name: str) -> None:
    for base in (0, 9):
        (tmp_path / segment_name(base)).touch()
    file = ColdFile(tmp_path / segment_name(0))
    scrub = SegmentScrub(file, Place("t-0", 0, file.identity), 9, lambda: 7, ((0, 0),))
    hidden(tmp_path / name)
    with raises():
        scrub._has_neighbour()
    file.close()


# ---- inspection


def test_a_partition_that_cannot_be_looked_at_was_not_deleted(
    tmp_path: Path, hidden: Hidden, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t-0"
    path.mkdir()
    partition = Partition(path, "t", 0)
    hidden(path)

    monkeypatch.setattr("mpbroker.inspection.partition._read_epochs", failing_with(errno.ENOENT))
    with raises():
        check(partition)


def test_a_dump_leaves_nothing_out(tmp_path: Path, hidden: Hidden) -> None:
    (tmp_path / names.LEADER_EPOCHS).touch()
    hidden(tmp_path / names.LEADER_EPOCHS)
    with raises():
        dump.files_of(tmp_path)
