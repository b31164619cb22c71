"""Worlds with a log process and a tier."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.log_rig import Rig
from tests.support.tier_world import MakeWorld, TierWorld


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[TierWorld] = []
    public = Path(tempfile.mkdtemp(dir="/dev/shm"))

    def build(partitions: int = 1, **options: object) -> TierWorld:
        directory = tmp_path / f"data{len(made)}"
        directory.mkdir()
        options = {"remote_log_storage_system_enable": True, **options}
        made.append(TierWorld(Rig(directory, public / f"region{len(made)}", options), partitions))
        return made[-1]

    yield build
    for one in made:
        one.broker.close()
        one.rig.close()
    public.rmdir()


@pytest.fixture
def world(worlds: MakeWorld) -> TierWorld:
    """Three sealed segments of one partition."""
    made = worlds()
    made.fill(4)
    return made
