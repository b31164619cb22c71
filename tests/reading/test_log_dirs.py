"""Whose log directories are here, which others they have, who runs on them, and what forbids to read them."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from mpbroker.reading import local_catalog, log_dirs
from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.errors import FilesUnavailable, OptionError, SourceUnavailable
from mpbroker.reading.local_catalog import LocalCatalog
from mpbroker.reading.log_dirs import running_broker
from mpbroker.reading.plan import Catalog
from mpbroker.reading.remote_catalog import RemoteCatalog
from tests.reading.conftest import Published
from tests.support.reading_queries import offsets_of, planned, query, read
from tests.support.spark_logs import FakeBroker, PartitionWriter, checkpoint, fill, new_log_dir

# Nobody is asked there: a catalog connects when it is first used.
SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
IDS = ("AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBB")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dirs, "START_PATIENCE_S", 0.0)
    monkeypatch.setattr(log_dirs, "END_PATIENCE_S", 0.0)


def open_catalog_of(log_dir: Path, **options: str) -> closing[Catalog]:
    return closing(open_catalog(query(log_dir, **options)))


# ---- all directories of a broker ----


@pytest.fixture
def both(tmp_path: Path) -> list[Path]:
    """Two log directories of one broker; partition 0 of the topic is in the first, 1 in the second."""
    directories = [new_log_dir(tmp_path / name) for name in ("one", "two")]
    for directory, directory_id in zip(directories, IDS, strict=True):
        with (directory / "meta.properties").open("a") as file:
            file.write(f"directory.id={directory_id}\n")
        listed = zip(IDS, directories, strict=True)
        (directory / "mpbroker.dirs").write_text("".join(f"{one} {path}\n" for one, path in listed))
    return directories


@pytest.fixture
def writers(both: list[Path]) -> list[PartitionWriter]:
    made = [PartitionWriter(both[0], "t", 0, topic_id=b"t" * 16)]
    made.append(PartitionWriter(both[1], "t", 1, topic_id=b"t" * 16))
    for writer in made:
        fill(writer, 3)
    return made


@pytest.mark.parametrize("named", [0, 1])
def test_a_broker_s_other_directory_is_found(
    both: list[Path], writers: list[PartitionWriter], named: int
) -> None:
    broker = FakeBroker(both[named])
    for writer in writers:
        broker.publish(writer)
    assert read(both[named]) == [*range(30), *range(30)]
    # It means the same with servers that could be asked, and that nobody needs to.
    assert read(both[named], **SERVERS) == [*range(30), *range(30)]
    broker.stop()
    for number, directory in enumerate(both):
        checkpoint(directory, {("t", number): 20})
    assert read(both[named]) == [*range(20), *range(20)]


def test_a_directory_that_is_missing_is_no_half_of_a_topic(
    both: list[Path], writers: list[PartitionWriter], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(writers) == 2
    moved = tmp_path / "moved"
    both[1].rename(moved)
    with pytest.raises(FilesUnavailable, match=rf"{both[0]} has partitions in {both[1]}, too .*not here"):
        read(both[0])
    with open_catalog_of(both[0], **SERVERS) as catalog, caplog.at_level(logging.WARNING):
        assert isinstance(catalog, RemoteCatalog)
    # By its identity it is known where it is now.
    for number, directory in enumerate((both[0], moved)):
        checkpoint(directory, {("t", number): 20})
    assert read(f"{moved},{both[0]}") == [*range(20), *range(20)]
    # Another directory at that path is none of it.
    new_log_dir(both[1])
    with pytest.raises(FilesUnavailable, match="not here"):
        read(both[0])


def test_a_partition_that_is_served_from_elsewhere(both: list[Path], writers: list[PartitionWriter]) -> None:
    """Nothing tells of the other directory but the running broker's table."""
    for directory in both:
        (directory / "mpbroker.dirs").unlink()
    broker = FakeBroker(both[0])
    try:
        for writer in writers:
            broker.publish(writer)
        with pytest.raises(
            SourceUnavailable, match=rf"t-1 cannot be read: .* serves it, .* not in {both[0]}"
        ):
            read(both[0])
        assert read(f"{both[0]},{both[1]}") == [*range(30), *range(30)]
    finally:
        broker.stop()


