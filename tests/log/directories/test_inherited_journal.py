"""What a predecessor's commit journal names, where it cannot be synced or must not be written back."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from mpbroker.ipc.process import FatalError
from mpbroker.log.directories import journal_replay
from mpbroker.log.directories.log_directory import LogDirectory
from mpbroker.log.io.io_thread import THREAD_NAME
from mpbroker.storage import names
from tests.support.full_disk import failing_with
from tests.support.log_node import Journaled, MakeJournaled, wait_for_io
from tests.support.log_rig import ensure


@pytest.fixture(name="n")
def _n(filled: MakeJournaled) -> Journaled:
    return filled()


def test_what_passes_is_tried_again_and_no_recovery_point_moves(
    n: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(journal_replay, "read_whole", failing_with(errno.EMFILE))
        process = n.succeed()
        wait_for_io(process)
    process.work(0)
    (log_dir,) = process.manager.dirs
    assert log_dir.journal.must_sync
    n.open(ensure(3))
    log_dir.checkpoint(names.RECOVERY_POINTS, {("t", 0): 10}, process.io_thread)
    wait_for_io(process)
    assert not any(log_dir.on_disk[names.RECOVERY_POINTS].values())
    n.checkpoint()
    process.manager.journals.use()
    assert not log_dir.journal.is_inheriting
    log_dir.checkpoint(names.RECOVERY_POINTS, {("t", 0): 10}, process.io_thread)
    wait_for_io(process)
    assert log_dir.on_disk[names.RECOVERY_POINTS]["t", 0] == 10


def test_a_sync_that_failed_is_not_tried_again(n: Journaled, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def refuse(fd: int) -> None:
        if threading.current_thread().name == THREAD_NAME:
            raise OSError(errno.ENOSPC, "no room")
        real(fd)

    with monkeypatch.context() as patched:
        patched.setattr(journal_replay.os, "fsync", refuse)
        process = n.succeed()
        wait_for_io(process)
    with pytest.raises(FatalError, match="Input/output error"):
        process.work(0)
    assert process.manager.dirs[0].failed


@pytest.mark.parametrize("content", [b"0\n2\nt 0 1\n", b"\xff\xfe", None])
def test_without_recovery_points_all_is_written_back_but_what_was_compacted(
    n: Journaled, content: bytes | None
) -> None:
    """Check it if the checkpoint cannot be read, and if it is gone."""
    n.checkpoint()
    had = n.power_cut(3)
    replace(n.dirs[0] / names.RECOVERY_POINTS, content)
    (n.dirs[0] / names.CLEANER_OFFSETS).write_text("0\n1\nt 1 10\n")
    log_dir = LogDirectory(0, n.dirs[0], group=True, failed=False)
    log_dir.take_over(str)
    assert [n.segment(number).read_bytes() for number in range(3)] == [had[0], b"", had[2]]
    assert log_dir.journal.file is not None
    log_dir.journal.file.close()


@pytest.mark.parametrize("content", [b"0\n2\nt 0 1\n", b"\xff\xfe", None])
def test_nothing_is_written_back_without_knowing_what_was_compacted(
    n: Journaled, content: bytes | None
) -> None:
    n.checkpoint()
    had = n.power_cut(3)
    cleaned = n.dirs[0] / names.CLEANER_OFFSETS
    cleaned.write_bytes(b"\xff")
    replace(n.dirs[0] / names.RECOVERY_POINTS, content)
    with pytest.raises(FatalError, match=r"cannot be read.*Restore a file"):
        n.boot()
    assert n.segment().read_bytes() == b""
    cleaned.unlink()
    n.boot()
    assert [n.segment(number).read_bytes() for number in range(3)] == had


def replace(path: Path, content: bytes | None) -> None:
    """None: it is gone."""
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
