"""The cleaner, retention and moves go on while a range is planned and read: nothing twice, nothing lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mpbroker.ipc.table import read_partition_surely
from mpbroker.log.compaction.cleaner import Buffers, Cleaner
from mpbroker.log.partition.partition_log import remove_segment
from mpbroker.log.partition.segment_swap import begin_swap, swap_in
from mpbroker.reading import columns, local_catalog, read_local, segments
from mpbroker.reading.errors import CorruptLog
from mpbroker.reading.follow import follow
from mpbroker.reading.local_catalog import LocalCatalog
from mpbroker.reading.options import parse_options
from mpbroker.reading.plan import OffsetRange, plan
from mpbroker.reading.read import read_range
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.storage.checkpoints import write_topic_id
from mpbroker.storage.index import offset_floor
from mpbroker.storage.names import CLEANED_FILE_SUFFIX, segment_name
from mpbroker.storage.scan import batches
from tests.reading.conftest import Published
from tests.support.compacted_segments import DAY_MS, T0, Segments, put_in_place
from tests.support.flipped_bits import flip
from tests.support.reading_queries import OFFSETS, offsets_of, planned, query, read
from tests.support.spark_logs import PartitionWriter, checkpoint, fill, numbered


def clean(directory: Path, bases: list[int], keeps: Callable[[int], bool]) -> None:
    """As the cleaner does it: one segment of what is kept of the batches takes the place of several."""
    kept = bytearray()
    for base in bases:
        path = directory / segment_name(base)
        with path.open("rb") as file:
            data = file.read()
            for batch in batches(file.fileno(), 0, len(data)):
                if keeps(batch.base_offset):
                    kept += data[batch.position : batch.position + batch.length]
    (directory / (segment_name(bases[0]) + CLEANED_FILE_SUFFIX)).write_bytes(kept)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        begin_swap(fd, bases[0])
        swap_in(fd, bases)
    finally:
        os.close(fd)


def clean_in_place(directory: Path, bases: list[int], keeps: Callable[[int], bool]) -> None:
    """Clean, with a new file that has the inode number of the old one, which was free again."""
    path = directory / segment_name(bases[0])
    spare = directory / "inode"
    spare.hardlink_to(path)
    clean(directory, bases, keeps)
    spare.write_bytes(path.read_bytes())
    spare.replace(path)


def even(offset: int) -> bool:
    return offset // 10 % 2 == 0


def test_the_segment_of_the_bound_is_cleaned_between_plan_and_task(writer: Published) -> None:
    writer.add(20)
    options = query(writer.log_dir)
    tasks = planned(options)
    writer.roll()
    fill(writer, 5)
    clean(writer.directory, [0], even)
    assert offsets_of(tasks, options) == [n for n in range(200) if even(n)]


def test_the_segment_of_the_bound_is_merged_into_the_one_before(writer: Published) -> None:
    writer.add(20, roll_every=10)
    options = query(writer.log_dir, minPartitions=4)
    tasks = planned(options)
    assert len(tasks) == 4
    writer.roll()
    fill(writer, 5)
    # Also the last records below the bound are gone: others have their keys.
    clean(writer.directory, [0, 100], lambda offset: offset < 150 and even(offset))
    assert offsets_of(tasks, options) == [n for n in range(150) if even(n)]


@pytest.mark.parametrize("seen", range(12))
@pytest.mark.parametrize("action", ["clean", "merge", "retention", "clean and retention", "two merges"])
def test_whenever_the_cleaner_or_retention_comes(
    writer: Published, seen: int, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each number of batches that was read: what is open is read on, the rest is looked for."""
    monkeypatch.setattr(read_local, "WINDOW_BYTES", 1500)
    monkeypatch.setattr(columns, "MAX_ROWS", 10)
    writer.add(12, roll_every=3)
    writer.roll()
    options = query(writer.log_dir, failOnDataLoss="false")
    (task,) = planned(options)
    found = read_range(task, OFFSETS, options)
    rows = [offset for _ in range(seen) for offset in next(found).column(0).to_pylist()]
    gone = 0
    if action in ("clean", "clean and retention"):
        for base in (0, 30, 60):
            clean(writer.directory, [base], even)
    if action == "merge":
        clean(writer.directory, [0, 30, 60], even)
    if action == "two merges":
        clean(writer.directory, [0, 30], even)
        clean(writer.directory, [60, 90], even)
    if action in ("retention", "clean and retention"):
        gone = 60
        remove_segment(writer.directory, 0)
        remove_segment(writer.directory, 30)
    rows += [offset for batch in found for offset in batch.column(0).to_pylist()]
    assert rows == sorted(set(rows))
    stays = [n for n in range(120) if n >= gone and (action == "retention" or even(n) or n >= 90)]
    if action == "two merges":
        stays = [n for n in range(120) if even(n)]
    assert set(rows) >= set(stays)
    assert set(rows) <= set(range(120))


