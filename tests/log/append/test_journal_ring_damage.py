"""What is wrong with the journal, or with what it is held against: what was acknowledged is not left out
silently.
"""

from __future__ import annotations

import os

import pytest

from mpbroker.ipc.process import FatalError
from mpbroker.storage import journal
from tests.support.log_node import STORAGE_ERROR, MakeJournaled, flip_bit
from tests.support.log_rig import ensure
from tests.support.log_writer import make_batch


@pytest.mark.parametrize("how", ["payload", "head of the record"])
def test_a_damaged_record_is_not_taken_for_a_torn_one(filled: MakeJournaled, how: str) -> None:
    """Check it if whole records follow: then its round was finished and acknowledged."""
    n = filled(1)
    had = n.power_cut()
    kept = n.path.read_bytes()
    second = journal.RING_AT + journal.BLOCK_BYTES
    flip_bit(n.path, second + (300 if how == "payload" else 2))
    damaged = n.path.read_bytes()
    named = f"{n.path} is damaged at byte {second}: .* may be nowhere else"
    with pytest.raises(FatalError, match=named):
        n.boot()
    assert n.path.read_bytes() == damaged, "nothing is done before somebody has decided"
    n.path.write_bytes(kept)
    n.boot()
    assert n.end_of(n.open(ensure(1))[0]) == 10
    assert n.segment().read_bytes() == had[0]


def test_a_successor_does_not_go_on_with_a_damaged_journal(filled: MakeJournaled) -> None:
    n = filled(1)
    n.crash()
    flip_bit(n.path, journal.RING_AT + 300)
    with pytest.raises(FatalError, match="is damaged at byte 8192"):
        n.succeed()


def test_a_damaged_head_does_not_bring_back_an_earlier_run(filled: MakeJournaled) -> None:
    """Check that the other head is of this run, too."""
    n = filled(1)
    n.crash()
    n.boot()
    synced = n.segment().stat().st_size
    (target,) = n.open(ensure(1))
    for _ in range(2):
        assert n.produce(target, make_batch(size=900)) == [0]
    n.crash()
    had = n.segment().read_bytes()
    os.truncate(n.segment(), synced)
    found = journal.JournalFile(n.path)
    newest = found.version & 1
    found.close()
    flip_bit(n.path, newest * (journal.RING_AT // 2) + 10)
    n.boot()
    assert n.end_of(n.open(ensure(1))[0]) == 12
    assert n.segment().read_bytes() == had


@pytest.mark.parametrize("at", [-3, 2, 12])
def test_a_flipped_bit_in_the_topic_id_does_not_cost_what_only_the_journal_has(
    filled: MakeJournaled, at: int
) -> None:
    """Check that the records are there when the file is repaired, though the journal is empty by then."""
    n = filled(2)
    had = n.power_cut(2)
    path = n.dirs[0] / "t-0" / "partition.metadata"
    kept = path.read_bytes()
    flip_bit(path, at)
    n.boot()
    assert [p.error for p in n.open(ensure(2))] == [STORAGE_ERROR, 0]
    path.write_bytes(kept)
    n.boot()
    assert [n.end_of(p) for p in n.open(ensure(2))] == [10, 10]
    assert [n.segment(number).read_bytes() for number in range(2)] == had


@pytest.mark.parametrize("text", ["0\n1\n4 0\n", "1\n1\n0 0\n", "0\n1\n0 p\n", "\xff"])
def test_a_flipped_bit_in_the_epochs_does_not_cost_what_only_the_journal_has(
    filled: MakeJournaled, text: str
) -> None:
    """It reads as if another broker had written there since, or cannot be read; the machine lost the rest."""
    n = filled(1)
    (had,) = n.power_cut()
    n.segment().write_bytes(had[: len(make_batch(1))])
    (n.dirs[0] / "t-0" / "leader-epoch-checkpoint").write_bytes(text.encode("latin-1"))
    n.boot()
    assert n.segment().read_bytes() == had
    (target,) = n.open(ensure(1))
    assert (target.error, n.end_of(target)) == (0, 10)
    assert (n.dirs[0] / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_what_the_page_cache_has_and_the_device_does_not_comes_back(
    filled: MakeJournaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it after a failed sync of the segment and a restart of the broker alone."""
    n = filled()
    n.crash()
    had = [n.segment(number).read_bytes() for number in range(3)]
    device = {n.segment(number).stat().st_ino: had[number][:1000] for number in range(3)}
    advise = os.posix_fadvise

    def drop(fd: int, position: int, count: int, advice: int) -> None:
        content = device.pop(os.fstat(fd).st_ino, None) if advice == os.POSIX_FADV_DONTNEED else None
        if content is not None:
            assert (position, count) == (0, 0)
            os.pwrite(fd, bytes(os.fstat(fd).st_size - len(content)), len(content))
        advise(fd, position, count, advice)

    with monkeypatch.context() as kernel:
        kernel.setattr(os, "posix_fadvise", drop)
        n.boot()
    assert device == {}
    assert [n.segment(number).read_bytes() for number in range(3)] == had
