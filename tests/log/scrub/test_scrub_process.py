"""The scrubber as a process, beside a log process: passes, what they find, and what is told of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import Order, ProcessContext
from mpbroker.ipc.table import PAYLOAD_BYTES, PartitionFlag, version_of
from mpbroker.ipc.topology import SCRUBBER
from mpbroker.log.scrub import scrub_process
from mpbroker.log.scrub.scrub_process import ASKED, BEGUN, ScrubbedDir, ScrubProcess
from mpbroker.log.scrub.scrubber import ColdFile
from mpbroker.storage.checkpoints import CheckpointCorrupt
from mpbroker.storage.damage import Scrubbed, damages_of, read_scrubbed
from mpbroker.storage.names import SCRUB, PartitionName
from mpbroker.supervisor.scrubbing import progress
from shm.table import SlotBusy, SlotTable
from tests.log.test_failing_calls import failing
from tests.support.flipped_bits import RECORDS, flip
from tests.support.full_disk import failing_with
from tests.support.log_rig import MakeRig, Rig
from tests.support.log_writer import make_batch
from tests.support.stepped_log import Broker


@dataclass
class World:
    """A log process with some segments of one partition, and a scrubber beside it."""

    broker: Broker
    process: ScrubProcess

    @property
    def rig(self) -> Rig:
        return self.broker.rig

    @property
    def directory(self) -> Path:
        return self.rig.directory / "t-0"

    @property
    def segments(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))

    @property
    def version(self) -> int:
        """Return the version in the partition's word of damage."""
        return version_of(self.process.damaged.load(self.broker.targets[0][0]), 1)

    @property
    def counted(self) -> int:
        return self.process.context.counters.get(Counter.COUNT_SCRUB_FINDINGS)

    def known(self) -> Scrubbed:
        return read_scrubbed(self.rig.directory)

    def scrub(self) -> None:
        """Asks for a pass, and does it."""
        words = self.rig.memory.words("scrub_asked")
        words.store(ASKED, words.load(ASKED) + 1)
        while (log_dir := self.process._due()) is not None:
            self.process.scrub(log_dir)
        assert words.load(BEGUN) == words.load(ASKED)

    def set_rate(self, bytes_per_s: int) -> None:
        context = self.process.context
        context.config = replace(context.config, log_scrub_max_bytes_per_second=bytes_per_s)

    def again(self) -> ScrubProcess:
        """A successor."""
        self.process = ScrubProcess(ProcessContext(SCRUBBER, self.rig.memory, self.rig.config))
        self.process.start()
        return self.process


@pytest.fixture
def world(rig: MakeRig) -> Iterator[World]:
    made = rig(log_scrub_max_bytes_per_second=1 << 40)
    broker = Broker(made, segment_bytes="1048576")
    for _ in range(14):
        broker.produce(bytes(make_batch(RECORDS, size=80_000)))
    found = World(broker, ScrubProcess(ProcessContext(SCRUBBER, made.memory, made.config)))
    assert len(found.segments) > 2
    found.process.start()
    yield found
    broker.close()


def test_a_pass_over_whole_segments(world: World) -> None:
    world.scrub()
    known = world.known()
    assert (known.damages, known.current, known.at) == ([], None, None)
    assert known.last is not None
    assert known.last.bytes == sum(path.stat().st_size for path in world.segments[:-1])
    counters = world.process.context.counters
    assert counters.get(Counter.COUNT_SCRUB_BYTES) == known.last.bytes
    assert counters.get(Counter.COUNT_SCRUB_BATCHES) == known.last.batches
    assert counters.get(Counter.COUNT_SCRUB_PASS_ENDED_MS) == known.last.ended_ms
    assert (world.version, world.counted) == (0, 0)