def test_an_older_copy_of_the_log_is_an_error(writer: Published, tmp_path: Path) -> None:
    """As on another host: it has what is not enough, under the same path."""
    fill(writer, 5)
    copy = shutil.copytree(writer.directory, tmp_path / "copy")
    writer.add(5)
    options = query(writer.log_dir)
    tasks = planned(options)
    shutil.rmtree(writer.directory)
    copy.rename(writer.directory)
    with pytest.raises(CorruptLog, match=r"ends before offset 100.* or an older copy of the log"):
        offsets_of(tasks, options)


def test_damage_before_the_first_wanted_offset_hides_nothing(writer: Published) -> None:
    """The walk from the last indexed batch to the offset ends there; the records behind it are not lost."""
    writer.add(10, roll_every=5)
    path = writer.directory / segment_name(0)
    flip(path, 8, 0x40)
    with pytest.raises(CorruptLog, match=r"0\.log is damaged at position 0: .*beyond the end"):
        read(writer.log_dir, startingOffsets='{"t":{"0":25}}')


def test_a_moved_partition_has_more_in_its_file_than_is_committed(writer: Published, tmp_path: Path) -> None:
    """Another file has the bound's name, and behind the bound what may never be read."""
    writer.add(5)
    options = query(writer.log_dir)
    tasks = planned(options)
    fill(writer, 2)
    writer.torn_tail(b"\0" * 100)
    copy = shutil.copytree(writer.directory, tmp_path / "copy")
    shutil.rmtree(writer.directory)
    copy.rename(writer.directory)
    assert offsets_of(tasks, options) == list(range(50))


def test_a_refresh_notices_a_move_to_another_log_directory(writer: Published) -> None:
    """Only a new catalog finds the directory: its slot stays the same."""
    writer.add(5)
    catalog = LocalCatalog([str(writer.log_dir)])
    assert catalog.refresh([("t", 0)])
    (place,) = catalog.slots([("t", 0)])
    writer.broker.publish_slot(read_partition_surely(*place)._replace(log_dir=1))
    assert not catalog.refresh([("t", 0)])


def test_what_lies_behind_the_bound_is_not_looked_at(writer: Published) -> None:
    """A batch that is being written, of which the header is there or not, and zeros of a reserved file."""
    fill(writer, 3)
    bound = writer.end
    whole = PartitionWriter(writer.log_dir, "other", first_offset=30)
    whole.append(numbered(10))
    torn = (whole.directory / segment_name(30)).read_bytes()
    writer.broker.publish(writer, bound)
    segment = writer.directory / segment_name(0)
    size = segment.stat().st_size
    for tail in (torn, torn[:-1], torn[:70], torn[:61], torn[:60], torn[:5], b"\0" * 500, b"\xff" * 500):
        os.truncate(segment, size)
        writer.torn_tail(tail)
        assert read(writer.log_dir) == list(range(30)), tail[:5]


def test_an_index_is_never_believed_of_another_file(writer: Published) -> None:
    writer.add(40, value_bytes=200)
    options = query(writer.log_dir, startingOffsets='{"t":{"0":355}}')
    tasks = planned(options)
    writer.roll()
    with (writer.directory / segment_name(0, ".index")).open("rb") as file:
        assert offset_floor(file.fileno(), 0, 355)[1] > 0
    clean(writer.directory, [0], even)
    assert offsets_of(tasks, options) == [*range(360, 370), *range(380, 390)]


