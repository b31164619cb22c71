"""Each write without room, each sync and each read that fails, while it appends, rolls, stops and recovers;
each read also while readers, scrubber, cleaner, retention and moves are at work.

`fault_workload` says what must hold then. `FAULT_STRIDE=3` tries every third call.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.fault_serving import SERVING
from tests.support.forms import pick

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "support" / "native" / "fault.c"
STRIDE = os.environ.get("FAULT_STRIDE") or pick("the stride between calls that fail is", short="29", long="1")
# Of these phases each read is another one.
FEW = dict.fromkeys(
    ("scrub", "clean", "retain", "move"), pick("the stride between reads that fail is", short="9", long="1")
)
CASES = [
    ("produce", "write", errno.ENOSPC),
    ("produce", "write", errno.EIO),
    ("produce", "sync", errno.EIO),
    ("produce", "read", errno.EIO),
    ("stop", "write", errno.ENOSPC),
    ("stop", "write", errno.EIO),
    ("stop", "sync", errno.EIO),
    ("stop", "read", errno.EIO),
    ("recover", "write", errno.ENOSPC),
    ("recover", "write", errno.EIO),
    ("recover", "sync", errno.EIO),
    ("recover", "sync", errno.ENOSPC),
    ("recover", "read", errno.EIO),
    *((phase, "read", errno.EIO) for phase in SERVING),
]


@contextmanager
def built_faults() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "fault.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
        yield library


@pytest.fixture(scope="module")
def faults() -> Iterator[Path]:
    with built_faults() as library:
        yield library


@pytest.mark.parametrize(("phase", "kind", "error"), CASES)
def test_a_directory_that_fails_takes_nothing_along(
    faults: Path, tmp_path: Path, phase: str, kind: str, error: int
) -> None:
    try_calls(faults, tmp_path, phase, kind, error)


@pytest.mark.parametrize("phase", ["produce", "stop", "recover", *SERVING])
def test_a_single_read_that_fails_is_taken_for_nothing_else(faults: Path, tmp_path: Path, phase: str) -> None:
    """Check it as for an unreadable sector: later successful reads must not hide it."""
    try_calls(faults, tmp_path, phase, "read", errno.EIO, FAULT_ONCE="1", FAULT_STRIDE=FEW.get(phase, STRIDE))


@pytest.mark.parametrize("is_whole", [False, True])
def test_read_ahead_that_meets_a_bad_sector_does_not_hide_what_lies_in_front(
    faults: Path, tmp_path: Path, is_whole: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.bad_sector", str(tmp_path), str(int(is_whole))],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(faults)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["0", "1", "2", *2 * ["Input/output error"]], done.stderr


def test_write_back_that_fails_takes_the_directory_with_it(faults: Path, tmp_path: Path) -> None:
    """Check it, since no later sync reports the failure, and on ext4 the bytes are gone."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.lost_write_back", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(faults)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.splitlines() == ["1 56 True", "0 False"], done.stderr


def try_calls(faults: Path, tmp_path: Path, phase: str, kind: str, error: int, **more: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(faults), "FAULT_STRIDE": STRIDE}
    environment |= more
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.fault_workload", str(tmp_path), phase, kind, str(error)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3
