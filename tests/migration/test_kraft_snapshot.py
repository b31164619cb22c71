"""Snapshots in Kafka's format, and what is read back from them."""

from __future__ import annotations

from pathlib import Path

from mpbroker.coordinator.metadata.metadata_records import RECORDS_PER_BATCH
from mpbroker.migration.kraft_snapshot import Voter, bootstrap, snapshot
from mpbroker.migration.metadata_log import read_image
from mpbroker.migration.snapshot_files import SnapshotId
from mpbroker.protocol.messages import TopicRecord
from mpbroker.storage.names import segment_name
from tests.support.kafka_directory import encoded
from tests.support.metadata_images import ALL, ID, image_of

VOTER = Voter(1, ID, "CONTROLLER", "localhost", 9093)


def test_a_snapshot_is_read_back_whole(tmp_path: Path) -> None:
    """And so is one of several batches."""
    others = [TopicRecord(f"t{number}", number.to_bytes(16)) for number in range(1, 2 * RECORDS_PER_BATCH)]
    image = image_of(*encoded(*ALL, *others))
    image.next_offset, image.epoch = 77, 3
    (tmp_path / SnapshotId(77, 3).file_name).write_bytes(snapshot(image, VOTER, 1))
    (tmp_path / segment_name(77)).touch()
    assert read_image(tmp_path) == image


def test_the_bootstrap_file_has_the_levels(tmp_path: Path) -> None:
    (tmp_path / SnapshotId(0, 0).file_name).write_bytes(bootstrap({"metadata.version": 30}, 1))
    (tmp_path / segment_name(0)).touch()
    assert read_image(tmp_path).features == {"metadata.version": 30}
