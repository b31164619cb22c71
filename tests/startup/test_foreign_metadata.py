"""A start on a directory of Apache Kafka's says so and changes nothing.

The bytes of Kafka's records here are those that Kafka wrote; `tests/real_clients/test_not_ours.py` has it
write them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest
from crc32c import crc32c

from mpbroker.config.broker import BrokerConfig
from mpbroker.coordinator.metadata.metadata_records import build_metadata_batch, encode_record
from mpbroker.ipc.process import FatalError
from mpbroker.protocol.messages import PartitionRecord, TopicRecord
from mpbroker.protocol.topic_names import METADATA_TOPIC
from mpbroker.startup import foreign_metadata
from mpbroker.startup.foreign_metadata import refuse_foreign_metadata
from mpbroker.storage import names
from mpbroker.storage.checkpoints import write_offsets
from mpbroker.storage.directory_layout import check_log_dirs, name_log_dirs, write_clean_shutdown
from mpbroker.storage.segments import READ_BYTES
from tests.supervisor.test_serve import FAILED, refused
from tests.support.file_trees import tree
from tests.support.kafka_directory import election

TOPIC_ID = bytes(range(16))
OURS: Final = [
    encode_record(TopicRecord(name="ours", topic_id=TOPIC_ID)),
    encode_record(PartitionRecord(partition_id=0, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1)),
]
# Type 23 is BeginTransactionRecord, 12 is FeatureLevelRecord (metadata.version 30), 20 is NoOpRecord.
KAFKAS: Final = [
    b"\x01\x17\x00\x01\x00\x12\x12Bootstrap records",
    b"\x01\x0c\x00\x11metadata.version\x00\x1e\x00",
    b"\x01\x14\x00\x00",
]


def batch(values: list[bytes], offset: int) -> bytes:
    return bytes(build_metadata_batch(values, timestamp_ms=1, base_offset=offset))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log directory with one topic's partition, and metadata without a record yet."""
    home = tmp_path / "data"
    home.mkdir()
    config = msgspec.structs.replace(BrokerConfig(), log_dirs=(str(home),))
    name_log_dirs(config, check_log_dirs(config))
    for name in (names.METADATA_DIRECTORY, "ours-0"):
        (home / name).mkdir()
        (home / name / names.segment_name(0)).touch()
    (home / names.METADATA_DIRECTORY / names.QUORUM_STATE).write_text("{}")
    return home


Write = Callable[..., Path]


@pytest.fixture
def write(directory: Path) -> Write:
    def write(*batches: bytes, base: int = 0) -> Path:
        """Makes a segment of these batches."""
        path = directory / names.METADATA_DIRECTORY / names.segment_name(base)
        path.write_bytes(b"".join(batches))
        return path

    return write


def stop_at(directory: Path, offset: int) -> None:
    write_offsets(directory / names.RECOVERY_POINTS, {(METADATA_TOPIC, 0): offset})
    write_clean_shutdown(directory)


def why_refused(directory: Path) -> str:
    before = tree(directory)
    with pytest.raises(FatalError) as raised:
        refuse_foreign_metadata([str(directory)])
    assert tree(directory) == before
    assert str(raised.value).endswith(". Nothing in the directory was changed")
    return str(raised.value)


def test_kafkas_own_directory(directory: Path, write: Write) -> None:
    write(election(0), batch(KAFKAS, 1))
    said = why_refused(directory)
    assert f"{directory} belongs to Apache Kafka: its controller wrote the record at offset 1 of" in said
    assert "Continue with Kafka there; or stop it in order and take everything over with: " in said
    assert f"with: mpbroker import {directory}. Nothing" in said


@pytest.mark.process
def test_a_broker_refuses_it_before_it_locks_or_makes_anything(
    directory: Path, write: Write, tmp_path: Path
) -> None:
    write(election(0), batch(KAFKAS, 1))
    stop_at(directory, 4)
    before = tree(directory)
    code, said = refused(tmp_path, "--log-dirs", f"{directory},{tmp_path}/more", "-o", "node.id=7")
    assert (code, f"{directory} belongs to Apache Kafka" in said) == (FAILED, True), said
    assert tree(directory) == before
    assert not (tmp_path / "more").exists()


def test_one_whose_beginning_is_in_a_snapshot(directory: Path, write: Write) -> None:
    write().unlink()
    write(batch(OURS, 900), base=900)
    assert f"{directory} belongs to Apache Kafka" in (said := why_refused(directory))
    assert "begins at offset 900, and what was before is in a snapshot" in said


@pytest.mark.parametrize("kafkas", [KAFKAS[0], KAFKAS[2]])
def test_one_that_kafka_has_used_since(directory: Path, write: Write, kafkas: bytes) -> None:
    write(batch(OURS, 0), election(2), batch([*OURS, kafkas], 3))
    stop_at(directory, 6)
    said = why_refused(directory)
    assert f"Apache Kafka has used {directory} since mpbroker: its controller wrote the record at" in said
    assert f"offset 5 of {directory}" in said