def test_what_is_found_is_told_and_remembered(world: World, caplog: pytest.LogCaptureFixture) -> None:
    path = world.segments[1]
    flip(path, 100)
    world.scrub()
    base = int(path.stem)
    (found,) = damages_of(world.directory)
    assert (found.base, found.position, found.first, found.end_offset) == (base, 0, base, base + RECORDS)
    assert (world.version, world.counted) == (1, 1)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert str(path.parent.parent) in said
    assert f"t-0/{path.name} is damaged from byte 0 to {found.end - 1}: " in said
    assert f"offsets {base} to {base + RECORDS - 1} cannot be read" in said
    world.again()
    # None that a handler knows by now, with other ranges.
    assert (world.version, world.counted) == (2, 1)
    world.process.tend()
    assert world.version == 2


def test_what_is_found_in_the_last_batch_is_told_at_once(world: World) -> None:
    path = world.segments[1]
    flip(path, path.stat().st_size - 1)
    world.scrub()
    assert (world.version, world.counted) == (1, 1)


@pytest.mark.parametrize("at", [100, -1])
def test_what_is_read_more_than_once_is_passed_once(world: World, at: int) -> None:
    path = world.segments[1]
    flip(path, at % path.stat().st_size)
    world.scrub()
    last = world.known().last
    assert last is not None
    assert last.bytes == sum(path.stat().st_size for path in world.segments[:-1])
    assert world.process.context.counters.get(Counter.COUNT_SCRUB_BYTES) > last.bytes


def test_what_is_found_good_again_is_forgotten(world: World) -> None:
    flip(world.segments[1], 100)
    flip(world.segments[0], 100)
    world.scrub()
    assert world.counted == 2
    flip(world.segments[1], 100)
    world.scrub()
    assert [one.base for one in damages_of(world.directory)] == [0]
    assert world.counted == 1
    assert world.version > 1
    flip(world.segments[0], 100)
    world.scrub()
    assert (damages_of(world.directory), world.version, world.counted) == ([], 0, 0)


@pytest.mark.parametrize("how", ["gone", "replaced", "repaired in place", "partition"])
def test_what_is_about_a_file_that_is_no_more_is_forgotten(world: World, how: str) -> None:
    path = world.segments[1]
    flip(path, 100)
    world.scrub()
    if how == "gone":
        path.unlink()
    elif how == "replaced":
        other = path.with_name("other")
        other.write_bytes(path.read_bytes())
        other.rename(path)
    elif how == "repaired in place":
        data, was_ns = path.read_bytes(), path.stat().st_mtime_ns
        # The kernel's clock for files goes in steps of some milliseconds.
        while path.stat().st_mtime_ns == was_ns:
            path.write_bytes(data)
    else:
        path.parent.rename(world.rig.directory / "t-0.abc-delete")
    world.process.tend()
    assert (world.known().damages, world.version, world.counted) == ([], 0, 0)


def test_what_is_about_a_file_that_cannot_be_looked_at_stays(world: World) -> None:
    """Check that findings stay and the scrubber lives: a disk with damage may well lose more."""
    path = world.segments[1]
    flip(path, 100)
    world.scrub()
    with failing("stat", path):
        world.process.tend()
        world.again()
    assert [one.base for one in damages_of(world.directory)] == [int(path.stem)]
    assert (world.version, world.counted) == (2, 1)


def test_a_partition_that_does_not_say_which_one_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that it is reported, and that its damage is still refused."""
    flip(world.segments[1], 100)
    world.scrub()
    with monkeypatch.context() as disk:
        disk.setattr(scrub_process, "read_topic_id", failing_with(errno.EIO))
        world.process.tend()
        assert world.version == 1
        world.again()
        assert world.version == 1
        world.process.scrub(world.process.dirs[0])
        assert world.version == 1
        assert f"{world.directory} cannot be scrubbed: [Errno 5]" in caplog.text
    flip(world.segments[1], 100)
    world.scrub()
    assert world.version == 0


@pytest.fixture(name="many")
def _many(rig: MakeRig) -> Iterator[World]:
    made = rig(log_scrub_max_bytes_per_second=1 << 40)
    broker = Broker(made, 3)
    found = World(broker, ScrubProcess(ProcessContext(SCRUBBER, made.memory, made.config)))
    found.process.start()
    yield found
    broker.close()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines since the last call."""
    found = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    caplog.clear()
    return found


