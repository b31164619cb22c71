"""Kinds of tests: what a unit test may not do, and that others may."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.kinds import kind_of

PROGRAM = [sys.executable, "-c", ""]


def test_a_unit_test_may_start_no_program(request: pytest.FixtureRequest) -> None:
    assert kind_of(request.node) == "unit"
    with pytest.raises(AssertionError, match=r"a unit test starts .*mark it with @pytest\.mark\.process"):
        subprocess.run(PROGRAM, check=False)


@pytest.mark.process
def test_who_says_that_it_starts_one_may(request: pytest.FixtureRequest) -> None:
    assert kind_of(request.node) == "process"
    subprocess.run(PROGRAM, check=True)
