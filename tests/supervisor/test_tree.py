"""Runs the cases in a process of their own: the tree may not fork beside the threads of other tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process


@pytest.mark.parametrize("cases", ["tree_cases.py", "roll_cases.py"])
def test_the_tree_in_a_process_without_threads(cases: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__).with_name(cases))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
