"""The metadata log of a directory: its latest snapshot, the records behind it, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.coordinator.metadata.metadata_records import build_metadata_batch
from mpbroker.migration.errors import CannotMove
from mpbroker.migration.kraft_snapshot import Voter, snapshot
from mpbroker.migration.metadata_log import read_image
from mpbroker.migration.snapshot_files import SnapshotId, snapshots_of
from mpbroker.protocol.messages import TopicRecord
from mpbroker.storage.names import segment_name
from tests.support.kafka_directory import election, encoded
from tests.support.metadata_images import ID, PARTITION, image_of

OTHER = bytes(range(1, 17))
BEGIN, END, ABORT = b"\x01\x17\x00\x00", b"\x01\x18\x00\x00", b"\x01\x19\x00\x00"
VOTER = Voter(1, ID, "CONTROLLER", "localhost", 9093)


def directory_of(home: Path, *values: bytes) -> Path:
    (home / segment_name(0)).write_bytes(election(0) + bytes(build_metadata_batch(list(values), 1, 1, 1)))
    return home


def test_a_transaction_counts_when_it_has_ended(tmp_path: Path) -> None:
    first, second, third = encoded(*(TopicRecord(name, name.encode() * 16) for name in "abc"))
    directory_of(tmp_path, BEGIN, first, END, BEGIN, second, ABORT, BEGIN, third)
    assert list(read_image(tmp_path).topics.values()) == ["a"]


def test_the_latest_snapshot_and_the_log_behind_it(tmp_path: Path) -> None:
    directory_of(tmp_path, *encoded(TopicRecord("before", ID), TopicRecord("behind", OTHER)))
    for end, name in ((1, "earlier"), (2, "latest")):
        image = image_of(*encoded(TopicRecord(name, ID)))
        (tmp_path / SnapshotId(end, 1).file_name).write_bytes(snapshot(image, VOTER, 1))
    assert snapshots_of(tmp_path) == [(1, 1), (2, 1)]
    # The log's batch begins below the snapshot's end, so nothing of it is behind.
    assert list(read_image(tmp_path).topics.values()) == ["latest"]
    behind = build_metadata_batch(encoded(TopicRecord("behind", OTHER)), 1, 2, 5)
    (tmp_path / segment_name(0)).write_bytes(election(0) + election(1) + bytes(behind))
    image = read_image(tmp_path)
    assert list(image.topics.values()) == ["latest", "behind"]
    assert (image.next_offset, image.epoch) == (3, 5)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    directory_of(tmp_path, *encoded(PARTITION))
    with pytest.raises(CannotMove, match="the records from offset 1 on cannot be read"):
        read_image(tmp_path)
    directory_of(tmp_path, b"\x01\x02\x7f")
    with pytest.raises(CannotMove, match="A later version may have written them"):
        read_image(tmp_path)
    path = tmp_path / segment_name(0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CannotMove, match=r"is damaged at byte \d+"):
        read_image(tmp_path)
    path.write_bytes(election(0) + election(2))
    with pytest.raises(CannotMove, match="has no records from offset 1 to 2"):
        read_image(tmp_path)
