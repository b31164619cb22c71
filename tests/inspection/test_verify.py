"""`mpbroker log`, on directories that a broker's log wrote and that somebody damaged."""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.inspection.directory import open_directory
from mpbroker.inspection.findings import Severity
from mpbroker.inspection.partition import check
from mpbroker.log.directories.journal_file import JournalCreation
from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.records.batch import LEADER_EPOCH_AT
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.storage.checkpoints import write_epochs, write_offsets
from mpbroker.storage.directory_layout import check_log_dirs, name_log_dirs
from mpbroker.storage.directory_lock import is_in_use, lock_log_dirs
from mpbroker.storage.index import read_offset_entries
from mpbroker.storage.names import HIGH_WATERMARKS
from tests.support.flipped_bits import flip
from tests.support.inspected_log import BATCHES, RECORDS, segments
from tests.support.inspected_log import log_command as run
from tests.support.log_writer import TOPIC_ID, Writer


def findings(directory: Path) -> list[tuple[Severity, str]]:
    (partition,) = open_directory(directory).partitions
    check(partition)
    return [(one.severity, Path(one.path).suffix) for one in partition.all_findings]


def test_a_whole_directory(directory: Path) -> None:
    result = run("verify", str(directory))
    assert result.exit_code == 0, result.output
    assert f"t-0: {BATCHES * RECORDS} records in {BATCHES} batches" in result.output
    assert f", log start offset 0, log end offset {BATCHES * RECORDS}\n" in result.output
    assert "All records are whole." in result.output
    document = json.loads(run("verify", "--json", str(directory)).output)
    (partition,) = document["directories"][0]["partitions"]
    assert (partition["start_offset"], partition["end_offset"]) == (0, BATCHES * RECORDS)
    assert partition["segments"] == len(segments(directory)) > 2
    assert document["findings"] == []


def test_every_flipped_bit_is_found(directory: Path) -> None:
    """In any byte of a segment: it is some batch's, and no other batch suffers."""
    path = segments(directory)[1]
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        (partition,) = open_directory(directory).partitions
        check(partition)
        assert Severity.DAMAGE in {one.severity for one in partition.all_findings}, at
        assert sum(segment.batches for segment in partition.segments) >= BATCHES - 1, at
    path.write_bytes(whole)
    assert findings(directory) == []


