"""Which files of a partition are read, and that a directory that is missing is not taken for an empty log."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.ipc.table import PAYLOAD_BYTES, Partition, unpack_partition
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.storage.segments import batches_below

BATCH = bytes(build_batch([NewRecord(b"value", b"key", 0)]))


def durable_end() -> Partition:
    empty = unpack_partition(bytes(PAYLOAD_BYTES))
    return empty._replace(high_watermark=1, high_watermark_position=len(BATCH))


def test_a_file_that_is_no_segment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / f"{0:020}.log").write_bytes(BATCH)
    (tmp_path / "notes.log").write_bytes(b"what an operator wrote")
    assert [batch.last_offset for batch in batches_below(tmp_path, durable_end())] == [0]


def test_a_missing_directory_is_no_empty_log(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(batches_below(tmp_path / "gone-0", durable_end()))
