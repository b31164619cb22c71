"""The last entries of the indexes, behind which all others are appended: a start looks if they are right."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpbroker.log.partition.partition_log import PartitionLog
from mpbroker.log.recovery.log_loader import Known, load
from mpbroker.records.batch import MAX_TIMESTAMP_AT
from mpbroker.storage.index import OFFSET_ENTRY, TIME_ENTRY, read_offset_entries
from mpbroker.storage.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from tests.support.flipped_bits import flip
from tests.support.log_writer import T0, TOPIC_ID, MakeWriter, Writer, topic_config

# The last one has an entry.
BATCHES = 19
STOPPED = Known(clean=True, recovery_point=BATCHES)
CRASHED = Known(clean=False, recovery_point=BATCHES, durable=BATCHES)
SETTINGS = {"index_interval_bytes": "200"}
SIZES = {INDEX_SUFFIX: OFFSET_ENTRY, TIME_INDEX_SUFFIX: TIME_ENTRY}


def rising(number: int) -> int:
    return T0 + 10 * number


def falling(number: int) -> int:
    """The largest timestamp is far before the last entry of `.index`."""
    return T0 + 10_000 - 10 * number


@pytest.fixture
def reopen() -> Iterator[Callable[[Path, Known], PartitionLog]]:
    made: list[PartitionLog] = []

    def build(directory: Path, known: Known) -> PartitionLog:
        made.append(load(directory, "t", 0, TOPIC_ID, topic_config(**SETTINGS), known, lambda _: None))
        return made[-1]

    yield build
    for log in made:
        log.close_files()


def stopped(writer: MakeWriter, time_of: Callable[[int], int] = rising) -> Path:
    """A log that was closed cleanly."""
    w = writer(**SETTINGS)
    for number in range(BATCHES):
        w.append(timestamp=time_of(number))
    w.log.close_cleanly()
    return w.log.directory


def indexes_after(log: PartitionLog) -> list[bytes]:
    """Append batches, close cleanly, and return the contents of the indexes."""
    w = Writer(log)
    for number in range(BATCHES):
        w.append(timestamp=T0 + 20_000 + number)
    log.close_cleanly()
    return [(log.directory / segment_name(0, suffix)).read_bytes() for suffix in SIZES]


def later(indexes: list[bytes]) -> list[bytes]:
    """The entries of what was appended by `indexes_after`."""
    offsets, times = indexes
    return [
        *(e for e in cut(offsets, OFFSET_ENTRY) if int.from_bytes(e[:4], "big") >= BATCHES),
        *(e for e in cut(times, TIME_ENTRY) if int.from_bytes(e[8:], "big") >= BATCHES),
    ]


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("suffix", SIZES)
@pytest.mark.parametrize("time_of", [rising, falling])
@pytest.mark.parametrize("known", [STOPPED, CRASHED])
def test_a_flip_in_the_last_entry_costs_no_later_one(
    writer: MakeWriter,
    reopen: Callable[[Path, Known], PartitionLog],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    suffix: str,
    time_of: Callable[[int], int],
    known: Known,
) -> None:
    source = stopped(writer, time_of)
    name, work = segment_name(0, suffix), tmp_path / "work" / "t-0"
    at = (source / name).stat().st_size - SIZES[suffix]
    shutil.copytree(source, work)
    wanted = indexes_after(reopen(work, known))
    assert not caplog.records, "nothing is wrong with it"
    assert len(later(wanted)) > 10
    for bit in range(SIZES[suffix] * 8):
        shutil.rmtree(work)
        shutil.copytree(source, work)
        flip(work / name, at + bit // 8, 1 << bit % 8)
        caplog.clear()
        found = indexes_after(reopen(work, known))
        assert later(found) == later(wanted), f"bit {bit}"
        if known.clean:
            assert found == wanted, f"bit {bit}"
            entries = (at + SIZES[suffix]) // SIZES[suffix]
            (line,) = [record.getMessage() for record in caplog.records]
            assert line.startswith(f"{work}/{name}: the last of {entries} entries, ")
            assert "offset " in line
            assert line.endswith("is of no batch. Both indexes are rebuilt")


@pytest.mark.parametrize("suffix", SIZES)
def test_indexes_of_an_empty_segment(
    writer: MakeWriter,
    reopen: Callable[[Path, Known], PartitionLog],
    caplog: pytest.LogCaptureFixture,
    suffix: str,
) -> None:
    w = writer(**SETTINGS)
    w.log.close_cleanly()
    index = w.log.directory / segment_name(0, suffix)
    index.write_bytes(bytes([0, 0, 0, 9] * 3)[: SIZES[suffix]])
    again = reopen(w.log.directory, Known(clean=True))
    assert len(caplog.records) == 1
    assert index.read_bytes() == b""
    assert again.state.log_end == 0


def test_an_entry_of_kafka_that_is_of_several_batches(
    writer: MakeWriter, reopen: Callable[[Path, Known], PartitionLog], caplog: pytest.LogCaptureFixture
) -> None:
    """Check an entry for batches that were appended at once: the position of the first, the last offset."""
    directory = stopped(writer)
    index = directory / segment_name(0, INDEX_SUFFIX)
    *_, before, last = read_offset_entries(index, 0)
    kept = index.read_bytes()[: -2 * OFFSET_ENTRY]
    index.write_bytes(kept + last[0].to_bytes(4, "big") + before[1].to_bytes(4, "big"))
    there = index.read_bytes()
    log = reopen(directory, STOPPED)
    assert not caplog.records
    assert indexes_after(log)[0].startswith(there)


def test_entries_that_are_not_above_the_last_one_are_told(
    writer: MakeWriter, caplog: pytest.LogCaptureFixture
) -> None:
    """Check that they are reported once, with the segment's end."""
    w = writer(**SETTINGS)
    for number in range(BATCHES):
        w.append(timestamp=rising(number))
    index, times = (w.log.directory / segment_name(0, suffix) for suffix in SIZES)
    entries = read_offset_entries(index, 0)
    before = index.read_bytes(), times.read_bytes()
    last = entries[-1][0]
    assert not w.log.state.add_index_entry(last, 4000)
    assert not w.log.state.add_index_entry(last - 1, 4000)
    assert not w.log.state.add_time_entry(T0 + 20_000, last - 1)
    assert (index.read_bytes(), times.read_bytes()) == before
    assert not caplog.records
    w.roll()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [line.partition(". ")[0] for line in lines] == [
        f"{index}: 2 entries were refused, not above the last of its {len(entries)}, offset {last}",
        f"{times}: 1 entries were refused, not above the last of its {len(entries)}, offset {last}",
    ]
    caplog.clear()
    w.append()
    w.log.close_cleanly()
    assert not caplog.records


