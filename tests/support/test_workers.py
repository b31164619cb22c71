"""Workers of pytest-xdist are forks of one process that has imported the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os
import pytest

with open("imported", "a") as file:
    file.write(f"{os.getpid()} ")

def test_ended_by_its_worker():
    os._exit(1)

@pytest.mark.parametrize("number", range(20))
def test_one_of_many(number):
    with open("ran", "a") as file:
        file.write(f"{os.getpid()} {os.environ['PYTEST_XDIST_WORKER']}\\n")
"""


@pytest.mark.process
def test_modules_are_imported_once_for_a_worker_and_for_one_that_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n1", "-p", "tests.support.workers", "test_them.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if "PYTEST" not in name}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 20 passed" in done.stdout, f"{done.stdout}{done.stderr}"
    assert "test_ended_by_its_worker" in done.stdout.split("short test summary")[1]
    (importer,) = (tmp_path / "imported").read_text().split()
    ran = dict(line.split() for line in (tmp_path / "ran").read_text().splitlines())
    assert importer not in ran
    assert list(ran.values()) == ["gw1"]
