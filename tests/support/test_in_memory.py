"""Where the files of a test lie goes by its kind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.in_memory import VARIABLE

pytestmark = pytest.mark.skipif(VARIABLE not in os.environ, reason="all files go to a disk in this run")


def in_memory(path: Path) -> bool:
    return path.is_relative_to(os.environ[VARIABLE])


def test_files_of_a_unit_test_are_in_memory(tmp_path: Path) -> None:
    assert in_memory(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with tempfile.NamedTemporaryFile() as file:
        assert in_memory(Path(file.name))
    assert in_memory(Path(os.environ["TMPDIR"]))


@pytest.mark.disk
def test_but_for_one_that_needs_a_disk(tmp_path: Path) -> None:
    assert not in_memory(tmp_path)
    assert not in_memory(Path(tempfile.gettempdir()))


@pytest.mark.process
def test_and_those_that_start_programs(tmp_path: Path) -> None:
    assert not in_memory(tmp_path)
    assert not in_memory(Path(tempfile.gettempdir()))