def test_a_full_index_is_not_appended_to(writer: MakeWriter, caplog: pytest.LogCaptureFixture) -> None:
    w = writer(segment_index_bytes="36")
    state = w.log.state
    assert [state.add_index_entry(offset, 100 * offset) for offset in range(1, 6)] == [True] * 4 + [False]
    assert [state.add_time_entry(T0 + i, i, last=True) for i in range(4)] == [True] * 3 + [False]
    sizes = [(w.log.directory / segment_name(0, suffix)).stat().st_size for suffix in SIZES]
    assert sizes == [32, 36]
    w.log.close_cleanly()
    assert not caplog.records, "it ends, and nothing is odd"


def test_damage_of_the_batch_is_not_blamed_on_the_index(
    writer: MakeWriter, reopen: Callable[[Path, Known], PartitionLog], caplog: pytest.LogCaptureFixture
) -> None:
    """Check that the partition is served, except for the damaged batch."""
    directory = stopped(writer)
    segment, index = (directory / segment_name(0, suffix) for suffix in (LOG_SUFFIX, TIME_INDEX_SUFFIX))
    position = read_offset_entries(directory / segment_name(0, INDEX_SUFFIX), 0)[-1][1]
    before = index.read_bytes()
    flip(segment, position + MAX_TIMESTAMP_AT + 7, 1)
    log = reopen(directory, STOPPED)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{index}: the last of {len(before) // TIME_ENTRY} entries, ")
    assert line.endswith(f": {segment} is damaged at byte {position}: the CRC does not match")
    assert index.read_bytes() == before
    assert log.state.log_end == BATCHES
