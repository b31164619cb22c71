"""Moves of a former owner's data below its log directories: killed anywhere, and twice in one generation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mpbroker.remote.ledger.owner import Owner
from mpbroker.standby.directories import set_aside
from mpbroker.storage.names import FENCED, META_PROPERTIES, REMOTE_OWNER

PARTITION = "orders-0"
# Owners of the first generation of two ledgers.
FIRST, SECOND = Owner("0123456789abcdef"), Owner("fedcba9876543210")


class Killed(Exception):
    """The process ends before a file is moved."""


def fill(log_dirs: list[Path], text: str) -> None:
    for log_dir in log_dirs:
        (log_dir / PARTITION).mkdir(parents=True)
        (log_dir / PARTITION / "0.log").write_text(text)
        (log_dir / META_PROPERTIES).touch()
    (log_dirs[0] / REMOTE_OWNER).touch()


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("dies_at", range(5))
def test_a_generation_of_another_ledger_has_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int, *, is_deleted: bool
) -> None:
    log_dirs = [tmp_path / "a", tmp_path / "b"]
    fill(log_dirs, "first")
    assert set_aside(log_dirs, FIRST) == [one / FENCED / "1-01234567" for one in log_dirs]
    if is_deleted:
        # Of the first directory alone, where the owner's file is.
        shutil.rmtree(log_dirs[0] / FENCED)
    fill(log_dirs, "second")
    rename, left = Path.rename, iter(range(dies_at))

    def dying(path: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise Killed
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", dying)
        with pytest.raises(Killed):
            set_aside(log_dirs, SECOND)
    assert (log_dirs[0] / REMOTE_OWNER).exists()
    assert set_aside(log_dirs, SECOND) == [one / FENCED / "1-fedcba98" for one in log_dirs]
    for name, text in (("1-01234567", "first"), ("1-fedcba98", "second")):
        for log_dir in log_dirs[is_deleted and text == "first" :]:
            assert (log_dir / FENCED / name / PARTITION / "0.log").read_text() == text


def test_a_copy_of_a_disk_that_was_set_aside_is_set_aside_beside_it(tmp_path: Path) -> None:
    for _ in range(2):
        fill([tmp_path], "copy")
        set_aside([tmp_path], FIRST)
    assert {one.name for one in (tmp_path / FENCED).iterdir()} == {"1-01234567", "1-01234567-2"}