def test_a_partition_in_two_directories(both: list[Path], writers: list[PartitionWriter]) -> None:
    """As a crash in the middle of a move leaves it."""
    shutil.copytree(writers[0].directory, both[1] / "t-0")
    for directory in both:
        checkpoint(directory, {("t", 0): 30, ("t", 1): 30})
    with pytest.raises(SourceUnavailable, match="several directories"):
        read(both[0])
    (both[1] / "t-0" / "mpbroker.moved").touch()
    tasks = planned(query(both[0]))
    assert [task.files.directory for task in tasks if task.files and task.partition == 0] == [
        str(both[1] / "t-0")
    ]


def test_a_move_that_ends_behind_the_listing(
    both: list[Path], writers: list[PartitionWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both directories were listed. The old one gets another name, and then the new one loses its mark."""
    broker = FakeBroker(both[0])
    for writer in writers:
        broker.publish(writer)
    old, new = writers[0].directory, both[1] / "t-0"
    shutil.copytree(old, new)
    (new / "mpbroker.moved").touch()
    one_that_counts = log_dirs.one_that_counts

    def ends_before(paths: Sequence[Path]) -> Path:
        if old in paths and old.exists():
            old.rename(old.with_name(f"t-0.{'0' * 32}-delete"))
            (new / "mpbroker.moved").unlink()
        return one_that_counts(paths)

    monkeypatch.setattr(local_catalog, "one_that_counts", ends_before)
    tasks = planned(query(both[0]))
    broker.stop()
    assert [task.files.directory for task in tasks if task.files and task.partition == 0] == [str(new)]


def test_a_damaged_list_of_directories(both: list[Path]) -> None:
    (both[0] / "mpbroker.dirs").write_text("nonsense\n")
    with pytest.raises(SourceUnavailable, match=r"mpbroker\.dirs is damaged"):
        read(both[0])


# ---- whose directory a task finds ----


@pytest.mark.parametrize("field", ["cluster.id=another", "node.id=2"])
def test_another_broker_s_directory_at_the_path_is_not_here(
    log_dir: Path, writer: Published, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.add(3)
    options = query(log_dir)
    tasks = planned(options)
    properties = log_dir / "meta.properties"
    name = field.split("=")[0]
    lines = [line for line in properties.read_text().splitlines() if not line.startswith(name)]
    properties.write_text("\n".join([*lines, field, ""]))
    with pytest.raises(FilesUnavailable, match=r"is not on this host.*kafka\.bootstrap\.servers"):
        offsets_of(tasks, options)
    fetched: list[object] = []
    monkeypatch.setattr(
        "mpbroker.reading.read_remote.read_remote", lambda task, *_: iter(fetched.append(task) or ())
    )
    assert offsets_of(tasks, query(log_dir, **SERVERS)) == []
    assert fetched == tasks


# ---- who runs on it ----


def test_a_broker_whose_process_is_of_another_namespace(log_dir: Path, writer: Published) -> None:
    """Seen from there, its process id and start time mean nothing."""
    writer.add(3)
    region = writer.broker.runtime_dir / "public"
    with region.open("r+b") as file:
        file.seek(16)
        file.write((2**22 + 1).to_bytes(8, "little"))
    checkpoint(log_dir, {("t", 0): 10})
    assert read(log_dir) == list(range(30))


def test_a_region_that_another_user_can_replace(log_dir: Path, writer: Published) -> None:
    """Its numbers would be theirs, and so would be what is read."""
    writer.add(3)
    writer.broker.runtime_dir.chmod(0o777)
    with pytest.raises(
        FilesUnavailable, match=r"may not be that of the broker .* can be written by all users"
    ):
        read(log_dir)
    writer.broker.runtime_dir.chmod(0o750)
    assert read(log_dir) == list(range(30))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_region_of_another_user(log_dir: Path, fake_broker: FakeBroker) -> None:
    fill(PartitionWriter(log_dir, "t"), 3)
    os.chown(fake_broker.runtime_dir / "public", 65_534, 65_534)
    with pytest.raises(FilesUnavailable, match=r"public belongs to user 65534, not to user 0"):
        read(log_dir)


def test_a_broker_whose_region_is_not_here(log_dir: Path, fake_broker: FakeBroker) -> None:
    """A container without its /dev/shm sees the lock, and must not go by the checkpoint."""
    fill(PartitionWriter(log_dir, "t"), 3)
    checkpoint(log_dir, {("t", 0): 10})
    pointer = log_dir / "mpbroker.json"
    found = json.loads(pointer.read_text())
    pointer.write_text(json.dumps(found | {"runtime_dir": "/dev/shm/mpbroker-of-another-container"}))
    with pytest.raises(FilesUnavailable, match=r"another-container is not here: it runs in another"):
        read(log_dir)
    with open_catalog_of(log_dir, **SERVERS) as catalog:
        assert isinstance(catalog, RemoteCatalog)
    # There may be something else at that path, which no broker has.
    pointer.write_text(json.dumps(found | {"runtime_dir": str(log_dir)}))
    with pytest.raises(FilesUnavailable, match="no broker runs on"):
        read(log_dir)
    pointer.unlink()
    with pytest.raises(FilesUnavailable, match="it is starting"):
        read(log_dir)
    fake_broker.stop()
    assert read(log_dir) == list(range(10))


@pytest.mark.usefixtures("fake_broker")
def test_a_broker_that_starts_is_waited_for(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_dirs, "START_PATIENCE_S", 60.0)
    pointer = log_dir / "mpbroker.json"
    text = pointer.read_text()
    pointer.unlink()
    monkeypatch.setattr(log_dirs.time, "sleep", lambda _: pointer.write_text(text))
    assert running_broker(log_dir) is not None


def test_the_last_processes_of_a_killed_broker_are_waited_for(
    log_dir: Path, fake_broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the lock for a moment longer than the region is there."""
    monkeypatch.setattr(log_dirs, "END_PATIENCE_S", 60.0)
    fill(PartitionWriter(log_dir, "t"), 3)
    checkpoint(log_dir, {("t", 0): 10})
    shutil.rmtree(fake_broker.runtime_dir)
    monkeypatch.setattr(log_dirs.time, "sleep", lambda _: fake_broker.stop())
    assert read(log_dir) == list(range(10))


def test_a_copy_of_a_directory_is_not_that_of_the_running_broker(
    log_dir: Path, writer: Published, tmp_path: Path
) -> None:
    writer.add(3)
    checkpoint(log_dir, {("t", 0): 20})
    copied = shutil.copytree(log_dir, tmp_path / "copy")
    writer.add(3)
    assert (read(copied), read(log_dir)) == (list(range(20)), list(range(60)))


# ---- what forbids to read ----


def open_the_way_to(directory: Path) -> None:
    """Pytest's own directories are for its user alone."""
    for path in directory.parents[: -len(Path(tempfile.gettempdir()).parts)]:
        path.chmod(0o755)


@pytest.fixture
def nobody() -> Iterator[None]:
    """Not root, for whom nothing is forbidden; with root's groups gone, too."""
    if os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
    yield
    os.seteuid(0)
    os.setegid(0)
    os.setgroups(groups)


@pytest.mark.parametrize("forbidden", ["log directory", "region"])
def test_no_permission(
    log_dir: Path,
    writer: Published,
    forbidden: str,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    writer.add(3)
    open_the_way_to(log_dir)
    writer.broker.runtime_dir.chmod(0o755)
    path = log_dir if forbidden == "log directory" else writer.broker.runtime_dir / "public"
    path.chmod(0)
    request.getfixturevalue("nobody")
    with pytest.raises(FilesUnavailable, match=rf"may not read {path}.*broker's group.*bootstrap"):
        read(log_dir)
    with caplog.at_level(logging.WARNING, "mpbroker.spark"):
        for _ in range(2):
            with open_catalog_of(log_dir, **SERVERS) as catalog:
                assert isinstance(catalog, RemoteCatalog)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"log.dir {log_dir} cannot be read, brokers are asked instead"
    ]


def test_no_permission_for_a_task(
    log_dir: Path,
    writer: Published,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    writer.add(3)
    options = query(log_dir)
    tasks = planned(options) * 2
    open_the_way_to(log_dir)
    writer.directory.chmod(0)
    request.getfixturevalue("nobody")
    with pytest.raises(FilesUnavailable, match=rf"may not read {writer.directory}"):
        offsets_of(tasks, options)
    monkeypatch.setattr("mpbroker.reading.read_remote.read_remote", lambda *_: iter(()))
    with caplog.at_level(logging.WARNING, "mpbroker.spark"):
        assert offsets_of(tasks, query(log_dir, **SERVERS)) == []
    assert len(caplog.records) == 1
    assert "fetch instead" in caplog.text


def test_a_named_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not a broker's log directory"):
        LocalCatalog([str(tmp_path)])
