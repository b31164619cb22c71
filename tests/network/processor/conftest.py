from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processor_rig import MakeRig, Rig


@pytest.fixture
def make_rig() -> Iterator[MakeRig]:
    with contextlib.ExitStack() as stack:

        def make(**how: int) -> Rig:
            made = Rig(**how)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def rig(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    """Make a processor's turn, with the module's `RIG` if it has one."""
    return make_rig(**getattr(request.module, "RIG", {}))


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Make a file of a hundred bytes."""
    path = tmp_path / "s.log"
    path.write_bytes(b"x" * 100)
    return path
