"""Moves of a former owner's data below its log directories: killed anywhere, and twice in one generation."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpbroker.standby.directories import set_aside
from mpbroker.storage.names import FENCED, META_PROPERTIES, REMOTE_OWNER

PARTITION = "orders-0"


class Killed(Exception):
    """The process ends before a file is moved."""


def fill(log_dirs: list[Path], text: str) -> None:
    for log_dir in log_dirs:
        (log_dir / PARTITION).mkdir(parents=True)
        (log_dir / PARTITION / "0.log").write_text(text)
        (log_dir / META_PROPERTIES).touch()
    (log_dirs[0] / REMOTE_OWNER).touch()


@pytest.mark.parametrize("dies_at", range(5))
def test_a_generation_of_another_ledger_has_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    log_dirs = [tmp_path / "a", tmp_path / "b"]
    fill(log_dirs, "first")
    assert set_aside(log_dirs, 1) == [one / FENCED / "1" for one in log_dirs]
    fill(log_dirs, "second")
    rename, left = Path.rename, iter(range(dies_at))

    def dying(path: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise Killed
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", dying)
        with pytest.raises(Killed):
            set_aside(log_dirs, 1)
    assert (log_dirs[0] / REMOTE_OWNER).exists()
    assert set_aside(log_dirs, 1) == [one / FENCED / "1-2" for one in log_dirs]
    for name, text in (("1", "first"), ("1-2", "second")):
        for log_dir in log_dirs:
            assert (log_dir / FENCED / name / PARTITION / "0.log").read_text() == text
