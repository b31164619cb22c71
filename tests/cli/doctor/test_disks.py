"""Checks of log directories, each in the states that it tells apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpbroker.cli.doctor import disks
from mpbroker.config.broker import BrokerConfig
from mpbroker.config.load import load


def config_of(*log_dirs: Path) -> BrokerConfig:
    return load(None, [f"log.dirs={','.join(map(str, log_dirs))}"]).config


def states(config: BrokerConfig, *, is_running: bool = False) -> dict[str, str]:
    return {one.name: one.state for one in disks.checks(config, is_running=is_running)}


def test_a_directory_that_will_be_made_is_not_made_here(tmp_path: Path) -> None:
    path = tmp_path / "new" / "data"
    found = states(config_of(path))
    assert found[f"log.dirs {path}"] == "ok"
    assert list(found)[1:] == ["file system", "disk space", "sync", "read-ahead", "topics"]
    assert list(tmp_path.iterdir()) == []


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o750)
    assert disks.permissions(tmp_path, tmp_path).state == "ok"
    tmp_path.chmod(0o755)
    found = disks.permissions(tmp_path, tmp_path)
    assert (found.state, found.advice) == ("note", f"chmod -R g-w,o= {tmp_path}")
    file = tmp_path / "file"
    file.touch()
    assert "is no directory" in disks.permissions(file / "data", file).found
    monkeypatch.setattr(os, "access", lambda *_arguments: False)
    assert "cannot be made in" in disks.permissions(tmp_path / "data", tmp_path).found
    assert disks.permissions(tmp_path, tmp_path).state == "problem"


def test_one_that_cannot_be_used_hides_no_other(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    found = states(config_of(file, tmp_path / "data"))
    assert found[f"log.dirs {file}"] == "problem"
    assert found["disk space"] == "ok"


@pytest.mark.parametrize(
    ("kind", "state"),
    [("ext4", "ok"), ("xfs", "ok"), ("tmpfs", "note"), ("nfs4", "note"), ("overlay", "note")],
)
def test_kinds_of_file_systems(tmp_path: Path, kind: str, state: str) -> None:
    found = disks.file_system(tmp_path, kind)
    assert (found.state, bool(found.advice)) == (state, state != "ok")


@pytest.mark.parametrize(
    ("free", "is_running", "state"),
    [
        (0.5, False, "ok"),
        (0.04, False, "note"),
        (1e-5, False, "note"),
        (1e-6, False, "problem"),
        (1e-6, True, "problem"),
    ],
)
def test_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, is_running: bool, state: str
) -> None:
    class Seen:
        f_frsize = 4096
        f_blocks = 100 << 20
        f_bavail = int(f_blocks * free)

    monkeypatch.setattr(os, "statvfs", lambda _path: Seen)
    assert disks.room(tmp_path, tmp_path, config_of(tmp_path), is_running=is_running).state == state


@pytest.mark.parametrize(("took_ms", "state"), [(2.0, "ok"), (35.0, "note"), (0.004, "note")])
def test_times_of_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_ms: float, state: str) -> None:
    monkeypatch.setattr(disks, "_syncs", lambda _path: iter([took_ms] * disks.SYNCS))
    monkeypatch.setattr(disks, "file_system_of", lambda _path: "ext4")
    found = disks.sync_time(tmp_path, tmp_path)
    assert (found.state, bool(found.advice)) == (state, state != "ok")


def test_syncs_are_measured_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(list(disks._syncs(tmp_path))) == disks.SYNCS
    assert list(tmp_path.iterdir()) == []

    def fails(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    found = disks.sync_time(tmp_path, tmp_path)
    assert (found.state, "Input/output error" in found.found) == ("problem", True)


@pytest.mark.parametrize("where", ["queue", "../queue"])
def test_read_ahead_of_a_disk_and_of_a_part_of_one(tmp_path: Path, where: str) -> None:
    device = tmp_path.stat().st_dev
    part = tmp_path / "disk" / f"{os.major(device)}:{os.minor(device)}"
    part.mkdir(parents=True)
    queue = part.parent / "queue" if where == "../queue" else part / "queue"
    queue.mkdir()
    for text, state in (("128\n", "ok"), ("8192\n", "note")):
        (queue / "read_ahead_kb").write_text(text)
        found = disks.read_ahead(tmp_path, tmp_path, part.parent)
        assert (found.state, f"{text.strip()} KiB") == (state, found.found)
    assert found.advice.startswith("echo 128 > ")
    assert disks.read_ahead(tmp_path, tmp_path, tmp_path / "none").state == "ok"


def test_a_directory_of_kafkas_is_told(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    found = disks.metadata(config_of(tmp_path))
    assert found.state == "problem"
    assert "__cluster_metadata-0" in found.found
    assert sorted(one.name for one in tmp_path.iterdir()) == ["meta.properties", "orders-0"]