def test_pages_that_the_disk_cannot_give_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a map of the file they would kill the process. What lies before and behind them is found."""
    writer = Writer(PartitionLog.create(tmp_path / "t-0", "t", 0, TOPIC_ID, resolve(BrokerConfig(), {})))
    for _ in range(BATCHES):
        writer.append(size=mmap.PAGESIZE)
    writer.log.close_cleanly()
    (path,) = segments(tmp_path)
    file, bad, real = path.stat().st_ino, 7 * mmap.PAGESIZE, os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int, *flags: int) -> int:
        if os.fstat(fd).st_ino == file and offset <= bad < offset + sum(map(len, buffers)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset, *flags)

    with monkeypatch.context() as disk:
        disk.setattr(os, "preadv", preadv)
        result = run("verify", str(tmp_path / "t-0"))
    assert result.exit_code == 1, result.output
    # One begins in that page; of the one before it there were nothing but zeros anyway.
    assert f"{BATCHES - 1} records in {BATCHES - 1} batches" in result.output
    assert f"byte {bad:,}: bytes that cannot be read, in 1 of its pages: Input/output error" in result.output
    assert run("verify", str(tmp_path / "t-0")).exit_code == 0


def test_a_wrong_leader_epoch_is_found_and_so_is_a_wrong_checkpoint(directory: Path) -> None:
    path = segments(directory)[1]
    whole = bytearray(path.read_bytes())
    for bit in range(32):
        damaged = whole.copy()
        damaged[LEADER_EPOCH_AT + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert findings(directory) == [(Severity.DAMAGE, ".log")], bit
    path.write_bytes(whole)
    write_epochs(directory / "t-0", [(4, 0)])
    assert findings(directory) == [(Severity.DERIVED, "")]


def test_a_wrong_leader_epoch_is_found_where_the_log_starts_within_the_batch(directory: Path) -> None:
    path = segments(directory)[0]
    write_epochs(directory / "t-0", [(0, 1)])
    assert findings(directory) == []
    with path.open("r+b") as file:
        file.seek(LEADER_EPOCH_AT + 3)
        file.write(b"\4")
    assert findings(directory) == [(Severity.DAMAGE, ".log")]


def test_damage_says_where_and_where_it_ends(directory: Path) -> None:
    path = segments(directory)[0]
    length = 12 + struct.unpack(">i", path.read_bytes()[8:12])[0]
    with path.open("r+b") as file:
        file.seek(length + 70)
        file.write(b"\xff\xff")
    result = run("verify", str(directory))
    assert result.exit_code == 1
    assert f"damage: {path} at byte {length:,} (offset {RECORDS}): the CRC does not match; " in result.output
    assert f"whole batches continue at byte {2 * length:,}" in result.output
    assert f"To keep the whole batches: mpbroker log repair {directory / 't-0'}\n" in result.output


def test_an_index_is_not_blamed_for_a_damaged_batch(directory: Path) -> None:
    """But for what it says of others."""
    index = next(path for path in segments(directory, ".index") if path.stat().st_size >= 16)
    path = index.with_suffix(".log")
    (_, position), (_, other) = read_offset_entries(index, int(path.stem))[:2]
    flip(path, position + 70)
    assert findings(directory) == [(Severity.DAMAGE, ".log")]
    with index.open("r+b") as file:
        file.seek(12)
        file.write(struct.pack(">i", other - 1))
    assert findings(directory) == [(Severity.DAMAGE, ".log"), (Severity.DERIVED, ".index")]


def test_empty_partitions_are_one_line(directory: Path) -> None:
    topic = resolve(BrokerConfig(), {})
    for number in (10, 9, 2, 1):
        log = PartitionLog.create(directory / f"t-{number}", "t", number, TOPIC_ID, topic)
        if number % 2 == 0:
            Writer(log).append(1, timestamp=0, size=1)
        log.close_cleanly()
    lines = run("verify", str(directory)).output.splitlines()[1:-1]
    assert [line.split(":")[0] for line in lines] == ["  t-0", "  t-2", "  t-10", "  without records"]
    assert lines[-1] == "  without records: 2 of t"


def test_a_torn_end_is_no_damage_unless_it_was_durable(directory: Path) -> None:
    path = segments(directory)[-1]
    os.truncate(path, path.stat().st_size - 10)
    assert (Severity.TORN, ".log") in findings(directory)
    assert run("verify", str(directory)).exit_code == 1
    write_offsets(directory / HIGH_WATERMARKS, {("t", 0): (BATCHES - 1) * RECORDS})
    result = run("verify", str(directory))
    assert result.exit_code == 0
    assert "The next start cuts off torn ends" in result.output


def test_a_segment_in_the_middle_must_be_whole(directory: Path) -> None:
    path = segments(directory)[0]
    os.truncate(path, path.stat().st_size - 10)
    assert (Severity.DAMAGE, ".log") in findings(directory)


def _cut_index(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("harm", [_cut_index, lambda path: path.write_bytes(b"\x7f" * path.stat().st_size)])
def test_what_is_derived_is_told_apart(directory: Path, suffix: str, harm: Callable[[Path], object]) -> None:
    path = next(path for path in segments(directory, suffix) if path.stat().st_size > 20)
    harm(path)
    assert findings(directory) == [(Severity.DERIVED, suffix)]
    assert run("verify", str(directory)).exit_code == 0


def test_a_partition_has_one_home(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    config = BrokerConfig(log_dirs=(str(other),))
    name_log_dirs(config, check_log_dirs(config))
    topic = resolve(BrokerConfig(), {})
    Writer(PartitionLog.create(other / "t-0", "t", 0, TOPIC_ID, topic)).log.close_cleanly()
    result = run("verify", str(directory), str(other))
    assert result.exit_code == 1
    assert f"damage: {other / 't-0'}: the partition is in {directory / 't-0'}, too" in result.output


def test_whether_a_broker_is_there(directory: Path) -> None:
    assert not is_in_use(directory)
    config = BrokerConfig(log_dirs=(str(directory),))
    with open(lock_log_dirs(config)[0], closefd=True):
        assert is_in_use(directory)
        assert "in use by a broker" in run("verify", str(directory)).output
    assert not is_in_use(directory)


def test_a_dump_names_everything(directory: Path) -> None:
    partition = directory / "t-0"
    lines = run("dump", "--records", "--json", str(partition)).output.splitlines()
    entries = [json.loads(line) for line in lines]
    assert [e["base_offset"] for e in entries if "base_offset" in e] == list(range(0, 90, 3))
    assert [e["offset"] for e in entries if "headers" in e] == list(range(90))
    assert {Path(e["file"]).suffix or Path(e["file"]).name for e in entries} == {
        ".log",
        ".index",
        ".timeindex",
        ".snapshot",
        "leader-epoch-checkpoint",
        ".metadata",
    }
    (producer,) = [e for e in entries if e["file"] == str(segments(directory, ".snapshot")[-1])]
    assert (producer["producer_id"], producer["last_offset"]) == (7, 89)
    text = run("dump", str(directory / HIGH_WATERMARKS)).output
    assert text.split("\n")[1] == "  topic: t  partition: 0  offset: 90"


def test_what_is_dumped_does_not_drive_the_terminal(directory: Path) -> None:
    value = "\x1b[2J\x07\n\u009bä\\".encode()
    path = directory / "odd-0" / "00000000000000000000.log"
    path.parent.mkdir()
    path.write_bytes(build_batch([NewRecord(value=value, key=b"k\xff", timestamp=0)]))
    result = run("dump", "--records", str(path))
    assert result.exit_code == 0, result.output
    *_, record = result.output.splitlines()
    assert record.split("  ")[3:5] == ["key: k\\xff", "value: \\x1b[2J\\x07\\n\\x9bä\\"]


def test_a_journal_is_dumped(directory: Path) -> None:
    making = JournalCreation(directory / "mpbroker.journal", 1 << 16)
    while (journal := making.step()) is None:
        pass
    journal.close()
    result = run("dump", str(directory / "mpbroker.journal"))
    assert (result.exit_code, result.output) == (0, f"{directory / 'mpbroker.journal'}\n")
    (directory / "mpbroker.journal").write_bytes(b"x" * 9000)
    assert "is not a commit journal" in str(run("dump", str(directory / "mpbroker.journal")).exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("verify", "{}/.."), "is not the directory of a partition"),
        (("verify", "{}/none"), "/none is not there. Name a directory of log.dirs"),
        (("verify", "{}/.lock"), "/.lock is no directory"),
        (("dump", "{}/none"), "no such file"),
        (("dump", "{}/.lock"), "none of the files that this command knows"),
        (("dump", "{}"), "has no segments"),
    ],
)
def test_what_is_no_log(directory: Path, arguments: tuple[str, ...], said: str) -> None:
    (directory / ".lock").touch()
    result = run(*(one.format(directory) for one in arguments))
    assert said in str(result.exception)
