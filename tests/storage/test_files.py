"""Names, checkpoints, identity, index entries and snapshots, byte by byte as Kafka writes them."""

from __future__ import annotations

import errno
import fcntl
import os
from functools import partial
from pathlib import Path

import crc32c
import msgspec
import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.ipc.process import FatalError
from mpbroker.protocol.uuids import uuid_bytes, uuid_text
from mpbroker.storage import checkpoints, directory_layout, directory_lock, names
from mpbroker.storage.index import read_offset_entries, read_time_entries
from mpbroker.storage.producer_state import Producers, SnapshotCorrupt
from tests.support.full_disk import files_take

A3 = bytes.fromhex(
    "000191d5d7490000000100000000000003e80003000000040000000000000009000000040000018bcfe5680000000007ffffffffffffffff"
)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("a-0", ("a", 0, "")),
        ("a-b-12", ("a-b", 12, "")),
        ("a.b-3", ("a.b", 3, "")),
        ("a.b-3.0123456789abcdef0123456789abcdef-delete", ("a.b", 3, "-delete")),
        ("a-3.0123456789abcdef0123456789abcdef-stray", ("a", 3, "-stray")),
    ],
)
def test_partition_names(name: str, parsed: tuple[str, int, str]) -> None:
    found = names.parse_partition(name)
    assert (found.topic, found.partition, found.suffix) == parsed
    assert names.is_live_partition(name) == (not found.suffix)


