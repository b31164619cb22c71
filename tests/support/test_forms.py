"""Short and long forms, in runs of pytest on files made up for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.forms import rounds

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SOAKS = """
from tests.support.forms import each, long_only, pick

CUTS = pick("power cuts", short=2, long=1000)

@each("seed", short=[1], long=range(3))
def test_seeds(seed: int) -> None:
    print(f"seed {seed} of {CUTS}")

@long_only("needs the moon")
def test_moon() -> None:
    pass
"""


def run(directory: Path, *arguments: str) -> str:
    """Return what pytest says of the soaks in the directory, and of one test that is none."""
    (directory / "test_soaks.py").write_text(SOAKS)
    (directory / "test_plain.py").write_text("def test_plain() -> None: pass\n")
    plugin = ("-p", "tests.support.forms", "-p", "no:cacheprovider", "--strict-markers", "-rP")
    marker = ("-o", "markers=soak: of this test")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *plugin,
            *marker,
            "--rootdir",
            str(directory),
            str(directory),
            *arguments,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("how", [["-p", "no:xdist"], ["-n", "2"]], ids=["alone", "side by side"])
def test_the_short_form_says_what_it_leaves_out(tmp_path: Path, how: list[str]) -> None:
    said = run(tmp_path, *how)
    assert "seed 1 of 2\n" in said
    assert "2 passed" in said
    assert "in short form; make test-all runs all of it" in said
    assert "test_soaks.py: 1 of 3 values of seed; 2 of 1,000 power cuts; needs the moon\n" in said


def test_the_long_form_leaves_out_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, "-p", "no:xdist", "--long")
    assert [f"seed {seed} of 1000\n" in said for seed in range(3)] == [True] * 3
    assert "5 passed" in said
    assert "in short form" not in said


def test_soaks_are_marked(tmp_path: Path) -> None:
    said = run(tmp_path, "-p", "no:xdist", "-m", "not soak")
    assert "1 passed, 2 deselected" in said


def test_a_profile_with_a_fifth_of_the_examples_has_a_fifth_of_the_rounds() -> None:
    before = settings.get_current_profile_name()
    try:
        settings.load_profile("repeatable")
        assert [rounds(count) for count in (200, 1)] == [200, 1]
        settings.load_profile("fast")
        assert [rounds(count) for count in (200, 1)] == [40, 1]
    finally:
        settings.load_profile(before)
