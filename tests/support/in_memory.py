"""Keeps the files of tests in memory (pytest --in-memory), as `make test-fast` does.

Unit tests create and sync thousands of files. On a disk a quarter of their CPU time goes into that, and they
wait for little else. The few tests that need a disk are skipped; `make test` writes where `TMPDIR` says.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

PLACE = "/dev/shm"
NEEDED_BYTES = 2 << 30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--in-memory", action="store_true", help=f"keep the files of tests in {PLACE}")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Name a directory to this process and its workers, which is removed in the end."""
    if not config.getoption("--in-memory") or hasattr(config, "workerinput"):
        return
    free = shutil.disk_usage(PLACE).free
    if free < NEEDED_BYTES:
        text = f"--in-memory: {PLACE} has {free >> 20} MB free, not {NEEDED_BYTES >> 20}: files go to a disk"
        config.issue_config_time_warning(pytest.PytestConfigWarning(text), stacklevel=2)
        return
    made = tempfile.mkdtemp(prefix="tests-", dir=PLACE)
    os.chmod(made, 0o1777)  # noqa: PTH101 - as /tmp: some tests change their user
    os.environ["TMPDIR"] = tempfile.tempdir = made
    config.add_cleanup(lambda: shutil.rmtree(made, ignore_errors=True))