@pytest.mark.parametrize("name", ["a", "-1", "a-", "a-x", "a--", "photos"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(names.NotAPartition):
        names.parse_partition(name)
    assert not names.is_live_partition(name)


def test_renamed_directories_fit_a_file_system() -> None:
    name = names.renamed("t" * 249, 7, "0" * 32, names.DELETE_SUFFIX)
    assert len(name) == 255
    assert names.parse_partition(name).partition == 7


def test_segment_names() -> None:
    assert names.segment_name(1000, ".index") == "00000000000000001000.index"
    assert names.parse_segment("00000000000000001000.index", ".index") == 1000
    assert names.parse_segment("00000000000000001000.index", ".log") is None
    assert names.parse_segment("1000.log") is None


def test_text_files_are_kafkas(tmp_path: Path) -> None:
    checkpoints.write_epochs(tmp_path, [(0, 0), (4, 1200)])
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n0 0\n4 1200\n"
    assert checkpoints.read_epochs(tmp_path) == [(0, 0), (4, 1200)]
    path = tmp_path / names.HIGH_WATERMARKS
    checkpoints.write_offsets(path, {("t", 0): 1200})
    checksum = crc32c.crc32c(b"t 0 1200")
    assert path.read_bytes() == b"0\n2\nmpbroker:crc 0 %d\nt 0 1200\n" % checksum
    assert checkpoints.read_offsets(path) == {("t", 0): 1200}
    path.write_bytes(b"0\n1\nt 0 1200\n")
    assert checkpoints.read_offsets(path) == {("t", 0): 1200}
    checkpoints.write_topic_id(tmp_path, bytes(15) + b"\x2a")
    assert (tmp_path / "partition.metadata").read_bytes() == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAKg"
    assert checkpoints.read_topic_id(tmp_path) == bytes(15) + b"\x2a"


@pytest.mark.parametrize("text", ["1\n0\n", "0\n2\nt 0 1\n", "0\n1\nt 0\n", "0\n1\nt x 1\n", "0"])
def test_malformed_checkpoints_are_said_to_be(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c"
    path.write_text(text)
    with pytest.raises(checkpoints.CheckpointCorrupt, match="c "):
        checkpoints.read_offsets(path)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_makes_no_other_offset(tmp_path: Path, bit: int) -> None:
    path, offsets = tmp_path / "c", {("topic", 0): 1200, ("other", 12): 7}
    checkpoints.write_offsets(path, offsets)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        try:
            found = checkpoints.read_offsets(path)
        except checkpoints.CheckpointCorrupt:
            continue
        # It was in the name of the checksum.
        assert found.items() >= offsets.items()


def test_an_id_with_a_flipped_bit_is_none_of_another_topic() -> None:
    one = bytes(range(100, 116))
    text = uuid_text(one)
    for at in range(22):
        for bit in range(8):
            letter = chr(ord(text[at]) ^ 1 << bit)
            if letter.isascii() and (letter.isalnum() or letter in "-_") and at < 21:
                assert checkpoints.is_flipped(uuid_bytes(text[:at] + letter + text[at + 1 :]), one)
    assert not checkpoints.is_flipped(bytes(16), one)
    assert not checkpoints.is_flipped(one, one)


def test_empty_and_missing_checkpoints_have_no_entries(tmp_path: Path) -> None:
    assert checkpoints.read_offsets(tmp_path / "none") == {}
    (tmp_path / "empty").touch()
    assert checkpoints.read_offsets(tmp_path / "empty") == {}


def config_of(directory: Path, node_id: int = 1) -> BrokerConfig:
    return msgspec.structs.replace(BrokerConfig(), log_dirs=(str(directory),), node_id=node_id)


def prepare(config: BrokerConfig) -> directory_layout.Identity:
    identity = directory_layout.check_log_dirs(config)
    directory_layout.name_log_dirs(config, identity)
    return identity


def test_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    first = prepare(config_of(tmp_path))
    assert len(uuid_bytes(first.cluster_id)) == 16
    assert prepare(config_of(tmp_path)) == first
    with pytest.raises(FatalError, match=r"belongs to node 1, this broker is node 2. Set node.id=1"):
        prepare(config_of(tmp_path, node_id=2))


def test_foreign_directories_are_refused(tmp_path: Path) -> None:
    (tmp_path / "family.jpg").touch()
    with pytest.raises(FatalError, match=r"not empty \(it contains family.jpg\)"):
        prepare(config_of(tmp_path))
    (tmp_path / "family.jpg").unlink()
    prepare(config_of(tmp_path))
    (tmp_path / "photos").mkdir()
    with pytest.raises(FatalError, match="photos is not the directory of a partition"):
        prepare(config_of(tmp_path))


def test_links_count_as_what_they_lead_to(tmp_path: Path) -> None:
    """Check that a link to a partition's directory counts, and one to nothing or to itself does not."""
    elsewhere, log_dir = tmp_path / "elsewhere", tmp_path / "data"
    elsewhere.mkdir()
    log_dir.mkdir()
    (log_dir / "t-0").mkdir()
    (log_dir / "t-1").symlink_to(elsewhere)
    (log_dir / "t-2").symlink_to(tmp_path / "nowhere")
    (log_dir / "t-3").symlink_to(log_dir / "t-3")
    (log_dir / "meta").touch()
    assert sorted(directory_layout.directories_in(log_dir)) == ["t-0", "t-1"]


def test_a_checkpoint_may_be_large_and_of_another_system(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    wanted = {(f"topic{number % 7}", number): 3 * number for number in range(5000)}
    checkpoints.write_offsets(path, wanted)
    assert path.stat().st_size > 64 << 10
    assert dict(checkpoints.read_offsets(path)) == wanted
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert dict(checkpoints.read_offsets(path)) == wanted
    checkpoints.write_offsets(path, {})
    assert path.read_bytes() == b"0\n0\n"
    assert dict(checkpoints.read_offsets(path)) == {}


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        prepare(config_of(tmp_path / name))
    both = msgspec.structs.replace(BrokerConfig(), log_dirs=(str(tmp_path / "a"), str(tmp_path / "b")))
    with pytest.raises(FatalError, match="different clusters"):
        prepare(both)


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    """Check it for a disk that is not mounted, and for one that was left out of log.dirs by mistake."""
    one, other, moved = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    one.mkdir()
    other.mkdir()
    config_one = config_of(one)
    both = msgspec.structs.replace(config_one, log_dirs=(str(one), str(other)))
    prepare(config_one)
    assert not (one / "mpbroker.dirs").exists()
    first = prepare(both)
    missing = rf"log.dirs: {other} \(directory.id .{{22}}\) is missing"
    with pytest.raises(FatalError, match=missing):
        prepare(config_one)
    other.rename(moved)
    other.mkdir()
    with pytest.raises(FatalError, match=missing):
        prepare(both)
    # The mount point got no identity: the disk may come back.
    assert list(other.iterdir()) == []
    both_moved = msgspec.structs.replace(config_one, log_dirs=(str(one), str(moved)))
    assert prepare(both_moved) == first
    assert (one / "mpbroker.dirs").read_text() == (moved / "mpbroker.dirs").read_text()
    assert [line.split()[1] for line in (one / "mpbroker.dirs").read_text().splitlines()] == [
        str(one),
        str(moved),
    ]
    # Gone for good, as an operator says it.
    listed = (one / "mpbroker.dirs").read_text().splitlines(keepends=True)
    (one / "mpbroker.dirs").write_text(listed[0])
    prepare(config_one)
    assert prepare(config_one) == first
    (one / "mpbroker.dirs").write_text("nonsense\n")
    with pytest.raises(FatalError, match=r"cannot read .*mpbroker.dirs"):
        prepare(config_one)


def test_second_broker_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_lock, "LOCK_PATIENCE_S", 0.0)
    held = directory_lock.lock_log_dirs(config_of(tmp_path))
    assert len(held) == 1
    with pytest.raises(FatalError, match=f"{tmp_path} is locked by another broker. Stop that broker"):
        directory_lock.lock_log_dirs(config_of(tmp_path))


def test_who_follows_a_broker_that_was_killed_waits_for_the_last_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (held,) = directory_lock.lock_log_dirs(config_of(tmp_path))
    waits: list[float] = []

    def one_ends(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            os.close(held)

    monkeypatch.setattr(directory_lock.time, "sleep", one_ends)
    for fd in directory_lock.lock_log_dirs(config_of(tmp_path)):
        os.close(fd)
    assert len(waits) == 2


def test_locks_of_a_start_that_is_refused_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_lock, "LOCK_PATIENCE_S", 0.0)
    old, new, taken = tmp_path / "old", tmp_path / "far" / "new", tmp_path / "taken"
    old.mkdir()
    three = msgspec.structs.replace(BrokerConfig(), log_dirs=(str(old), str(new), str(taken)))
    held = directory_lock.LogDirLocks(config_of(taken))
    with pytest.raises(FatalError, match=f"{taken} is locked by another broker"):
        directory_lock.LogDirLocks(three)
    assert list(old.iterdir()) == []
    assert not new.parent.exists()
    held.undo()
    assert not taken.exists()
    directory_lock.LogDirLocks(three).undo()
    assert sorted(tmp_path.iterdir()) == [old]


def test_of_directories_within_what_was_made_nothing_is_left(tmp_path: Path) -> None:
    two = msgspec.structs.replace(
        BrokerConfig(), log_dirs=(str(tmp_path / "data" / "a"), str(tmp_path / "data" / "b"))
    )
    directory_lock.LogDirLocks(two).undo()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_at_the_first_start_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    config = config_of(tmp_path / "data")
    locks = directory_lock.LogDirLocks(config)
    with files_take(10), pytest.raises(FatalError, match=r"meta\.properties: File too large.*make room"):
        prepare(config)
    locks.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_for_which_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(FatalError, match=r"No space left on device\. Make room"):
        directory_lock.LogDirLocks(config_of(tmp_path / "data"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_open", [True, False])
def test_what_could_not_be_written_whole_takes_no_room(tmp_path: Path, is_open: bool) -> None:
    (tmp_path / "file").write_bytes(b"before")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        write = (
            partial(checkpoints.write_whole_at, fd, "file")
            if is_open
            else partial(checkpoints.write_whole, tmp_path / "file")
        )
        with files_take(10), pytest.raises(OSError, match="File too large"):
            write(bytes(11))
    finally:
        os.close(fd)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


def test_a_lock_that_was_taken_away_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a new file is locked if a refused start has just removed the one that was opened."""
    refused = directory_lock.LogDirLocks(config_of(tmp_path / "data"))
    flock = fcntl.flock

    def flock_late(fd: int, how: int) -> None:
        refused.undo()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    (fd,) = directory_lock.lock_log_dirs(config_of(tmp_path / "data"))
    assert os.path.samestat(os.fstat(fd), (tmp_path / "data" / ".lock").stat())
    os.close(fd)


def test_clean_marker_is_taken_once(tmp_path: Path) -> None:
    assert not directory_layout.take_clean_shutdown(tmp_path)
    directory_layout.write_clean_shutdown(tmp_path)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    assert directory_layout.take_clean_shutdown(tmp_path)
    assert not directory_layout.take_clean_shutdown(tmp_path)


def test_producer_snapshot_is_kafkas() -> None:
    producers = Producers()
    producers.load(A3)
    assert producers.snapshot() == A3
    assert producers.entries() == [(1000, 3, 7, -1, [(4, 9, 4, 1_700_000_000_000)])]


def test_damaged_snapshots_are_refused() -> None:
    for at in range(len(A3)):
        broken = bytearray(A3)
        broken[at] ^= 1
        with pytest.raises(SnapshotCorrupt):
            Producers().load(bytes(broken))
        with pytest.raises(SnapshotCorrupt):
            Producers().load(A3[:at])


def test_index_entries_stand_where_kafka_puts_them(writer) -> None:  # type: ignore[no-untyped-def]
    """Check batches of 1024 bytes with interval 4096: 6, 11 and 16 have entries, as 4096 is not above it."""
    w = writer()
    value_bytes = next(size for size in range(900, 1024) if len_of(size) == 1024)
    for i in range(16):
        w.append(size=value_bytes, timestamp=1000 + i)
    directory = w.log.directory
    assert read_offset_entries(directory / names.segment_name(0, ".index"), 0) == [
        (5, 5120),
        (10, 10240),
        (15, 15360),
    ]
    assert read_time_entries(directory / names.segment_name(0, ".timeindex"), 0) == [
        (1005, 5),
        (1010, 10),
        (1015, 15),
    ]
    w.log.close_cleanly()


def len_of(size: int) -> int:
    from mpbroker.records.builder import build_batch
    from mpbroker.records.record import NewRecord

    return len(build_batch([NewRecord(value=bytes(size), timestamp=1)]))
