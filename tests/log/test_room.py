"""Room ahead: zeros behind the records of a segment that grows fast, which nobody takes for records."""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mpbroker.inspection.dump import entries
from mpbroker.inspection.segment import inspect
from mpbroker.ipc.table import PartitionFlag
from mpbroker.log.journaling import give_room_back, use_room
from mpbroker.log.reader import Bound, segment_bytes
from mpbroker.log.state import PartitionState
from tests.log.rig import Rig, ensure
from tests.log.test_log_dirs import Node, wait_for_helper
from tests.log.test_turn import settle

AHEAD = 64 << 10
# The first round leaves a sixteenth of it there, the others are much at a time.
MUCH = 6_000


class Roomy(Node):
    """One partition that gets much at a time."""

    def start(self, **options: object) -> None:
        self.boot(log_journal_direct_bytes=16_000, log_room_ahead_bytes=AHEAD, **options)
        (self.target,) = self.open(ensure(1))
        assert self.process is not None
        wait_for_helper(self.process)
        self.process.manager.journals.use()

    @property
    def state(self) -> PartitionState:
        assert self.process is not None
        return self.process.manager.logs[self.target.slot].state

    @property
    def directory(self) -> Path:
        return self.dirs[0] / "t-0"

    def segment(self, base: int = 0) -> Path:
        return self.directory / f"{base:020}.log"

    @property
    def zeros(self) -> int:
        """How many bytes the active segment has behind its records."""
        size = self.segment(self.state.segment_base).stat().st_size
        return size - self.state.size

    def fill(self, batch: Callable[..., bytearray], rounds: int = 12, size: int = MUCH) -> None:
        for _ in range(rounds):
            assert self.produce(self.target, batch(1, size=size)) == [0]

    def set_segment_bytes(self, count: int) -> None:
        assert self.process is not None
        log = self.process.manager.logs[self.target.slot]
        log.apply_config(msgspec.structs.replace(log.config, segment_bytes=count))


@pytest.fixture
def node(rig: Callable[..., Rig], tmp_path: Path) -> Iterator[Callable[..., Roomy]]:
    made: list[Roomy] = []

    def build(**options: object) -> Roomy:
        made.append(Roomy(rig, tmp_path))
        made[-1].start(**options)
        return made[-1]

    yield build
    for one in made:
        one.crash()


Make = Callable[..., Roomy]
MakeBatch = Callable[..., bytearray]


def test_a_segment_that_gets_much_has_room_and_is_synced_itself(node: Make, batch: MakeBatch) -> None:
    n = node()
    n.fill(batch)
    assert n.process is not None
    assert 0 < n.zeros <= AHEAD
    with n.segment().open("rb") as file:
        file.seek(n.state.size)
        assert not file.read().strip(b"\0")
    before = n.state.synced
    n.fill(batch, 1)
    assert n.state.synced == before + 1, "by way of the journal alone it would not be synced"
    n.fill(batch, 1, size=50)
    assert n.state.synced == before + 1, "what is little goes to the journal"


def test_there_are_never_more_zeros_than_records(node: Make, batch: MakeBatch) -> None:
    n = node()
    n.fill(batch, 1, size=AHEAD // 16 - 500)
    assert n.zeros == 0
    for _ in range(40):
        n.fill(batch, 1)
        assert n.zeros <= min(n.state.size, AHEAD)


def test_a_partition_that_gets_little_has_none(node: Make, batch: MakeBatch) -> None:
    n = node()
    n.fill(batch, 100, size=100)
    assert n.zeros == 0


def test_where_it_is_switched_off_there_is_none(node: Make, batch: MakeBatch) -> None:
    n = node()
    assert n.process is not None
    use_room(n.process.turn, 0)
    n.fill(batch)
    assert n.zeros == 0


def test_a_disk_that_is_nearly_full_gives_none_and_refuses_nothing(node: Make, batch: MakeBatch) -> None:
    n = node()
    assert n.process is not None
    use_room(n.process.turn, AHEAD, 1 << 62)
    n.fill(batch)
    assert n.zeros == 0
    assert n.rig.partition(n.target.slot).flags == PartitionFlag.PARTITION_LIVE


def test_a_full_disk_gets_it_back_before_anything_is_refused(
    node: Make, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch that Python appends: the write fails for as long as the zeros are there."""
    n = node()
    n.fill(batch)
    assert n.process is not None
    assert n.zeros > 0
    n.process.turn.for_tests(by_reference=True)
    write, refused = os.pwrite, []

    def full(fd: int, data: bytes, at: int) -> int:
        if n.zeros > 0:
            refused.append(at)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data, at)

    monkeypatch.setattr("mpbroker.log.append.os.pwrite", full)
    monkeypatch.setattr("mpbroker.log.append.os.ftruncate", lambda *_: None)
    n.fill(batch, 1)
    assert len(refused) == 1


def test_what_is_refused_for_want_of_room_has_none_ahead(node: Make, batch: MakeBatch) -> None:
    """The limit of a file's size plays the full disk."""
    n = node()
    n.fill(batch)
    assert n.zeros > 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n.state.size + 1_000, before[1]))
    try:
        assert n.produce(n.target, batch(1, size=MUCH)) == [56]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert n.zeros == 0
    assert n.rig.partition(n.target.slot).flags == PartitionFlag.PARTITION_LIVE
    n.fill(batch, 1)
    assert n.end_of(n.target) == 13


