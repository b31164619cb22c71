"""`mpbroker export` of directories that mpbroker could have left, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from mpbroker.cli.errors import CliError
from mpbroker.cli.host import migration
from mpbroker.coordinator.metadata.metadata_records import build_metadata_batch
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.from_kafka import import_
from mpbroker.migration.metadata_log import read_image
from mpbroker.migration.snapshot_files import snapshots_of
from mpbroker.migration.to_kafka import BOOTSTRAP, FEATURES, export
from mpbroker.protocol.messages import ConfigRecord, RemoveTopicRecord
from mpbroker.protocol.uuids import uuid_bytes
from mpbroker.startup.foreign_metadata import refuse_foreign_metadata
from mpbroker.storage.checkpoints import read_epochs
from mpbroker.storage.names import CLEAN_SHUTDOWN, META_PROPERTIES, REMOTE_CACHE, segment_name
from tests.support.file_trees import tree
from tests.support.kafka_directory import DIRECTORY_ID, KafkaDirectory, encoded

WHERE = ("localhost", 9093)
MORE = encoded(ConfigRecord(2, "orders", "retention.ms", "5"))


@pytest.fixture
def ours(tmp_path: Path) -> KafkaDirectory:
    made = KafkaDirectory(tmp_path, more=MORE).write()
    import_([tmp_path], is_dry=False)
    return made


def append(ours: KafkaDirectory, *values: bytes) -> None:
    """Add records to the metadata."""
    with (ours.metadata / segment_name(0)).open("ab") as file:
        file.write(build_metadata_batch(list(values), 1, read_image(ours.metadata).next_offset))


def test_a_snapshot_comes_beside_the_log(ours: KafkaDirectory) -> None:
    before = tree(ours.path)
    end = read_image(ours.metadata).next_offset
    done = export([ours.path], WHERE, is_dry=False)
    after = tree(ours.path)
    new = {str(Path(path).relative_to(ours.path)) for path in done.files}
    assert after.keys() - before.keys() == new
    assert {name for name in before if after[name].content != before[name].content} == set()
    assert snapshots_of(ours.metadata) == [(end, 0)]
    assert (ours.path / BOOTSTRAP).exists()
    image = read_image(ours.metadata)
    assert image.features == FEATURES
    for number, partition in image.partitions[ours.topic_id("orders")].items():
        assert partition.directories == [uuid_bytes(DIRECTORY_ID)]
        assert (partition.isr, partition.leader) == ([1], -1)
        assert partition.leader_epoch == read_epochs(ours.path / f"orders-{number}")[-1][0] == 4
    assert image.configs == {(2, "orders"): {"retention.ms": "5"}}


def test_mpbroker_goes_on_and_is_exported_again(ours: KafkaDirectory) -> None:
    export([ours.path], WHERE, is_dry=False)
    refuse_foreign_metadata([str(ours.path)])
    append(ours, *encoded(ConfigRecord(2, "orders", "retention.ms", "6")))
    end = read_image(ours.metadata).next_offset
    export([ours.path], WHERE, is_dry=False)
    assert snapshots_of(ours.metadata) == [(end, 0)]
    assert read_image(ours.metadata).configs == {(2, "orders"): {"retention.ms": "6"}}


def test_a_snapshot_of_what_is_no_longer_there_is_not_believed(ours: KafkaDirectory) -> None:
    """The metadata come from an older copy, and the snapshot of an export since stayed there."""
    older = (ours.metadata / segment_name(0)).read_bytes()
    end = read_image(ours.metadata).next_offset
    append(ours, *encoded(ConfigRecord(2, "orders", "retention.ms", "6")))
    export([ours.path], WHERE, is_dry=False)
    (ours.metadata / segment_name(0)).write_bytes(older)
    export([ours.path], WHERE, is_dry=False)
    assert snapshots_of(ours.metadata) == [(end, 0)]
    assert read_image(ours.metadata).configs == {(2, "orders"): {"retention.ms": "5"}}


def test_a_dry_run_changes_nothing(ours: KafkaDirectory) -> None:
    before = tree(ours.path)
    assert len(export([ours.path], WHERE, is_dry=True).files) == 2
    assert tree(ours.path) == before


def test_what_is_refused(ours: KafkaDirectory) -> None:
    def says(text: str) -> None:
        before = {name: entry.content for name, entry in tree(ours.path).items()}
        with pytest.raises(CannotMove, match=text):
            export([ours.path], WHERE, is_dry=False)
        assert {name: entry.content for name, entry in tree(ours.path).items()} == before

    (ours.path / CLEAN_SHUTDOWN).rename(ours.path / "kept")
    says("was not closed in order")
    (ours.path / "kept").rename(ours.path / CLEAN_SHUTDOWN)
    (ours.path / "orders-0").rename(ours.path / "orders-0.away-stray")
    says("the partition orders-0 is in none of")
    (ours.path / "orders-0.away-stray").rename(ours.path / "orders-0")
    append(ours, b"\x01\x7f\x00")
    says(r"does not know \(127\)")


def test_tiered_topics_are_refused(ours: KafkaDirectory) -> None:
    (ours.path / REMOTE_CACHE / "orders-0").mkdir(parents=True)
    append(ours, *encoded(ConfigRecord(2, "orders", "remote.storage.enable", "true")))
    with pytest.raises(CannotMove, match=r"too, with mpbroker remote export --url URL"):
        export([ours.path], WHERE, is_dry=False)
    append(ours, *encoded(ConfigRecord(2, "orders", "remote.storage.enable", "false")))
    export([ours.path], WHERE, is_dry=False)
    # Kafka would take it for a partition.
    assert not (ours.path / REMOTE_CACHE).exists()


def test_a_broker_that_was_never_used_has_nothing_to_export(ours: KafkaDirectory) -> None:
    """Only where it has no partitions either: then metadata are lost."""
    (ours.metadata / segment_name(0)).write_bytes(b"")
    with pytest.raises(CannotMove, match="has no records: restore it from a copy"):
        export([ours.path], WHERE, is_dry=False)
    for number in (0, 1):
        shutil.rmtree(ours.path / f"orders-{number}")
    with pytest.raises(CannotMove, match="no topics, users or settings yet, so there is nothing to export"):
        export([ours.path], WHERE, is_dry=False)


def test_kafkas_own_directory_is_no_export(tmp_path: Path) -> None:
    KafkaDirectory(tmp_path).write()
    with pytest.raises(CannotMove, match="is Apache Kafka's already: start Kafka on it"):
        export([tmp_path], WHERE, is_dry=False)


def test_a_directory_without_a_topic_is_told(ours: KafkaDirectory) -> None:
    append(ours, *encoded(RemoveTopicRecord(ours.topic_id("orders"))))
    done = export([ours.path], WHERE, is_dry=True)
    assert [note.split(" ")[0] for note in done.notes] == [
        f"{ours.path}/orders-{number}" for number in (0, 1)
    ]


def test_several_directories_are_named_all(ours: KafkaDirectory, tmp_path: Path) -> None:
    second = tmp_path / "second-0"
    shutil.copytree(ours.path / "orders-1", second / "orders-1")
    other_id = 21 * "B" + "A"
    properties = (ours.path / META_PROPERTIES).read_text()
    (second / META_PROPERTIES).write_text(
        properties.replace(f"directory.id={DIRECTORY_ID}", f"directory.id={other_id}")
    )
    shutil.copy(ours.path / CLEAN_SHUTDOWN, second)
    with pytest.raises(CannotMove, match="the partition orders-1 is in"):
        export([ours.path, second], WHERE, is_dry=False)
    shutil.rmtree(ours.path / "orders-1")
    with pytest.raises(CannotMove, match="the partition orders-1 is in none of"):
        export([ours.path], WHERE, is_dry=False)
    export([ours.path, second], WHERE, is_dry=False)
    where = read_image(ours.metadata).partitions[ours.topic_id("orders")][1].directories
    assert where == [uuid_bytes(other_id)]


def test_the_command(ours: KafkaDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    migration.export([ours.path], "[::1]:9", dry_run=True, json=False)
    printed = capsys.readouterr().out
    assert "would be exported: 1 topic with 2 partitions" in printed
    assert "  controller.quorum.bootstrap.servers=[::1]:9\n" in printed
    assert f"  log.dirs={ours.path}\n" in printed
    migration.export([ours.path], "kafka:9093", dry_run=False, json=True)
    document = msgspec.json.decode(capsys.readouterr().out)
    assert document["dry_run"] is False
    assert "# or, instead of that line: controller.quorum.voters=1@kafka:9093" in document["settings"]
    number = document["settings"].index("listeners=PLAINTEXT://localhost:9092,CONTROLLER://kafka:9093")
    assert "instead of PLAINTEXT://localhost:9092 mpbroker's listeners" in document["settings"][number - 2]
    for wrong in ("kafka", ":1", "kafka:0", "kafka:65536", "kafka:x"):
        with pytest.raises(CliError, match="write HOST:PORT"):
            migration.export([ours.path], wrong, dry_run=False, json=False)
