"""Reading committed offsets beside an event loop, for a while after each look."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpbroker.ipc.topology import SharedMemory
from mpbroker.metrics.snapshot import LogSeen
from mpbroker.observe import offset_follower
from mpbroker.observe.offset_follower import OffsetFollower
from tests.support.snapshots import counts

LOOK = counts(1)


@pytest.fixture
def offsets(memory: SharedMemory, tmp_path: Path) -> Iterator[OffsetFollower]:
    made = OffsetFollower(memory.table(), (str(tmp_path),))
    yield made
    made.close()


async def test_what_groups_commit_is_read_on_between_looks(
    offsets: OffsetFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More may be committed than a look has patience for."""
    rounds: list[int] = []

    def follow(_logs: list[LogSeen]) -> Iterator[None]:
        rounds.append(len(rounds))
        yield

    monkeypatch.setattr(offsets.committed, "follow", follow)
    monkeypatch.setattr(offset_follower, "READ_ON_PAUSE_S", 0.0)
    await offsets.follow(LOOK)
    while len(rounds) < 4:
        await asyncio.sleep(0)
    offsets.close()


async def test_nothing_is_read_on_when_nobody_looks_any_more(
    offsets: OffsetFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_follower, "READ_ON_FOR_S", 0.0)
    await offsets.follow(LOOK)
    assert offsets._reading_on is not None
    await offsets._reading_on


async def test_reading_on_that_fails_is_told_and_begun_anew_by_the_next_look(
    offsets: OffsetFollower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_logs: list[LogSeen]) -> Iterator[None]:
        raise RuntimeError("no offsets")

    monkeypatch.setattr(offset_follower, "READ_ON_PAUSE_S", 0.0)
    await offsets.follow(LOOK)
    first = offsets._reading_on
    assert first is not None
    with monkeypatch.context() as broken:
        broken.setattr(offsets.committed, "follow", fails)
        await first
    await offsets.follow(LOOK)
    assert offsets._reading_on is not first
    assert "reading committed offsets stopped" in caplog.text
