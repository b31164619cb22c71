"""The scrubber: what it finds in segments, what it remembers, what its words say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mpbroker.ipc.counters import Counter
from mpbroker.ipc.process import Order, ProcessContext
from mpbroker.ipc.table import PAYLOAD_BYTES, PartitionFlag, damage_of
from mpbroker.ipc.topology import SCRUBBER
from mpbroker.log import scrub_process
from mpbroker.log.checkpoints import CheckpointCorrupt
from mpbroker.log.damage import Damage, Place, Scrubbed, damages_of, read_scrubbed
from mpbroker.log.epochs import Epochs
from mpbroker.log.names import SCRUB, PartitionName, segment_name
from mpbroker.log.scrub import ColdFile, SegmentReplaced, SegmentScrub
from mpbroker.log.scrub_process import ASKED, BEGUN, ScrubbedDir, ScrubProcess
from mpbroker.records.batch import BATCH_HEADER_BYTES, LEADER_EPOCH_AT
from mpbroker.supervisor.scrubbing import progress
from shm.table import SlotBusy, SlotTable
from tests.log.conftest import Writer
from tests.log.rig import Rig
from tests.log.test_failing_calls import failing
from tests.log.test_turn import Broker

RECORDS = 3


def flip(path: Path, at: int, mask: int = 0x10) -> None:
    """As a disk does it: the file's times stay."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ mask]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture
def segment(writer: Callable[..., Writer]) -> tuple[Path, int, list[int]]:
    """A sealed segment of ten batches, the base of the next one, and where the batches begin."""
    made = writer(segment_bytes="1048576")
    starts = []
    for _ in range(10):
        starts.append(made.log.state.size)
        made.append(RECORDS)
    path = made.log.directory / segment_name(0)
    for fd in made.log.roll():
        os.close(fd)
    made.log.close_files()
    return path, 10 * RECORDS, starts


def scrubbed(
    path: Path, next_base: int, place: Place | None = None, epochs: Epochs = ((0, 0),)
) -> list[Damage]:
    file = ColdFile(path)
    try:
        place = place or Place(path.parent.name, int(path.stem), file.identity)
        for _ in SegmentScrub(file, place, next_base, lambda: 7, epochs).run():
            pass
        assert place.position == file.identity.size
        return place.found
    finally:
        file.close()


def shown(found: list[Damage]) -> list[tuple[int, int, int, int]]:
    return [(one.position, one.end, one.first, one.behind) for one in found]


def test_a_whole_segment_has_no_damage(segment: tuple[Path, int, list[int]]) -> None:
    assert scrubbed(*segment[:2]) == []


@pytest.mark.parametrize("at", [8, 11, 16, 17, 23, 57, BATCH_HEADER_BYTES + 3])
@pytest.mark.parametrize("batch", [0, 4, 9])
def test_one_bit_costs_one_batch(segment: tuple[Path, int, list[int]], batch: int, at: int) -> None:
    """Its length, magic, CRC, attributes, deltas, count and records."""
    path, end, starts = segment
    flip(path, starts[batch] + at)
    ends = [*starts[1:], path.stat().st_size]
    assert shown(scrubbed(path, end)) == [
        (starts[batch], ends[batch], batch * RECORDS, (batch + 1) * RECORDS)
    ]


