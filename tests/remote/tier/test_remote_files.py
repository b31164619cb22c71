"""The file of a partition beside a log process that opens the partition at the same moment."""

from __future__ import annotations

from pathlib import Path

from mpbroker.log.partition.partition_log import remove_leftovers
from mpbroker.storage.names import LEADER_EPOCHS, REMOTE_SEGMENTS


def test_a_file_that_is_being_written_is_no_leftover(tmp_path: Path) -> None:
    """The log process would find it gone, and take that for a failure of the disk."""
    writing, left = (tmp_path / f"{name}.tmp" for name in (REMOTE_SEGMENTS, LEADER_EPOCHS))
    for path in (writing, left):
        path.touch()
    remove_leftovers(tmp_path)
    assert (writing.exists(), left.exists()) == (True, False)
