"""Directories and files that the user may not read: one line says which, and what to do."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import PATIENCE_S

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PR_CAPBSET_DROP = 24
# What lets root read and write everything, and what drops that.
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
ADVICE = "Permission denied. Run this as its owner: the broker's user"


def _as_anybody() -> None:
    """Root, too, may then do only what a file's mode says, in the program that begins now."""
    if os.geteuid() == 0:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "PR_CAPBSET_DROP")


def refused(*arguments: str, code: int = 1) -> str:
    """Return the one line with which `mpbroker log` refuses."""
    done = subprocess.run(
        [sys.executable, "-m", "mpbroker", "log", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        preexec_fn=_as_anybody,
    )
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.returncode == code, done.stderr
    return done.stderr.removeprefix("mpbroker: ").removesuffix("\n")


def closed(path: Path) -> Path:
    path.chmod(0)
    return path


@pytest.mark.parametrize("command", [["verify"], ["verify", "--json"], ["dump"]])
def test_a_directory_that_is_not_yours(directory: Path, command: list[str]) -> None:
    closed(directory)
    try:
        said = refused(*command, str(directory))
    finally:
        directory.chmod(0o700)
    assert said.startswith(str(directory))
    assert said.endswith(ADVICE)


def test_a_partition_in_a_directory_that_is_not_yours(directory: Path) -> None:
    closed(directory)
    try:
        for command in (["verify"], ["dump"], ["repair", "--yes"]):
            said = refused(*command, str(directory / "t-0"))
            assert said.startswith(str(directory))
            assert said.endswith(ADVICE)
    finally:
        directory.chmod(0o700)


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "t-0",
        "t-0/00000000000000000000.log",
        "t-0/00000000000000000000.index",
        "t-0/00000000000000000000.timeindex",
        "t-0/leader-epoch-checkpoint",
        "t-0/partition.metadata",
    ],
)
def test_files_that_are_not_yours(directory: Path, name: str) -> None:
    path = directory / name
    if not path.exists():
        path.touch()
    mode = path.stat().st_mode
    closed(path)
    try:
        assert refused("verify", str(directory)) == f"{path}: {ADVICE}"
        if name.startswith("t-0"):
            said = refused("dump", str(path))
            assert said == f"{path}: {ADVICE}"
            said = refused("repair", "--yes", str(directory / "t-0"))
            assert said.startswith(str(path))
            assert said.endswith(ADVICE)
    finally:
        path.chmod(mode)


def test_a_lock_that_is_not_yours(directory: Path) -> None:
    lock = directory / ".lock"
    lock.touch()
    closed(lock)
    assert refused("repair", "--yes", str(directory / "t-0")) == (
        f"log.dirs: cannot use {directory}: Permission denied. Name a directory that this user may write, or "
        "run this as its owner"
    )
