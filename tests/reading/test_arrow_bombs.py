"""Batches of a few bytes that unpack to very many: readers hold one of them at a time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import mpbroker
from mpbroker.reading.columns import MAX_ROWS
from mpbroker.records.arrow_batches import arrow_batches
from mpbroker.records.compression import Codec
from mpbroker.records.record import NewRecord
from tests.support.programs import ran
from tests.support.spark_logs import PartitionWriter, checkpoint, new_log_dir

ROOT = Path(__file__).parents[2]
BOMBS = 32
BOMB_BYTES = 24 << 20
# The program, its libraries, and some copies of one bomb; all of them at once take more than 900 MiB.
PEAK_BYTES_MAX = 600 << 20

PROGRAM = """
import sys
import pyarrow.parquet
from mpbroker.cli.entry import main
from mpbroker.reading.arrow import read

log_dir, to = sys.argv[1:]
if to == "read":
    assert sum(batch.nbytes for batch in read("t", log_dir=log_dir)) > 32 * (24 << 20)
else:
    sys.argv = ["mpbroker", "consume", "t", "--log-dirs", log_dir, "--to", f"{log_dir}/{to}"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
# The most that this process has used; getrusage counts that of the one that forked it, too.
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(peak)
"""


@pytest.mark.process
@pytest.mark.parametrize("to", ["read", "out.parquet", "out.arrow"])
def test_readers_hold_one_bomb_at_a_time(tmp_path: Path, to: str) -> None:
    log_dir = new_log_dir(tmp_path / "log")
    writer = PartitionWriter(log_dir, "t")
    for _ in range(BOMBS):
        writer.append([NewRecord(bytes(BOMB_BYTES), timestamp=1)], codec=Codec.ZSTD)
    assert writer.position < 1 << 20
    checkpoint(log_dir, {("t", 0): writer.next_offset})
    done = ran([sys.executable, "-c", PROGRAM, str(log_dir), to], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout.split()[-1]) * 1024
    assert peak < PEAK_BYTES_MAX


def test_unpacked_bytes_bound_what_is_decoded_at_once(tmp_path: Path) -> None:
    """By 16 times the bound of stored bytes, and the last batch that is taken."""
    writer = PartitionWriter(new_log_dir(tmp_path / "log"), "t")
    for _ in range(10):
        writer.append([NewRecord(bytes(1 << 20), timestamp=1)], codec=Codec.ZSTD)
    (path,) = writer.directory.glob("*.log")
    found = arrow_batches(path.read_bytes(), max_bytes=1 << 18)
    assert [batch["offset"].to_pylist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_batch_of_very_many_records_is_handed_out_in_parts(tmp_path: Path) -> None:
    log_dir = new_log_dir(tmp_path / "log")
    writer = PartitionWriter(log_dir, "t")
    count = 2 * MAX_ROWS + 1
    writer.append([NewRecord(b"", timestamp=1, headers=(("h", b""),))] * count, codec=Codec.ZSTD)
    checkpoint(log_dir, {("t", 0): writer.next_offset})
    found = list(mpbroker.read("t", log_dir=log_dir, options={"includeHeaders": True}))
    assert [batch.num_rows for batch in found] == [MAX_ROWS, MAX_ROWS, 1]
    assert [offset for batch in found for offset in batch["offset"].to_pylist()] == list(range(count))
    for batch in found:
        batch.validate(full=True)
        assert set(batch["topic"].to_pylist()) == {"t"}
        assert batch["headers"][-1].as_py() == [{"key": "h", "value": b""}]
