from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.coordinator.metadata.metadata_records import build_metadata_batch
from mpbroker.migration.ownership import read_ownership
from mpbroker.protocol.messages import TopicRecord
from mpbroker.protocol.topic_names import METADATA_TOPIC
from mpbroker.storage.checkpoints import write_offsets
from mpbroker.storage.directory_layout import write_clean_shutdown
from mpbroker.storage.names import METADATA_DIRECTORY, QUORUM_STATE, RECOVERY_POINTS, segment_name
from tests.support.kafka_directory import election, encoded

OURS = bytes(build_metadata_batch(encoded(TopicRecord(name="ours", topic_id=bytes(16))), 1))


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    path = tmp_path / METADATA_DIRECTORY
    path.mkdir()
    return path


def test_our_records_without_an_election_are_ours(metadata: Path) -> None:
    (metadata / segment_name(0)).write_bytes(OURS)
    found = read_ownership(metadata.parent)
    assert (found.is_ours, found.is_kafkas) == (True, False)
    (metadata / QUORUM_STATE).touch()
    assert not read_ownership(metadata.parent).is_kafkas


def test_what_an_election_begins_is_kafkas(metadata: Path) -> None:
    (metadata / segment_name(0)).write_bytes(election(0))
    assert read_ownership(metadata.parent).is_kafkas


def test_an_election_is_kafkas_only_behind_our_last_clean_stop(metadata: Path) -> None:
    log_dir = metadata.parent
    (metadata / segment_name(0)).write_bytes(OURS + election(1))
    for end, is_kafkas in ((1, True), (2, False)):
        write_offsets(log_dir / RECOVERY_POINTS, {(METADATA_TOPIC, 0): end})
        write_clean_shutdown(log_dir)
        assert read_ownership(log_dir).is_kafkas is is_kafkas


def test_a_log_that_begins_in_a_snapshot_is_kafkas(metadata: Path) -> None:
    assert read_ownership(metadata.parent).is_kafkas
    (metadata / segment_name(5)).write_bytes(OURS)
    assert read_ownership(metadata.parent).is_kafkas
