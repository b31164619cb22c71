"""Directories and files that the user may not read: one line says which, and what to do."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.own_cli import OwnCli

ADVICE = "Permission denied. Run this as its owner: the broker's user"
VERSION_3, THIS_THREAD = 0x20080522, 0
# What lets root read and write everything (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH).
ROOTS = 1 << 1 | 1 << 2


@contextmanager
def as_anybody() -> Iterator[None]:
    """Root, too, may then do only what a file's mode says (capset(2), in this thread)."""
    libc, header = ctypes.CDLL(None, use_errno=True), struct.pack("Ii", VERSION_3, THIS_THREAD)
    before = ctypes.create_string_buffer(24)
    libc.capget(header, before)
    effective, *others = struct.unpack("6I", before.raw)

    def take(capabilities: bytes) -> None:
        if libc.capset(header, capabilities):
            raise OSError(ctypes.get_errno(), "capset")

    take(struct.pack("6I", effective & ~ROOTS, *others))
    try:
        yield
    finally:
        take(before.raw)


def refused(*arguments: str, code: int = 1) -> str:
    """Return the one line with which `mpbroker log` refuses."""
    with as_anybody():
        said = OwnCli("nobody:1")("log", *arguments, code=code).err
    assert said.count("\n") == 1, said
    return said.removeprefix("mpbroker: ").removesuffix("\n")


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
