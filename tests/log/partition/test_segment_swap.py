"""The swap of a cleaned segment, cut off behind every step: recovery has the old records or the new."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.log.compaction import cleaner_manager
from mpbroker.log.compaction.cleaner import Buffers, Cleaner
from mpbroker.log.partition import segment_swap
from mpbroker.log.partition.segment_swap import begin_swap, finish_swaps, swap_in
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.storage.checkpoints import write_epochs, write_topic_id
from mpbroker.storage.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_FILE_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)
from mpbroker.storage.reader import Bound, PartitionReader, SegmentGone
from mpbroker.storage.segments import segments_of
from tests.support.compacted_segments import T0, Segments
from tests.support.killed_swaps import Killed, Steps

TOPIC_ID = bytes(range(16))
CONFIG = resolve(BrokerConfig(), {})


def make_cleaned(directory: Path) -> tuple[Segments, list[int], list[str], list[str]]:
    """Three segments that become one, not swapped yet; -> what they say before and after."""
    log = Segments(directory)
    for number in range(3):
        for key in (b"a", b"b", b"c%d" % number):
            log.append([(key, b"%d" % number)], timestamp=T0 + log.end)
        log.roll()
    log.append([(b"z", b"9")], timestamp=T0 + log.end)
    old = said(log)
    for base in log.bases:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            log.path(base, suffix).touch()
    (new,) = Cleaner(log.task(), Buffers()).run()
    write_topic_id(directory, TOPIC_ID)
    write_epochs(directory, [(0, 0)])
    expected = [one for one in old if one[0] == "c" or one in ("z9", "a2", "b2")]
    return log, new.bases, old, expected


def said(log: Segments) -> list[str]:
    log.bases = segments_of(log.directory)
    return [(r.key or b"").decode() + (r.value or b"").decode() for r in log.records()]


def swap_all(directory: Path, bases: list[int], *, has_begun: bool = False) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        if not has_begun:
            begin_swap(fd, bases[0])
        swap_in(fd, bases)
    finally:
        os.close(fd)


def test_a_swap_leaves_the_new_segment_and_nothing_to_finish(tmp_path: Path) -> None:
    log, bases, old, expected = make_cleaned(tmp_path)
    swap_all(tmp_path, bases)
    assert said(log) == expected != old
    assert log.bases == [0, 9]
    assert not [
        path for path in tmp_path.iterdir() if path.name.endswith((SWAP_FILE_SUFFIX, ".cleaned", ".tmp"))
    ]
    assert log.path(0, LOG_SUFFIX + ".deleted").exists()
    before = sorted(tmp_path.iterdir())
    finish_swaps(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_the_new_segment_takes_the_old_ones_place_by_the_documented_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the names, since another version may finish the swap or find its leftovers."""
    _, bases, _, _ = make_cleaned(tmp_path)
    renamed = []
    rename = os.rename

    def noting(old: str, new: str, **where: int) -> None:
        renamed.append((old, new))
        rename(old, new, **where)

    monkeypatch.setattr(os, "rename", noting)
    swap_all(tmp_path, bases)
    name = segment_name(bases[0])
    assert (f"{name}.placing.tmp", name) in renamed


def is_killed(monkeypatch: pytest.MonkeyPatch, steps: int, work: Callable[[], None]) -> bool:
    """Kill the work after some steps; return False if it does not take as many."""
    with monkeypatch.context() as patched:
        Steps(patched).left = steps
        try:
            work()
        except Killed:
            return True
    return False


def killed_swaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[int, Segments, list[int], list[str], list[str]]]:
    """A swap for each step, killed after it: the number of steps, and what make_cleaned() returns."""
    for steps in range(100):
        directory = tmp_path / f"{steps}"
        directory.mkdir()
        log, bases, old, expected = make_cleaned(directory)
        if not is_killed(monkeypatch, steps, partial(swap_all, directory, bases)):
            assert steps > 8
            return
        yield steps, log, bases, old, expected
    pytest.fail("the swap never ended")


def test_killed_at_any_step_recovery_has_the_old_records_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes, known = set(), set()
    for _, log, _, old, expected in killed_swaps(tmp_path, monkeypatch):
        outcomes.add(recovered(log.directory, monkeypatch))
        known |= {tuple(old), tuple(expected)}
    assert outcomes == known
    assert len(known) == 2