def test_an_error_of_all_partitions_is_said_once(
    many: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Check a disk that reads nothing any more, in two passes; and a damage that each partition has alone."""

    def is_corrupt(directory: Path) -> bytes:
        raise CheckpointCorrupt(f"{directory}: no topic id")

    monkeypatch.setattr(scrub_process, "read_topic_id", failing_with(errno.EIO))
    for _ in range(2):
        many.scrub()
        (line,) = errors(caplog)
        first = many.rig.directory / "__cluster_metadata-0"
        assert line.startswith(f"{first} cannot be scrubbed: [Errno 5] Input/output error: ")
        assert line.endswith(f". Others in {many.rig.directory} with this error are not listed")
    monkeypatch.setattr(scrub_process, "read_topic_id", is_corrupt)
    many.scrub()
    partitions = [Path(line.split()[0]).name for line in errors(caplog)]
    assert partitions == ["__cluster_metadata-0", "t-0", "t-1", "t-2"]


def test_a_directory_that_has_failed_is_left_alone(
    many: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Check a failure amid a pass, which the log process reports; and that a scrub asked for later ends."""
    looked_at: list[str] = []

    def fails(directory: Path) -> bytes:
        looked_at.append(directory.name)
        many.broker.process.turn.storage_failed(0, errno.EROFS)
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(directory))

    monkeypatch.setattr(scrub_process, "read_topic_id", fails)
    with caplog.at_level("INFO"):
        many.scrub()
        before = (many.rig.directory / SCRUB).stat()
        many.scrub()
    assert looked_at == ["__cluster_metadata-0"]
    assert not caplog.records
    # The pass began before the failure.
    assert many.known().current is not None
    assert (many.rig.directory / SCRUB).stat() == before


def test_the_segment_that_is_written_is_left_alone(world: World) -> None:
    flip(world.segments[-1], 100)
    world.scrub()
    assert world.known().damages == []