def test_a_roll_gives_it_back_at_once(node: Make, batch: MakeBatch) -> None:
    n = node()
    n.fill(batch)
    assert n.zeros > 0
    end, size = n.state.log_end, n.state.size
    n.set_segment_bytes(n.state.size)
    n.rig.job([((n.target.slot, n.target.slot_generation, 5), batch(1, size=MUCH))])
    assert n.process is not None
    n.process.work(0)
    assert n.state.segment_base == end
    assert n.segment().stat().st_size == size
    settle(n.process)
    assert n.segment().stat().st_size == size


def test_a_clean_stop_leaves_records_alone(node: Make, batch: MakeBatch) -> None:
    n = node()
    n.fill(batch)
    assert n.zeros > 0
    size = n.state.size
    n.stop()
    assert n.segment().stat().st_size == size
    n.start()
    assert n.end_of(n.target) == 12


def test_a_crash_leaves_zeros_that_the_next_start_cuts(
    node: Make, batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    n = node()
    n.fill(batch)
    size = n.state.size
    had = n.segment().read_bytes()
    assert len(had) > size
    n.crash()
    with caplog.at_level(logging.INFO, "mpbroker"):
        n.start()
    assert n.end_of(n.target) == 12
    assert n.segment().read_bytes() == had[:size]
    assert f"to {size} bytes: zeros lie behind" in caplog.text
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING and "cut" in r.message]


def test_when_the_log_process_alone_died_its_successor_cuts_them(node: Make, batch: MakeBatch) -> None:
    n = node()
    n.fill(batch)
    size = n.state.size
    assert n.zeros > 0
    n.succeed()
    (n.target,) = n.open(ensure(1))
    assert n.segment().stat().st_size == size
    n.fill(batch, 1)
    assert n.end_of(n.target) == 13


def test_who_does_not_use_it_gives_it_back(node: Make, batch: MakeBatch) -> None:
    n = node()
    n.fill(batch)
    assert n.process is not None
    assert n.zeros > 0
    assert not give_room_back(n.process.turn, of_idle=True), "it has grown since it got its room"
    assert give_room_back(n.process.turn, of_idle=True)
    assert n.zeros == 0
    n.fill(batch, 3)
    assert n.zeros > 0


def test_a_deleted_partition_leaves_nothing_behind(node: Make, batch: MakeBatch) -> None:
    n = node()
    n.fill(batch)
    assert n.process is not None
    n.process.turn.detach(n.state)
    assert not give_room_back(n.process.turn)


def test_records_and_zeros_are_written_at_the_same_time(node: Make, batch: MakeBatch) -> None:
    """However fast it is appended to: every record is where it was, and only zeros lie behind them."""
    n = node()
    assert n.process is not None
    sizes = [MUCH, 3_000, 11_000, 2_500]
    for i in range(400):
        if i % 50 == 49:
            n.set_segment_bytes(max(n.state.size, 20_000))
        elif i % 50 == 0:
            n.set_segment_bytes(1 << 30)
        n.rig.job([((n.target.slot, n.target.slot_generation, 5), batch(1, size=sizes[i % 4]))])
        n.process.work(0)
    settle(n.process)
    assert [r.results[0].error for r in n.rig.replies()] == [0] * 400
    expected = 0
    bases = sorted(int(path.stem) for path in n.directory.glob("*.log"))
    assert len(bases) > 3
    for base in bases:
        found = inspect(n.segment(base), is_last=base == bases[-1])
        assert found.findings == []
        assert found.base == expected
        expected = found.next_offset
    assert expected == 400


def test_who_looks_from_outside_sees_records_alone(node: Make, batch: MakeBatch) -> None:
    n = node()
    n.fill(batch)
    assert n.zeros > 0
    size = n.state.size
    found = inspect(n.segment(), is_last=True)
    assert (found.findings, found.size, found.end, found.records) == ([], size, size, 12)
    assert inspect(n.segment(), is_last=False).findings, "a sealed segment has no room"
    assert len(list(entries(n.segment(), with_records=False))) == 12
    assert segment_bytes(n.directory, Bound(12, 0, size)) == size
