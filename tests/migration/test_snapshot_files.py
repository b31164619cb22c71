"""Snapshots of exports beside a metadata log, which do not outlive the next start."""

from __future__ import annotations

from pathlib import Path

from mpbroker.migration.snapshot_files import SnapshotId, forget_exports, snapshots_of
from mpbroker.migration.to_kafka import export
from mpbroker.storage.names import METADATA_DIRECTORY, QUORUM_STATE, segment_name
from mpbroker.testing.broker import Broker


def test_exports_are_forgotten_and_nothing_else(tmp_path: Path) -> None:
    metadata = tmp_path / "data" / METADATA_DIRECTORY
    metadata.mkdir(parents=True)
    stay = {segment_name(0), QUORUM_STATE, "leader-epoch-checkpoint", "1-1.checkpoint"}
    for name in (*stay, SnapshotId(9, 0).file_name, SnapshotId(10, 2).file_name):
        (metadata / name).touch()
    (tmp_path / "second").mkdir()
    forget_exports([str(tmp_path / "second"), str(metadata.parent)])
    assert {path.name for path in metadata.iterdir()} == stay


def test_a_start_removes_the_snapshot_of_an_export(tmp_path: Path) -> None:
    broker = Broker(log_dir=tmp_path)
    metadata = tmp_path / METADATA_DIRECTORY
    with broker:
        broker.create_topic("orders")
    export([tmp_path], ("localhost", 9093), is_dry=False)
    assert len(snapshots_of(metadata)) == 1
    with broker:
        assert snapshots_of(metadata) == []
        assert f"removed {metadata}/" in broker.logs()
    export([tmp_path], ("localhost", 9093), is_dry=False)
    assert len(snapshots_of(metadata)) == 1