def test_the_next_segments_are_cleaned_while_a_task_reads(
    writer: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new files have the old inode numbers; only what is open is certain to be the same file."""
    monkeypatch.setattr(columns, "MAX_ROWS", 10)
    writer.add(20, roll_every=5)
    writer.roll()
    options = query(writer.log_dir)
    (task,) = planned(options)
    found = read_range(task, OFFSETS, options)
    rows = next(found).column(0).to_pylist()
    clean_in_place(writer.directory, [50], even)
    clean_in_place(writer.directory, [100, 150], even)
    rows += [offset for batch in found for offset in batch.column(0).to_pylist()]
    assert rows == [*range(50), *(n for n in range(50, 200) if even(n))]


def test_the_last_segment_is_cleaned_after_it_was_listed(
    writer: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks the last records below the bound, which is no damage: it is not the last one any more."""
    writer.add(10)
    listed = segments.segments_of
    seen: list[list[int]] = []

    def then_cleaned(directory: Path) -> list[int]:
        seen.append(listed(directory))
        if len(seen) == 1:
            writer.roll()
            fill(writer, 1)
            clean_in_place(directory, [0], lambda offset: offset < 50)
        return seen[-1]

    options = query(writer.log_dir)
    with closing(LocalCatalog(options.log_dirs)) as catalog:
        monkeypatch.setattr(segments, "segments_of", then_cleaned)
        (task,) = plan(catalog, options)
    assert seen[0] == [0]
    assert offsets_of([task], options) == list(range(50))


def test_ranges_are_cut_in_files_that_are_replaced_meanwhile(
    writer: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.add(20, roll_every=10)
    writer.roll()
    options = query(writer.log_dir, minPartitions=6)
    cut = local_catalog.cut_offsets

    def cleaned_before(*arguments: Any) -> list[int]:
        clean_in_place(writer.directory, [0, 100], lambda offset: offset % 30 == 0)
        return cut(*arguments)

    monkeypatch.setattr(local_catalog, "cut_offsets", cleaned_before)
    tasks = planned(options)
    assert offsets_of(tasks, options) == [n for n in range(200) if n // 10 % 3 == 0]


@pytest.mark.parametrize("keeps", [even, lambda offset: offset < 30, lambda offset: offset >= 20])
def test_times_are_looked_for_after_the_bounds_segment_was_cleaned(
    writer: Published, keeps: Callable[[int], bool]
) -> None:
    writer.add(10)
    with closing(LocalCatalog([str(writer.log_dir)])) as catalog:
        assert catalog.bounds([("t", 0)])["t", 0].end == 100
        writer.roll()
        fill(writer, 5, value_bytes=500)
        writer.roll()
        clean_in_place(writer.directory, [0, 100], keeps)
        for number in range(101):
            expected = next((n for n in range(number, 100) if keeps(n // 10 * 10)), None)
            found = catalog.offsets_for_times({("t", 0): 1_700_000_000_000 + number})
            assert found == {("t", 0): expected}, number


def test_a_followed_partition_is_cleaned_after_a_look(writer: Published) -> None:
    """What a stream has seen is offsets; where they are is looked up for each micro-batch."""
    writer.add(10)
    options = parse_options({"subscribe": "t", "log.dir": str(writer.log_dir)}, streaming=True)
    with closing(follow(options)) as follower:
        end = follower.poll()["t", 0].end
        writer.roll()
        fill(writer, 1)
        clean_in_place(writer.directory, [0], even)
        tasks = follower.catalog.tasks(OffsetRange(("t", 0), 25, end), 3, None)
        assert offsets_of(tasks, options) == [n for n in range(25, 100) if even(n)]


@pytest.mark.parametrize("end", [None, 3])
def test_three_cleanings_while_a_task_reads_are_no_damage(log_dir: Path, end: int | None) -> None:
    """The first file has committed records, whose marker is gone when the next one is opened.

    The same producer aborts a transaction then, of which the indexes tell. `end`: where the task ends.
    """
    (log_dir / "t-0").mkdir()
    write_topic_id(log_dir / "t-0", b"t" * 16)
    log = Segments(log_dir / "t-0")
    log.append([(b"key", b"1")], producer=(7, 0, -1), transactional=True)
    log.roll()
    log.end_transaction(COMMIT, 7)
    log.append([(b"key", b"2")])
    log.append([(b"other", b"3")])
    log.roll()
    log.append([(b"key", b"4")], producer=(7, 0, -1), transactional=True)
    log.end_transaction(ABORT, 7)
    log.append([(b"last", b"5")])
    log.roll()
    log.append([(b"active", b"6")])
    checkpoint(log_dir, {("t", 0): log.end})
    options = query(log_dir, **({} if end is None else {"endingOffsets": f'{{"t": {{"0": {end}}}}}'}))
    (task,) = planned(options)
    found = read_range(task, OFFSETS, options)
    rows = next(found).column(0).to_pylist()
    assert rows == [0]
    for days in (0, 2, 4):
        # The last batch of the producer stays, without its records, and so does its marker.
        wanted = log.task(now_ms=T0 + days * DAY_MS, producers=log.producers.snapshot())
        put_in_place(log, Cleaner(wanted, Buffers()))
    rows += [offset for batch in found for offset in batch.column(0).to_pylist()]
    assert rows == ([0, 2, 3, 6, 7] if end is None else [0, 2])