def test_a_pass_goes_on_after_a_restart(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(world.segments[0], 100)
    read: list[str] = []
    whole = ColdFile.read

    def seen(self: ColdFile, position: int, count: int) -> bytes:
        read.append(self.path.name)
        if len(set(read)) == 3:
            world.rig.memory.words("orders").store(SCRUBBER, Order.STOP)
        return whole(self, position, count)

    monkeypatch.setattr(ColdFile, "read", seen)
    with pytest.raises(scrub_process.Abandoned):
        world.scrub()
    world.process.stop()
    world.rig.memory.words("orders").store(SCRUBBER, Order.RUN)
    known = world.known()
    assert known.current is not None
    assert known.at is not None
    assert known.at.base == int(world.segments[2].stem)
    read.clear()
    world.again()._first_at = 0
    log_dir = world.process._due()
    assert log_dir is not None
    world.process.scrub(log_dir)
    # Not what was done already.
    assert read[0] >= world.segments[2].name
    assert [one.base for one in world.known().damages] == [0]
    last = world.known().last
    assert last is not None
    assert last.began_ms == known.current.began_ms


def test_passes_come_at_their_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    process = world.process
    assert process._due() is None, "not right after the start"
    process._first_at = 0
    log_dir = process._due()
    assert log_dir is not None
    process.scrub(log_dir)
    assert process._due() is None
    now = scrub_process.wall_ms()
    monkeypatch.setattr(scrub_process, "wall_ms", lambda: now + 604_800_000 - 60_000)
    assert process._due() is None
    monkeypatch.setattr(scrub_process, "wall_ms", lambda: now + 604_800_001)
    assert process._due() is log_dir
    # A clock that was set back.
    monkeypatch.setattr(scrub_process, "wall_ms", lambda: now - 86_400_000)
    assert process._due() is log_dir


def test_a_pass_is_told_from_its_first_moment_to_its_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it also while the pass counts its work, and if it finds nothing."""
    seen = []
    counting, ending = ScrubbedDir.partitions, ScrubProcess._end

    def look() -> None:
        now = progress(world.rig.memory)
        seen.append((now["running"], now["pass_bytes"], now["pass_total_bytes"]))

    def count(log_dir: ScrubbedDir) -> dict[str, PartitionName]:
        look()
        return {name: found for name, found in counting(log_dir).items() if len(seen) > 2}

    def end(process: ScrubProcess, *arguments: Any) -> None:
        look()
        ending(process, *arguments)
        look()

    monkeypatch.setattr(ScrubbedDir, "partitions", count)
    monkeypatch.setattr(ScrubProcess, "_end", end)
    for _ in range(2):
        world.scrub()
    last = world.known().last
    assert last is not None
    assert seen == [
        *((True, 0, 0) for _ in range(4)),
        (True, last.bytes, last.bytes),
        (True, 0, 0),
    ]
    assert progress(world.rig.memory)["running"] is False


def test_what_was_asked_for_is_done_by_a_successor(world: World) -> None:
    """Check it with several directories: all but the first wait in memory."""
    world.scrub()
    words = world.rig.memory.words("scrub_asked")
    words.store(ASKED, words.load(ASKED) + 1)
    assert world.process._due() is not None
    process = world.again()
    process._first_at = 0
    log_dir = process._due()
    assert log_dir is not None, "although the last one has just been"
    process.scrub(log_dir)
    assert process._due() is None


def test_there_is_an_off_switch(world: World) -> None:
    world.process._first_at = 0
    world.set_rate(0)
    assert world.process._due() is None
    world.scrub()
    assert world.known().last is None


def test_the_rate_holds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []
    monkeypatch.setattr(scrub_process.time, "monotonic", lambda: now[0])

    def wait(_: object, timeout_ms: int) -> None:
        slept.append(timeout_ms)
        now[0] += timeout_ms / 1000

    monkeypatch.setattr(world.process.context, "wait", wait)
    world.set_rate(1_000_000)
    world.scrub()
    last = world.known().last
    assert last is not None
    assert last.bytes / 1e6 - 0.5 <= now[0] - 100 <= last.bytes / 1e6 + 0.5
    assert max(slept) <= 300


def test_a_file_of_its_own_that_is_damaged_is_no_harm(world: World, caplog: pytest.LogCaptureFixture) -> None:
    flip(world.segments[1], 100)
    world.scrub()
    assert world.version == 1
    flip(world.rig.directory / SCRUB, 40)
    with pytest.raises(CheckpointCorrupt):
        world.known()
    world.again()
    assert "it is scrubbed again" in caplog.text
    assert (world.version, world.counted) == (0, 0)
    world.scrub()
    assert world.counted == 1


def test_a_partition_that_is_not_open_waits(world: World) -> None:
    flip(world.segments[1], 100)
    world.scrub()
    state = next(log for log in world.broker.process.manager.logs.values() if log.topic == "t").state
    state.flags = PartitionFlag.PARTITION_OFFLINE
    state.publish(world.rig.memory.table())
    world.again()
    assert (world.version, world.counted) == (0, 1)
    state.flags = PartitionFlag.PARTITION_LIVE
    state.publish(world.rig.memory.table())
    world.process._places_until = 0
    world.process.tend()
    assert world.version > 0


def test_a_successor_clears_words_that_nothing_stands_behind(world: World) -> None:
    world.process.damaged.store(7, 5 << 32 | 3)
    world.again()
    assert world.process.damaged.load(7) == 0


class Busy(SlotTable):
    """Each slot is being written the first time that somebody looks."""

    def __init__(self, block: memoryview, slots: int, payload_bytes: int) -> None:
        super().__init__(block, slots, payload_bytes)
        self.met: set[int] = set()

    def read(self, slot: int) -> bytes:
        if slot not in self.met:
            self.met.add(slot)
            raise SlotBusy(f"slot {slot} is being written")
        return super().read(slot)


def test_a_partition_that_is_being_written_is_looked_at_again(world: World) -> None:
    flip(world.segments[1], 100)
    world.scrub()
    assert world.version == 1
    process = world.process
    memory = world.rig.memory
    process.table = Busy(memory.public.block("table"), memory.sizes.partition_slots, PAYLOAD_BYTES)
    process._places_until = 0
    process.tend()
    assert process.table.met
    assert world.version == 1, "it is refused as before"
