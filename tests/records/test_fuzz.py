"""Damaged batches end in an error of this package, never in a read outside of the bytes given."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROUNDS = 30_000


def test_damaged_batches_between_guard_pages() -> None:
    program = Path(__file__).with_name("guarded_fuzz.py")
    done = subprocess.run(
        [sys.executable, str(program), str(ROUNDS)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(program.parents[2])},
    )
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < ROUNDS
