"""A sync that fails while a partition is opened: what the page cache has of it is never believed again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mpbroker.records.batch import assign_offset_and_epoch
from tests.support.log_node import SEGMENT, STORAGE_ERROR, Node
from tests.support.log_rig import MakeRig, ensure
from tests.support.log_writer import make_batch


def test_it_takes_the_directory_with_it(
    rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it: the next sync would succeed, and a successor serve what may not be on disk."""
    n = Node(rig, tmp_path, 2)
    n.boot()
    targets = n.open(ensure(2))
    assert n.produce(targets[0], make_batch(), 3) == [0, 0, 0]
    n.crash()
    # Appended, and not acknowledged yet.
    more = make_batch()
    assign_offset_and_epoch(more, 3, 0)
    path = n.dirs[1] / "t-0" / SEGMENT
    with path.open("ab") as file:
        file.write(more)
    fsync, failed = os.fsync, []

    def fails_once(fd: int) -> None:
        if not failed and os.fstat(fd).st_ino == path.stat().st_ino:
            failed.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    n.succeed()
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fails_once)
        assert [p.error for p in n.open(ensure(2))] == [STORAGE_ERROR, 0]
    assert failed
    for _ in range(2):
        process = n.succeed()
        assert [log_dir.failed for log_dir in process.manager.dirs] == [False, True]
        assert [p.error for p in n.open(ensure(2))] == [STORAGE_ERROR, 0]
        assert n.end_of(targets[0]) == 3
    # Whoever restarts the broker has looked at the disk.
    n.boot()
    assert [p.error for p in n.open(ensure(2))] == [0, 0]