@pytest.mark.parametrize("bit", [0, 1, 2, 5, 20, 40, 63])
@pytest.mark.parametrize("batch", [0, 4, 9])
def test_a_wrong_base_offset_is_found(segment: tuple[Path, int, list[int]], batch: int, bit: int) -> None:
    """No CRC covers it: those around it tell. It costs no more than itself and, where it cannot be told which
    one is wrong, its neighbour.
    """
    path, end, starts = segment
    flip(path, starts[batch] + 7 - bit // 8, 1 << bit % 8)
    (found,) = scrubbed(path, end)
    ends = [*starts[1:], path.stat().st_size]
    assert found.position <= starts[batch] < found.end
    assert found.first <= batch * RECORDS < (batch + 1) * RECORDS <= found.behind
    assert found.position == starts[batch]
    assert found.end == ends[batch]


@pytest.mark.parametrize("bit", [0, 7, 30, 31])
@pytest.mark.parametrize("batch", [0, 4, 9])
def test_a_wrong_leader_epoch_is_found(segment: tuple[Path, int, list[int]], batch: int, bit: int) -> None:
    """No CRC covers it either."""
    path, end, starts = segment
    behind = path.read_bytes()[: starts[1]]
    path.with_name(segment_name(end)).write_bytes(end.to_bytes(8, "big") + behind[8:])
    flip(path, starts[batch] + LEADER_EPOCH_AT + 3 - bit // 8, 1 << bit % 8)
    ends = [*starts[1:], path.stat().st_size]
    assert shown(scrubbed(path, end)) == [
        (starts[batch], ends[batch], batch * RECORDS, (batch + 1) * RECORDS)
    ]


def test_epochs_that_no_batch_has_are_not_believed(
    segment: tuple[Path, int, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    assert scrubbed(*segment[:2], epochs=((4, 0),)) == []
    assert (
        f"leader-epoch-checkpoint is not believed: for offset {RECORDS - 1} it says epoch 4, " in caplog.text
    )


def test_epochs_go_by_offsets(segment: tuple[Path, int, list[int]]) -> None:
    path, end, starts = segment
    for batch in range(4, 10):
        flip(path, starts[batch] + LEADER_EPOCH_AT + 3, 2)
    epochs = ((0, 0), (2, 4 * RECORDS), (5, end))
    assert scrubbed(path, end, epochs=epochs) == []
    flip(path, starts[3] + LEADER_EPOCH_AT + 3, 2)
    flip(path, starts[7] + LEADER_EPOCH_AT + 3, 2)
    assert [one.first // RECORDS for one in scrubbed(path, end, epochs=epochs)] == [3, 7]
    # What lies before all that are known, and what is of none, is left alone.
    assert scrubbed(path, end, epochs=((0, 8 * RECORDS), (2, 9 * RECORDS))) != []
    assert scrubbed(path, end, epochs=((2, 9 * RECORDS),)) == []


@pytest.mark.parametrize("start", [4 * RECORDS + 1, 5 * RECORDS - 1])
def test_the_epoch_of_the_batch_in_which_the_log_starts_is_known(
    segment: tuple[Path, int, list[int]], start: int
) -> None:
    """It began before the checkpoint's first entry, which moves on with the log start offset."""
    path, end, starts = segment
    epochs = ((0, start),)
    assert scrubbed(path, end, epochs=epochs) == []
    flip(path, starts[3] + LEADER_EPOCH_AT + 3, 4)
    assert scrubbed(path, end, epochs=epochs) == [], "nobody can ask for it any more"
    flip(path, starts[4] + LEADER_EPOCH_AT + 3, 4)
    assert [one.first for one in scrubbed(path, end, epochs=epochs)] == [4 * RECORDS]


def test_a_checkpoint_is_believed_for_a_batch_that_agrees(segment: tuple[Path, int, list[int]]) -> None:
    """Not for one that it says nothing of: a flipped bit in it would be damage of all that lies behind."""
    path, end, starts = segment
    behind = path.read_bytes()[: starts[1]]
    path.with_name(segment_name(end)).write_bytes(end.to_bytes(8, "big") + behind[8:])
    assert scrubbed(path, end, epochs=((4, 4 * RECORDS),)) == []
    assert scrubbed(path, end, epochs=((0, 4 * RECORDS),)) == []


def test_behind_the_last_whole_batch_all_is_damaged(segment: tuple[Path, int, list[int]]) -> None:
    path, end, starts = segment
    os.truncate(path, path.stat().st_size - 5)
    assert shown(scrubbed(path, end)) == [(starts[9], path.stat().st_size, 9 * RECORDS, end)]


def test_two_damages_are_two(segment: tuple[Path, int, list[int]]) -> None:
    path, end, starts = segment
    flip(path, starts[2] + 70)
    flip(path, starts[6] + 70)
    assert [one.first for one in scrubbed(path, end)] == [2 * RECORDS, 6 * RECORDS]


def test_gaps_of_compaction_are_none(writer: Callable[..., Writer]) -> None:
    made = writer(segment_bytes="1048576")
    for _ in range(4):
        made.append(RECORDS)
        made.log.state.note_batch(made.log.state.log_end + 4, made.log.state.size, 0, 0)
    path = made.log.directory / segment_name(0)
    made.log.close_files()
    assert scrubbed(path, made.log.state.log_end) == []


def test_what_is_read_wrongly_once_is_no_damage(
    segment: tuple[Path, int, list[int]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, end, starts = segment
    whole = ColdFile.read

    def read(self: ColdFile, position: int, count: int) -> bytes:
        data = bytearray(whole(self, position, count))
        if position <= starts[3] + 80 < position + count:
            data[starts[3] + 80 - position] ^= 1
        return bytes(data)

    monkeypatch.setattr(ColdFile, "read", read)
    assert scrubbed(path, end) == []
    assert "was not what is on the disk" in caplog.text


def test_a_segment_that_is_replaced_meanwhile_has_no_finding(segment: tuple[Path, int, list[int]]) -> None:
    path, end, starts = segment
    flip(path, starts[1] + 70)
    file = ColdFile(path)
    work = SegmentScrub(file, Place("t-0", 0, file.identity), end, lambda: 7).run()
    path.rename(path.with_name("other"))
    path.write_bytes(b"")
    with pytest.raises(SegmentReplaced):
        list(work)
    file.close()


def test_what_compaction_has_just_put_in_place_reaches_beyond_the_next_one(
    segment: tuple[Path, int, list[int]],
) -> None:
    path, _, _ = segment
    path.with_name(segment_name(6)).touch()
    (found,) = scrubbed(path, 6)
    assert "reach beyond 6" in found.reason
    path.with_name(path.name + ".swap").touch()
    assert scrubbed(path, 6) == []
    path.with_name(path.name + ".swap").unlink()
    path.with_name(segment_name(6)).unlink()
    assert scrubbed(path, 6) == []


def test_a_pass_goes_on_within_a_segment(segment: tuple[Path, int, list[int]]) -> None:
    path, end, starts = segment
    flip(path, starts[1] + 70)
    flip(path, starts[8] + 70)
    file = ColdFile(path)
    place = Place("t-0", 0, file.identity, starts[5], 5 * RECORDS)
    file.close()
    assert [one.first for one in scrubbed(path, end, place)] == [8 * RECORDS]


# ---- the process ----


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
        """Of the partition's word of damage."""
        return damage_of(self.process.damaged.load(self.broker.targets[0][0]), 1)

    @property
    def counted(self) -> int:
        return self.process.context.counters.get(Counter.COUNT_SCRUB_FINDINGS)

    def known(self) -> Scrubbed:
        return read_scrubbed(self.rig.directory)

    def scrub(self) -> None:
        """Asks for a pass, and does it."""
        words = self.rig.memory.words("scrub_asked")
        words.store(ASKED, words.load(ASKED) + 1)
        while (home := self.process._due()) is not None:
            self.process.scrub(home)
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
def world(rig: Callable[..., Rig], batch: Callable[..., bytearray]) -> Iterator[World]:
    made = rig(log_scrub_max_bytes_per_second=1 << 40)
    broker = Broker(made, segment_bytes="1048576")
    for _ in range(14):
        broker.produce(bytes(batch(RECORDS, size=80_000)))
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
    assert (found.base, found.position, found.first, found.behind) == (base, 0, base, base + RECORDS)
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


def test_what_is_about_a_file_that_cannot_be_looked_at_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with damaged records may well lose more: its scrubber would die of it again and again."""
    path = world.segments[1]
    flip(path, 100)
    world.scrub()
    with monkeypatch.context() as disk:
        asked = failing("stat", path, disk)
        world.process.tend()
        world.again()
        assert asked
    assert [one.base for one in damages_of(world.directory)] == [int(path.stem)]
    assert (world.version, world.counted) == (2, 1)


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
    home = world.process._due()
    assert home is not None
    world.process.scrub(home)
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
    home = process._due()
    assert home is not None
    process.scrub(home)
    assert process._due() is None
    now = scrub_process.wall_ms()
    monkeypatch.setattr(scrub_process, "wall_ms", lambda: now + 604_800_000 - 60_000)
    assert process._due() is None
    monkeypatch.setattr(scrub_process, "wall_ms", lambda: now + 604_800_001)
    assert process._due() is home
    # A clock that was set back.
    monkeypatch.setattr(scrub_process, "wall_ms", lambda: now - 86_400_000)
    assert process._due() is home


def test_a_pass_is_told_from_its_first_moment_to_its_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it counts what there is, and one that finds nothing."""
    seen = []
    counting, ending = ScrubbedDir.partitions, ScrubProcess._end

    def look() -> None:
        now = progress(world.rig.memory)
        seen.append((now["running"], now["pass_bytes"], now["pass_total_bytes"]))

    def count(home: ScrubbedDir) -> dict[str, PartitionName]:
        look()
        return {name: found for name, found in counting(home).items() if len(seen) > 2}

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
    assert "it is scrubbed anew" in caplog.text
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


def test_hot_pages_stay_and_cold_ones_do_not_come(tmp_path: Path) -> None:
    """Where the file system tells what is in the page cache."""
    path = tmp_path / "file"
    path.write_bytes(bytes(8 << 18))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def is_cached(piece: int) -> bool:
        try:
            return os.preadv(fd, [bytearray(4096)], piece << 18, os.RWF_NOWAIT) > 0
        except BlockingIOError:
            return False
        except OSError:
            pytest.skip("this file system does not tell")

    if is_cached(3):
        pytest.skip("this file system keeps what it was told to drop")
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 1 << 18, 5 << 18)
    file = ColdFile(path)
    for piece in range(8):
        file.read(piece << 18, 1 << 18)
    file.close()
    assert [is_cached(piece) for piece in range(8)] == [piece == 5 for piece in range(8)]
    os.close(fd)
