"""The kernel tells of writes into directories."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from mpbroker.reading.follow import FileAlarm
from tests.support.polling import PATIENCE_S


def test_a_write_is_heard_of_and_not_forgotten(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    file = tmp_path / "two" / "file"
    file.touch()
    with closing(FileAlarm([tmp_path / "one", tmp_path / "two"])) as alarm:
        assert not alarm.wait(0)
        heard: list[bool] = []
        waiting = threading.Thread(target=lambda: heard.append(alarm.wait(PATIENCE_S)))
        waiting.start()
        file.write_bytes(b"x")
        waiting.join()
        assert heard == [True]
        assert alarm.wait(0)


@pytest.mark.parametrize("change", [Path.touch, Path.mkdir])
def test_files_that_come_are_heard_of(tmp_path: Path, change: object) -> None:
    assert callable(change)
    with closing(FileAlarm([tmp_path])) as alarm:
        change(tmp_path / "new")
        assert alarm.wait(0)


def test_a_directory_that_is_gone_is_an_error_and_nothing_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(FileNotFoundError, match="gone"):
        FileAlarm([tmp_path, tmp_path / "gone"])
    assert len(list(Path("/proc/self/fd").iterdir())) == before