def recovered(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return what a reader finds after the next start, however often that is killed in between."""
    for done in range(100):
        copy = directory.with_name(f"{directory.name}-again-{done}")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(directory, copy)
        relink(directory, copy)
        was_killed = is_killed(monkeypatch, done, partial(finish_swaps, copy))
        found = opened(copy)
        if not was_killed:
            return found
        assert found == opened(copy)
    pytest.fail("recovery never ended")


def relink(original: Path, copy: Path) -> None:
    """A copied tree has two files where the original has two names of one."""
    for path in original.glob(f"*{LOG_SUFFIX}{SWAP_FILE_SUFFIX}"):
        plain = path.with_name(path.name.removesuffix(SWAP_FILE_SUFFIX))
        if plain.exists() and plain.stat().st_ino == path.stat().st_ino:
            (copy / plain.name).unlink()
            (copy / plain.name).hardlink_to(copy / path.name)


def opened(directory: Path) -> tuple[str, ...]:
    known = Known(clean=False, recovery_point=9, durable=10)
    log = load(directory, "t", 0, TOPIC_ID, CONFIG, known, lambda _text: None)
    assert log.state.log_end == 10
    log.close_files()
    for path in directory.glob(f"*{INDEX_SUFFIX}"):
        assert path.with_name(path.name.replace(INDEX_SUFFIX, LOG_SUFFIX)).exists()
    return tuple(said(Segments(directory)))


def test_a_reader_finds_every_last_value_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it from each offset, with files that were open before, and without."""
    log, bases, _, expected = make_cleaned(tmp_path)
    kept = PartitionReader(tmp_path)
    end = log.path(9).stat().st_size
    bound = Bound(10, 9, end)
    offsets = {"c00": 2, "c11": 5, "a2": 6, "b2": 7, "c22": 8, "z9": 9}

    def look() -> None:
        for reader in (kept, PartitionReader(tmp_path)):
            for name in expected:
                found = None
                for _ in range(3):
                    try:
                        found = reader.locate(offsets[name], bound)
                        break
                    except SegmentGone:
                        continue
                assert found is not None, name
                assert found.base_offset == offsets[name], name
            if reader is not kept:
                reader.close()

    look()
    Steps(monkeypatch, look)
    swap_all(tmp_path, bases)
    look()
    kept.close()


def test_a_swap_that_a_full_disk_cut_off_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps, log, bases, _, expected in killed_swaps(tmp_path, monkeypatch):
        swap_all(log.directory, bases, has_begun=steps > 0)
        assert said(log) == expected
        assert log.bases == [0, 9]
        assert log.path(0, INDEX_SUFFIX).exists()


def test_without_a_new_segment_the_old_ones_stay(tmp_path: Path) -> None:
    log, bases, old, _ = make_cleaned(tmp_path)
    for path in tmp_path.glob("*.cleaned"):
        path.unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    fd = os.open(tmp_path, os.O_RDONLY)
    one = cleaner_manager._Swap(fd, bases)
    one.run()
    os.close(fd)
    assert one.is_void
    assert not one.done
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert said(log) == old


def test_what_was_not_finished_is_dropped(tmp_path: Path) -> None:
    log, _, old, _ = make_cleaned(tmp_path)
    # As Kafka leaves it: the log file has its new suffix, the index not yet.
    cleaned = log.path(0, LOG_SUFFIX + ".cleaned")
    cleaned.rename(log.path(0, LOG_SUFFIX + SWAP_FILE_SUFFIX))
    assert opened(tmp_path) == tuple(old)
    assert not list(tmp_path.glob("*.swap"))


def test_the_index_of_aborted_transactions_comes_along(tmp_path: Path) -> None:
    log, bases, _, _ = make_cleaned(tmp_path)
    log.path(0, TXN_INDEX_SUFFIX + ".cleaned").write_bytes(bytes(34))
    log.path(0, TXN_INDEX_SUFFIX).write_bytes(bytes(68))
    swap_all(tmp_path, bases)
    assert log.path(0, TXN_INDEX_SUFFIX).read_bytes() == bytes(34)


def test_a_swap_is_on_disk_before_a_recovery_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a kill behind its first step, and a power cut that keeps old files and loses the step."""
    _, bases, _, _ = make_cleaned(tmp_path)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    begin_swap(fd, bases[0])
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        name = f"{0:020d}{suffix}"
        (tmp_path / f"{name}.cleaned").rename(tmp_path / f"{name}{SWAP_FILE_SUFFIX}")
    os.close(fd)
    done: list[str] = []
    for name in ("fsync", "unlink", "rename"):
        real = getattr(os, name)

        def call(
            *args: object, _name: str = name, _real: Callable[..., None] = real, **kwargs: object
        ) -> None:
            done.append(_name)
            _real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)
    finish_swaps(tmp_path)
    assert done[0] == "fsync"
    assert "unlink" in done
    assert segments_of(tmp_path) == [0, 9]


@pytest.mark.parametrize(
    "torn", [b"", b"torn", bytes(80), b"\xff" * 80], ids=["whole", "short", "zeros", "garbage"]
)
@pytest.mark.parametrize("batches", [0, 1, 40])
def test_where_a_segment_ends_its_last_whole_batch_says(tmp_path: Path, torn: bytes, batches: int) -> None:
    log = Segments(tmp_path)
    for number in range(batches):
        log.append([(b"k", b"v" * (1000 * number))])
    path = tmp_path / segment_name(0)
    with path.open("ab") as file:
        file.write(torn)
    assert segment_swap.end_of(path, 0) == batches
