"""The space of deleted files is free soon: nobody keeps open what has no name any more.

An operator whose disk is full deletes a topic and looks at `df`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from mpbroker.handlers.fetch.partition_readers import LOOKED_AT_ONCE, Readers
from mpbroker.handlers.hot_path.fetch_positions import FetchPositions
from mpbroker.ipc.table import Partition
from mpbroker.records.batch import assign_offset_and_epoch
from mpbroker.records.builder import build_batch
from mpbroker.records.record import NewRecord
from mpbroker.storage.reader import Bound
from ops.bench import frames
from ops.bench.brokers import Mpbroker
from tests.support.client_tools import eventually
from tests.support.handler_logs import learn

SEGMENT = f"{0:020d}"


def deleted_files(pid: int | str, below: Path) -> list[str]:
    """Return the files below a directory that a process has open and that have no name any more."""
    found = []
    for descriptor in (Path("/proc") / str(pid) / "fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(str(below)) and target.endswith("(deleted)"):
            found.append(target)
    return found


def partition_of(number: int, log_dir: Path) -> Partition:
    """A partition with one batch in one segment."""
    directory = log_dir / f"t-{number}"
    directory.mkdir()
    batch = build_batch([NewRecord(b"k", b"v", -1)])
    assign_offset_and_epoch(batch, 0, 0)
    (directory / f"{SEGMENT}.log").write_bytes(batch)
    (directory / f"{SEGMENT}.index").touch()
    size = len(batch)
    return Partition(bytes(16), number, 1, 1, 0, 0, 0, 0, 1, 0, size, 1, 0, size, 1)


def read(readers: Readers, partition: Partition) -> None:
    size = partition.high_watermark_position
    piece = readers.get("t", partition).fetch_slice(0, size, Bound(1, 0, size))
    assert piece is not None
    assert piece.length == size


def poll_all(readers: Readers) -> None:
    while readers.forget_deleted():
        pass


def test_a_partition_that_moved_away_and_back(tmp_path: Path) -> None:
    """Check that the old directory, which waits for its deletion with fewer records, is not read."""
    readers = Readers([str(tmp_path)])
    partition = partition_of(0, tmp_path)
    read(readers, partition)
    directory = tmp_path / "t-0"
    away = tmp_path / f"t-0.{'f' * 32}-delete"
    directory.rename(away)
    # In the middle of it: what was open still is.
    read(readers, partition)
    # It is held: a directory that was made anew could have its inode number otherwise.
    assert str(away) in [
        str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()
    ]
    partition_of(0, tmp_path)
    later = build_batch([NewRecord(b"k", b"later", -1)])
    assign_offset_and_epoch(later, 1, 0)
    with (directory / f"{SEGMENT}.log").open("ab") as file:
        file.write(later)
    bound = Bound(2, 0, partition.high_watermark_position + len(later))
    piece = readers.get("t", partition).fetch_slice(1, 1000, bound)
    assert piece is not None
    assert piece.length == len(later)
    readers.forget_all()


def test_readers_close_what_was_deleted_and_nothing_else(tmp_path: Path) -> None:
    readers = Readers([str(tmp_path)])
    partitions = [partition_of(number, tmp_path) for number in range(2 * LOOKED_AT_ONCE + 3)]
    for partition in partitions:
        read(readers, partition)
    poll_all(readers)
    kept = readers.get("t", partitions[1])
    gone = partitions[::7]
    for partition in gone:
        for suffix in ("log", "index"):
            (tmp_path / f"t-{partition.partition}" / f"{SEGMENT}.{suffix}").unlink()
    assert len(deleted_files("self", tmp_path)) == 2 * len(gone)
    poll_all(readers)
    assert deleted_files("self", tmp_path) == []
    assert readers.get("t", partitions[1]) is kept
    readers.forget_all()


def test_a_file_that_took_the_place_of_a_deleted_one_is_read_anew(tmp_path: Path) -> None:
    readers = Readers([str(tmp_path)])
    partition = partition_of(0, tmp_path)
    read(readers, partition)
    path = tmp_path / "t-0" / f"{SEGMENT}.log"
    (tmp_path / "new").write_bytes(path.read_bytes())
    (tmp_path / "new").rename(path)
    poll_all(readers)
    assert deleted_files("self", tmp_path) == []
    read(readers, partition)
    readers.forget_all()


def test_places_close_what_was_deleted_and_nothing_else(tmp_path: Path) -> None:
    places = FetchPositions(memoryview(bytes(8)))
    for number in range(4):
        partition_of(number, tmp_path)
        learn(places, number, tmp_path / f"t-{number}" / f"{SEGMENT}.log", 1)
    (tmp_path / "t-1" / f"{SEGMENT}.log").unlink()
    (tmp_path / "t-2" / f"{SEGMENT}.index").unlink()
    places.forget_deleted()
    assert deleted_files("self", tmp_path) == []
    assert len(places) == 2
    places.forget_all()


def test_the_directory_of_a_reader_without_files_is_let_go_of(tmp_path: Path) -> None:
    readers = Readers([str(tmp_path)])
    readers.get("t", partition_of(0, tmp_path))
    shutil.rmtree(tmp_path / "t-0")
    assert deleted_files("self", tmp_path) == [f"{tmp_path}/t-0 (deleted)"]
    poll_all(readers)
    assert deleted_files("self", tmp_path) == []


def test_places_read_another_file_of_the_name_only_when_it_is_served_from(tmp_path: Path) -> None:
    places = FetchPositions(memoryview(bytes(8)))
    partition_of(0, tmp_path)
    path = tmp_path / "t-0" / f"{SEGMENT}.log"
    learn(places, 0, path, 1)
    (tmp_path / "new").write_bytes(path.read_bytes())
    (tmp_path / "new").rename(path)
    assert deleted_files("self", tmp_path) == [f"{path} (deleted)"]
    learn(places, 0, path, 1)
    assert deleted_files("self", tmp_path) == []
    places.forget_all()


def test_a_deleted_topic_frees_its_space(broker: Mpbroker) -> None:
    configs = {"file.delete.delay.ms": "0", "segment.bytes": str(1 << 20)}
    produce = frames.produce("t", 100, 10_000)
    with frames.connected(broker.address) as connection:
        assert frames.exchange(connection, frames.create_topic("t", 1, configs))[0] == 0
        for _ in range(4):
            assert frames.exchange(connection, produce)[0] == 0
        for _ in range(2):
            # By Python and by the turn; each time from all segments.
            for offset in range(0, 400, 50):
                assert frames.exchange(connection, frames.fetch("t", offset, 1 << 20))[0] == 0
        assert frames.exchange(connection, frames.delete_topic("t"))[0] == 0
        processes = broker.tree().members()

        def still_open() -> list[str]:
            """Return the open files of the topic.

            Files of the log directory itself are kept for a full disk.
            """
            names = [name for each in processes for name in deleted_files(each.pid, broker.log_dir)]
            return [name for name in names if Path(name).parent != broker.log_dir]

        eventually(lambda: not list(broker.log_dir.glob("t-*")) and not still_open(), "its space is free")