def test_one_that_kafka_has_only_tried(directory: Path, write: Write) -> None:
    ours = [batch(OURS, offset) for offset in range(0, 20_000, 2)]
    path = write(*ours, election(20_000), election(20_001))
    (directory / names.METADATA_DIRECTORY / names.QUORUM_STATE).unlink()
    assert path.stat().st_size > READ_BYTES
    stop_at(directory, 20_000)
    said = why_refused(directory)
    assert f"Apache Kafka was started on {directory} since mpbroker" in said
    assert f"its controller has written to {directory / names.METADATA_DIRECTORY} at offset 20000. " in said
    assert f"with: mpbroker import {directory}. Nothing" in said


def test_elections_before_the_end_of_a_clean_stop_are_read_over(directory: Path, write: Write) -> None:
    write(batch(OURS, 0), election(2))
    stop_at(directory, 3)
    refuse_foreign_metadata([str(directory)])
    write(batch(OURS, 0), election(2), election(3))
    assert "at offset 3. " in why_refused(directory)


def test_after_a_crash_recovery_judges_what_follows_our_records(directory: Path, write: Write) -> None:
    write(batch(OURS, 0), election(2))
    refuse_foreign_metadata([str(directory)])


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"torn", batch(KAFKAS, 9), batch(KAFKAS, 2)[:-1]])
def test_what_a_crash_leaves_is_not_judged_here(directory: Path, write: Write, tail: bytes) -> None:
    write(batch(OURS, 0), tail)
    refuse_foreign_metadata([str(directory)])


def test_records_that_cannot_be_taken_apart_are_not_judged_here(directory: Path, write: Write) -> None:
    """Their checksum is right, their number is not: recovery and replay say what is wrong."""
    damaged = bytearray(batch(OURS, 2))
    damaged[57:61] = (7).to_bytes(4)
    damaged[17:21] = crc32c(bytes(damaged[21:])).to_bytes(4)
    write(batch(OURS, 0), bytes(damaged))
    refuse_foreign_metadata([str(directory)])


@pytest.mark.parametrize("record", [b"\x01\x02\x7f", b"\x02", b""])
def test_what_no_kafka_wrote_is_of_a_later_version(directory: Path, write: Write, record: bytes) -> None:
    (directory / names.METADATA_DIRECTORY / names.QUORUM_STATE).unlink()
    write(batch([*OURS, record], 0))
    said = why_refused(directory)
    assert "the record at offset 2 of" in said
    assert "A later version of mpbroker wrote it, or it is damaged" in said


def test_an_unknown_type_without_kafka_is_kept(directory: Path, write: Write) -> None:
    (directory / names.METADATA_DIRECTORY / names.QUORUM_STATE).unlink()
    write(batch([*OURS, KAFKAS[2], b"\x01\x7f\x00"], 0))
    refuse_foreign_metadata([str(directory)])


def test_one_of_several_directories_of_kafka(directory: Path) -> None:
    """Its metadata are in another one. All partitions would be set aside."""
    assert list(directory.glob("mpbroker.*")) == []
    refuse_foreign_metadata([str(directory)])
    shutil.rmtree(directory / names.METADATA_DIRECTORY)
    (directory / f"{names.OWN_PREFIX}events-0").mkdir()
    said = why_refused(directory)
    assert f"), but none of log.dirs has {names.METADATA_DIRECTORY}" in said


def test_metadata_that_mpbroker_lost_are_made_anew(directory: Path) -> None:
    shutil.rmtree(directory / names.METADATA_DIRECTORY)
    (directory / names.DURABLE_MARK).touch()
    refuse_foreign_metadata([str(directory)])


def test_new_and_missing_directories_are_nobodys(tmp_path: Path) -> None:
    refuse_foreign_metadata([str(tmp_path), str(tmp_path / "missing")])


@pytest.mark.process
def test_a_kafka_with_zookeeper(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / names.META_PROPERTIES).write_text("version=0\nbroker.id=1\ncluster.id=abc\n")
    (tmp_path / "data" / "theirs-0").mkdir()
    (tmp_path / "data" / names.METADATA_DIRECTORY).mkdir()
    before = tree(tmp_path / "data")
    code, said = refused(tmp_path, "--log-dirs", str(tmp_path / "data"))
    assert (code, "belongs to an Apache Kafka with ZooKeeper" in said) == (FAILED, True), said
    after = tree(tmp_path / "data")
    # Its lock came and went.
    del before["."], after["."]
    assert after == before


def test_files_of_another_user_are_no_damage(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> None:
        raise PermissionError(13, "Permission denied", str(directory))

    monkeypatch.setattr(foreign_metadata, "read_ownership", refused)
    with pytest.raises(FatalError, match="chown the directory to the broker's user"):
        refuse_foreign_metadata([str(directory)])
