"""Keeps the files of unit tests in memory.

Unit tests create and sync thousands of files. On a disk a quarter of their CPU time goes into that, and they
wait for little else. One that needs a disk says so with `@pytest.mark.disk`. Tests of other kinds, and all
tests of `make test-all` (pytest --long), write where `TMPDIR` says.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PLACE = "/dev/shm"
NEEDED_BYTES = 2 << 30
# Names the directory of a run to the workers of pytest-xdist.
VARIABLE = "MPBROKER_TESTS_IN_MEMORY"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make a directory for this process and its workers, which is removed in the end."""
    if config.getoption("--long") or hasattr(config, "workerinput"):
        return
    free = shutil.disk_usage(PLACE).free
    if free < NEEDED_BYTES:
        text = f"{PLACE} has {free >> 20} MB free, not {NEEDED_BYTES >> 20}: files of unit tests go to a disk"
        config.issue_config_time_warning(pytest.PytestConfigWarning(text), stacklevel=2)
        return
    made = tempfile.mkdtemp(prefix="tests-", dir=PLACE)
    os.chmod(made, 0o1777)  # noqa: PTH101 - as /tmp: some tests change their user
    os.environ[VARIABLE] = made
    config.add_cleanup(lambda: _remove(made))


def _remove(made: str) -> None:
    os.environ.pop(VARIABLE, None)
    shutil.rmtree(made, ignore_errors=True)


def in_memory(item: pytest.Item) -> str | None:
    """Return the directory in memory that is for the files of this test, or None."""
    if item.get_closest_marker("unit") is None or item.get_closest_marker("disk") is not None:
        return None
    return os.environ.get(VARIABLE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Name the directory to `tempfile`, and to programs."""
    made = in_memory(item)
    if made is None:
        return (yield)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TMPDIR", made)
        patched.setattr(tempfile, "tempdir", made)
        return (yield)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return an empty directory, as pytest's own fixture does; what lies in memory is removed at once."""
    made = in_memory(request.node)
    if made is None:
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix=f"{tmp_path.name}-", dir=made))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
