"""What a replay of a commit journal says of what it has done, and how that gets on the device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mpbroker.log.directories import journal_replay, log_directory
from mpbroker.storage.checkpoints import write_epochs
from mpbroker.storage.journal import JournalFile
from tests.support.log_node import Journaled, MakeJournaled, extents, noted_syncs, records, wait_for_io
from tests.support.log_rig import ensure
from tests.support.log_writer import Syncs, make_batch


def taken_over(n: Journaled, file_system: Syncs | None = None) -> log_directory.LogDirectory:
    log_dir = log_directory.LogDirectory(0, n.dirs[0], group=True, failed=False)
    if file_system is not None:
        log_dir.file_system = file_system  # type: ignore[assignment]
    log_dir.take_over(print)
    return log_dir


def test_what_a_replay_has_brought_back_is_durable(filled: MakeJournaled) -> None:
    """Check it for segments that have the records now; a deleted one gets no durable end."""
    n = filled()
    n.power_cut(3)
    n.segment(2).unlink()
    log_dir = taken_over(n)
    assert [log_dir.durable(("t", number)) for number in range(3)] == [10, 10, 0]


def test_the_last_round_may_not_have_been_finished(filled: MakeJournaled) -> None:
    """Check that the last record proves nothing: it may be on the device before the segments are synced."""
    n = filled(2)
    n.power_cut(2)
    log_dir = taken_over(n)
    assert [log_dir.durable(("t", number)) for number in range(2)] == [10, 6]
    assert [n.segment(number).stat().st_size > 0 for number in range(2)] == [True, True]


def test_a_successor_does_not_know_whether_its_predecessors_last_round_was_finished(
    filled: MakeJournaled,
) -> None:
    n = filled(2)
    n.succeed()
    wait_for_io(n.process)
    n.process.manager.journals.use()
    target, _ = n.open(ensure(2))
    for _ in range(2):
        assert n.produce(target, make_batch(1)) == [0]
    said = [record.is_first for record in records(n.path)]
    assert [number for number, is_first in enumerate(said) if is_first] == [0, len(said) - 2]
    n.power_cut(2)
    log_dir = taken_over(n)
    assert [log_dir.durable(("t", number)) for number in range(2)] == [11, 6]


def test_durable_is_what_the_last_record_of_a_segment_says(filled: MakeJournaled) -> None:
    """Check that records that were cut after a failed sync and appended anew do not count as acknowledged."""
    n = filled(1)
    n.power_cut()
    first, *_, last = records(n.path)
    found = [last, first._replace(is_first=False), first._replace(is_first=False)]
    kept = SimpleNamespace(path=n.path, records=lambda: iter(found))
    targets = log_directory.LogDirectory(0, n.dirs[0], group=True, failed=False).partitions()
    assert journal_replay.replay(kept, targets, {}, str).ends == {("t", 0): 1}  # type: ignore[arg-type]


def test_what_is_left_out_says_nothing_of_what_is_durable(filled: MakeJournaled) -> None:
    n = filled(2)
    n.power_cut(2)
    write_epochs(n.dirs[0] / "t-0", [(0, 0), (1, 0)])
    found = JournalFile(n.path)
    partitions = log_directory.LogDirectory(0, n.dirs[0], group=True, failed=False).partitions()
    assert journal_replay.replay(found, partitions, {("t", 1): 10}, str).ends.keys() <= {
        ("__cluster_metadata", 0)
    }
    found.close()


@pytest.mark.parametrize("at_once", [False, True])
def test_many_segments_are_synced_as_one_before_the_journal_is_emptied(
    filled: MakeJournaled, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    n = filled()
    had = n.power_cut(3)
    monkeypatch.setattr(journal_replay, "MANY", 2)
    with pytest.raises(OSError, match="Input/output error"):
        taken_over(n, Syncs(fails_at=1))
    assert extents(n.path), "what is not in the segments for certain stays in the journal"
    synced = noted_syncs(monkeypatch)
    whole = Syncs(is_synced_at_once=at_once)
    taken_over(n, whole)
    assert whole.count == at_once
    segments = {n.segment(number).stat().st_ino for number in range(3)}
    assert segments & set(synced) == (set() if at_once else segments)
    assert [n.segment(number).read_bytes() for number in range(3)] == had
    assert extents(n.path) == []


def test_a_segment_on_another_file_system_is_synced_by_itself(
    filled: MakeJournaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = filled()
    n.power_cut(3)
    monkeypatch.setattr(journal_replay, "MANY", 2)
    whole = Syncs()
    elsewhere = n.segment(1).stat().st_ino
    whole.elsewhere.add(elsewhere)
    synced = noted_syncs(monkeypatch)
    taken_over(n, whole)
    assert whole.count == 1
    segments = {n.segment(number).stat().st_ino for number in range(3)}
    assert segments & set(synced) == {elsewhere}
