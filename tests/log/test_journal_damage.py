"""A flipped bit in the commit journal: what lies behind it was acknowledged, and is not left out silently."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.ipc.process import FatalError
from mpbroker.log import journal
from tests.log.rig import Rig, ensure
from tests.log.test_journal import Journaled, fill
from tests.log.test_log_dirs import STORAGE_ERROR


@pytest.mark.parametrize("how", ["payload", "head of the record"])
def test_a_damaged_record_is_not_taken_for_a_torn_one(
    rig: Callable[..., Rig], tmp_path: Path, batch: Callable[..., bytearray], how: str
) -> None:
    """Whole ones lie behind it: its round was finished, and what it has was acknowledged."""
    n = Journaled(rig, tmp_path)
    n.boot()
    fill(n, batch, partitions=1)
    had = n.power_cut()
    kept = n.path.read_bytes()
    damaged = bytearray(kept)
    second = journal.RING_AT + journal.BLOCK_BYTES
    damaged[second + (300 if how == "payload" else 2)] ^= 1
    n.path.write_bytes(damaged)
    named = f"{n.path} is damaged at byte {second}: .* may be nowhere else"
    with pytest.raises(FatalError, match=named):
        n.boot()
    assert n.path.read_bytes() == damaged, "nothing is done before somebody has decided"
    n.path.write_bytes(kept)
    n.boot()
    assert n.end_of(n.open(ensure(1))[0]) == 10
    assert n.segment().read_bytes() == had[0]
    n.crash()


def test_a_successor_does_not_go_on_with_a_damaged_journal(
    rig: Callable[..., Rig], tmp_path: Path, batch: Callable[..., bytearray]
) -> None:
    n = Journaled(rig, tmp_path)
    n.boot()
    fill(n, batch, partitions=1)
    n.crash()
    with n.path.open("r+b") as file:
        file.seek(journal.RING_AT + 300)
        file.write(b"flip")
    with pytest.raises(FatalError, match="is damaged at byte 8192"):
        n.succeed()


def test_a_damaged_head_does_not_bring_back_an_earlier_run(
    rig: Callable[..., Rig], tmp_path: Path, batch: Callable[..., bytearray]
) -> None:
    """The other head is of this run, too."""
    n = Journaled(rig, tmp_path)
    n.boot()
    fill(n, batch, partitions=1)
    n.crash()
    n.boot()
    synced = n.segment().stat().st_size
    (target,) = n.open(ensure(1))
    for _ in range(2):
        assert n.produce(target, batch(size=900)) == [0]
    n.crash()
    had = n.segment().read_bytes()
    os.truncate(n.segment(), synced)
    found = journal.JournalFile(n.path)
    newest = found.version & 1
    found.close()
    with n.path.open("r+b") as file:
        file.seek(newest * (journal.RING_AT // 2) + 10)
        file.write(b"flip")
    n.boot()
    assert n.end_of(n.open(ensure(1))[0]) == 12
    assert n.segment().read_bytes() == had
    n.crash()


@pytest.mark.parametrize("at", [-3, 2, 12])
def test_a_flipped_bit_in_the_topic_id_does_not_cost_what_only_the_journal_has(
    rig: Callable[..., Rig], tmp_path: Path, batch: Callable[..., bytearray], at: int
) -> None:
    """The partition stays offline until its file is mended, and the journal is empty by then."""
    n = Journaled(rig, tmp_path)
    n.boot()
    fill(n, batch, partitions=2)
    had = n.power_cut(2)
    path = n.dirs[0] / "t-0" / "partition.metadata"
    kept = path.read_bytes()
    flipped = bytearray(kept)
    flipped[at] ^= 1
    path.write_bytes(flipped)
    n.boot()
    assert [p.error for p in n.open(ensure(2))] == [STORAGE_ERROR, 0]
    path.write_bytes(kept)
    n.boot()
    assert [n.end_of(p) for p in n.open(ensure(2))] == [10, 10]
    assert [n.segment(number).read_bytes() for number in range(2)] == had
    n.crash()
