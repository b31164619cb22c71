"""Positions, slices and times as handlers and Spark ask for them."""

from __future__ import annotations

import random
import tempfile
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mpbroker.log.compaction.cleaner import Buffers, Cleaner
from mpbroker.records import record_search
from mpbroker.records.builder import build_transaction_marker
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, COMMIT, marker_of
from mpbroker.records.validation import at_once
from mpbroker.storage import reader
from mpbroker.storage.names import TXN_INDEX_SUFFIX
from mpbroker.storage.reader import (
    NOTHING_FOUND,
    REMEMBERED_SEARCHES,
    Bound,
    FoundOffset,
    OffsetOutOfRange,
    PartitionReader,
    SegmentGone,
    offset_of_largest_time,
    offset_of_time,
)
from mpbroker.storage.transaction_index import AbortedTransaction, add_aborted
from tests.support.compacted_segments import (
    DAY_MS,
    FILES,
    PER_SEGMENT,
    Segments,
    clean_each,
    end_of,
    put_in_place,
    twelve_segments,
)
from tests.support.compacted_segments import T0 as CLEANED_AT_MS
from tests.support.forms import rounds

# In the future, so that no producer has expired.
T0 = 4_000_000_000_000


def bound_of(w) -> Bound:  # type: ignore[no-untyped-def]
    state = w.log.state
    return Bound(state.log_end, state.segment_base, state.size)


def filled(writer):  # type: ignore[no-untyped-def]
    """Three segments; record n has the time T0 + 10 n, three records a batch."""
    w = writer(segment_bytes="1048576", index_interval_bytes="100000")
    for i in range(30):
        w.append(3, size=30_000, timestamp=T0 + 30 * i)
    assert len(PartitionReader(w.log.directory).segments()) == 3
    return w


def test_every_offset_is_found_in_its_batch(writer) -> None:  # type: ignore[no-untyped-def]
    w = filled(writer)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    for offset in [*range(90), *reversed(range(90))]:
        found = reader.locate(offset, bound)
        assert found is not None
        assert found.base_offset == offset // 3 * 3
        assert found.last_offset == found.base_offset + 2
    assert reader.locate(90, bound) is None
    with pytest.raises(OffsetOutOfRange):
        reader.locate(91, bound)


def test_slices_keep_to_their_limits(writer) -> None:  # type: ignore[no-untyped-def]
    w = filled(writer)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    first = reader.fetch_slice(1, 1, bound)
    assert first is not None
    assert first.length == reader.locate(0, bound).length  # type: ignore[union-attr]
    assert reader.fetch_slice(1, 1, bound, min_one_batch=False) is None
    whole = reader.fetch_slice(0, 1 << 30, bound)
    assert whole is not None
    assert whole.length == (w.log.directory / "00000000000000000000.log").stat().st_size
    assert len(reader.read(whole)) == whole.length


def test_nothing_behind_the_bound_is_seen(writer) -> None:  # type: ignore[no-untyped-def]
    w = writer()
    w.append()
    early = bound_of(w)
    w.append()
    reader = PartitionReader(w.log.directory)
    piece = reader.fetch_slice(0, 1 << 20, early)
    assert piece is not None
    assert piece.length == early.position
    assert reader.fetch_slice(1, 1 << 20, early) is None


def test_a_reader_follows_appends_and_rolls(writer) -> None:  # type: ignore[no-untyped-def]
    w = writer(segment_bytes="1048576")
    reader = PartitionReader(w.log.directory)
    for offset in range(40):
        w.append(size=100_000)
        piece = reader.fetch_slice(offset, 1 << 20, bound_of(w))
        assert piece is not None
        assert reader.read(piece)[:8] == offset.to_bytes(8, "big")


def test_offsets_by_time_are_exact(writer) -> None:  # type: ignore[no-untyped-def]
    w = filled(writer)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    assert reader.find_timestamp(0, 0, bound) == FoundOffset(T0, 0)
    for i in range(30):
        for j in range(3):
            assert reader.find_timestamp(T0 + 30 * i + j, 0, bound) == FoundOffset(T0 + 30 * i + j, 3 * i + j)
        assert reader.find_timestamp(T0 + 30 * i + 3, 0, bound).offset == (3 * i + 3 if i < 29 else -1)
    assert reader.find_timestamp(T0, 4, bound) == FoundOffset(T0 + 31, 4)
    assert reader.find_timestamp(T0 + 10_000, 0, bound) == NOTHING_FOUND
    assert reader.max_timestamp(bound) == FoundOffset(T0 + 872, 89)


def test_the_largest_time_of_what_may_be_seen(writer) -> None:  # type: ignore[no-untyped-def]
    """Check that time index entries beyond the bound (not durable, not committed) are not used."""
    w = writer(index_interval_bytes="0")
    bounds = []
    for timestamp in (50, 10, 70, 20, 80, 30):
        w.append(timestamp=timestamp)
        bounds.append(bound_of(w))
    reader = PartitionReader(w.log.directory)
    found = [reader.max_timestamp(bound) for bound in bounds]
    assert found == [FoundOffset(*one) for one in ((50, 0), (50, 0), (70, 2), (70, 2), (80, 4), (80, 4))]
    assert reader.max_timestamp(bounds[4], 3) == FoundOffset(80, 4)
    assert reader.max_timestamp(bounds[3], 3) == FoundOffset(20, 3)


def test_times_out_of_order(writer) -> None:  # type: ignore[no-untyped-def]
    w = writer(index_interval_bytes="0")
    for timestamp in (50, 10, 70, 20, 70, 30):
        w.append(timestamp=timestamp)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    assert reader.find_timestamp(15, 0, bound) == FoundOffset(50, 0)
    assert reader.find_timestamp(15, 1, bound) == FoundOffset(70, 2)
    assert reader.find_timestamp(60, 0, bound) == FoundOffset(70, 2)
    assert reader.find_timestamp(71, 0, bound) == NOTHING_FOUND
    assert reader.max_timestamp(bound) == FoundOffset(70, 2)
    assert PartitionReader(w.log.directory).max_timestamp(Bound(0, 0, 0)) == NOTHING_FOUND


# ---- what is remembered of a segment ends with its file ----


def first_at(reader: PartitionReader, offset: int, bound: Bound) -> int:
    """Return the base offset of the first batch that a fetch gets, which tries as often as a handler does."""
    for _ in range(3):
        with suppress(SegmentGone):
            piece = reader.fetch_slice(offset, 1, bound)
            assert piece is not None
            return int.from_bytes(reader.read(piece)[:8], "big")
    pytest.fail(f"no try gets on at offset {offset}")


@pytest.mark.parametrize("sizes", [(20,), (20, 300, 7, 90)], ids=["equal", "unequal"])
def test_a_position_in_a_file_that_was_compacted_is_not_used(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Check a slow consumer whose segment's file was closed for others before it was compacted."""
    log = twelve_segments(tmp_path, sizes)
    reader, bound = PartitionReader(tmp_path), end_of(log)
    for offset in range(22):
        assert first_at(reader, offset, bound) == offset
    for number in range(1, 7):
        assert first_at(reader, number * PER_SEGMENT, bound) == number * PER_SEGMENT
    clean_each(log)
    assert first_at(reader, 22, end_of(log)) == 22
    assert first_at(reader, 0, end_of(log)) == 20
    reader.close()


@pytest.mark.parametrize("is_compacted", [False, True], ids=["deleted", "merged"])
def test_a_consumer_at_a_segments_first_offset_does_without_the_segment_before(
    tmp_path: Path, is_compacted: bool
) -> None:
    """Check it when retention, DeleteRecords or compaction took the segment that the consumer has read."""
    log = twelve_segments(tmp_path)
    reader, bound = PartitionReader(tmp_path), end_of(log)
    for offset in range(2 * PER_SEGMENT):
        assert first_at(reader, offset, bound) == offset
    for number in range(2, 7):
        assert first_at(reader, number * PER_SEGMENT, bound) == number * PER_SEGMENT
    if is_compacted:
        log.clean()
        bound = end_of(log)
    else:
        log.path(PER_SEGMENT).unlink()
        log.path(0).unlink()
    assert first_at(reader, 2 * PER_SEGMENT, bound) == 2 * PER_SEGMENT + is_compacted
    reader.close()


# ---- slow readers beside everything that happens to segments ----


class SlowReaders:
    """Consumers share a reader, which keeps two segments open, of a log that is compacted and deleted from.

    Every second one is read_committed. `live` lists the offsets of all records in the log, `aborted` those of
    aborted transactions; `open` has those of transactions that have not ended, by producer.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = Segments(directory)
        self.log.path(0).touch()
        self.reader = PartitionReader(directory)
        self.log_start = 0
        self.live: list[int] = []
        self.aborted: set[int] = set()
        self.open: dict[int, list[int]] = {}
        self.next = [0] * 6

    def run(self, steps: int) -> None:
        often = {self.append: 6, self.append_to_transaction: 6, self.end_transaction: 4, self.roll: 3}
        often |= {
            self.compact: 1,
            self.delete_records: 1,
            self.forget_deleted: 1,
            self.seek: 3,
            self.read: 15,
        }
        for do in self.random.choices([*often], [*often.values()], k=steps):
            for _ in range(self.random.choice([1, 1, 2])):
                do()

    @property
    def stable(self) -> int:
        return min([self.log.end, *(offsets[0] for offsets in self.open.values())])

    def append(self) -> None:
        for _ in range(self.random.randrange(8)):
            key = b"%02d" % self.random.randrange(40)
            self.live.append(self.log.append([(key, bytes(self.random.choice([9, 9, 9, 60])))]))

    def append_to_transaction(self) -> None:
        producer, key = self.random.randrange(1, 4), b"%02d" % self.random.randrange(40)
        offset = self.log.append([(key, b"")], producer=(producer, 0, 0), transactional=True)
        self.open.setdefault(producer, []).append(offset)
        self.live.append(offset)

    def end_transaction(self) -> None:
        if not self.open:
            return
        producer, kind = self.random.choice(sorted(self.open)), self.random.choice([ABORT, COMMIT])
        marker = build_transaction_marker(
            kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=0
        )
        at, offsets = self.log.put(marker, 1), self.open.pop(producer)
        if kind == ABORT:
            self.aborted.update(offsets)
            path = self.log.path(self.log.bases[-1], TXN_INDEX_SUFFIX)
            add_aborted(path, AbortedTransaction(producer, offsets[0], at, self.stable))

    def roll(self) -> None:
        self.log.roll()

    def compact(self) -> None:
        """Clean the segments that the log process would let the cleaner have."""
        sealed = [base for base, end in pairwise(self.log.bases) if end <= self.stable]
        if sealed:
            self.log.clean_up_to = self.log.bases[0]
            task = self.log.task(
                segment_bytes=self.random.choice([1, 1000, 1 << 20]),
                now_ms=CLEANED_AT_MS + self.random.choice([0, 3 * DAY_MS]),
            )
            end = self.log.bases[len(sealed)]
            put_in_place(self.log, Cleaner(replace(task, bases=sealed, end=end), Buffers()))
            self.live = [record.offset for record in self.log.records()]

    def delete_records(self) -> None:
        """Move the log start, and remove the segments below it: DeleteRecords, and retention."""
        few = min(self.stable, self.log_start + self.random.randrange(40))
        self.log_start = max(self.log_start, few)
        while len(self.log.bases) > 1 and self.log.bases[1] <= self.log_start:
            for suffix in (*FILES, TXN_INDEX_SUFFIX):
                self.log.path(self.log.bases[0], suffix).unlink(missing_ok=True)
            del self.log.bases[0]

    def forget_deleted(self) -> None:
        if self.reader.has_deleted():
            self.reader.close()

    def seek(self) -> None:
        self.next[self.random.randrange(6)] = self.random.choice(self.log.bases)

    def read(self) -> None:
        """Check that no record is missed, and that nothing aborted or beyond the bound is seen."""
        consumer, max_bytes = self.random.randrange(6), self.random.choice([1, 1, 300, 1 << 20])
        is_committed = consumer % 2 == 1
        end = self.stable if is_committed else self.log.end
        hidden = self.aborted if is_committed else set()
        bound = self.bound(end)
        for _ in range(self.random.randrange(12)):
            offset = max(self.next[consumer], self.log_start)
            if offset >= end:
                return
            seen, behind = self.fetch(offset, max_bytes, bound, is_committed)
            assert offset < behind <= end
            expected = {one for one in self.live if offset <= one < behind} - hidden
            assert expected <= seen, f"missed {sorted(expected - seen)}"
            assert not seen & hidden
            self.next[consumer] = behind

    def bound(self, end: int) -> Bound:
        base = max(base for base in self.log.bases if base <= end)
        below = [batch for batch in self.log.batches(base) if batch.last_offset < end]
        return Bound(end, base, sum(len(batch.bytes) for batch in below))

    def fetch(self, offset: int, max_bytes: int, bound: Bound, is_committed: bool) -> tuple[set[int], int]:
        """Return the offsets of records that a client gets, and the offset that it fetches next."""
        for _ in range(3):
            with suppress(SegmentGone):
                piece = self.reader.fetch_slice(offset, max_bytes, bound)
                if piece is None:
                    return set(), bound.offset
                aborted = self.reader.aborted(offset, piece, bound, self.log.end) if is_committed else []
                return records_for_client(self.reader.read(piece), offset, aborted)
        raise AssertionError(f"no try gets on at offset {offset}")


def records_for_client(data: bytes, offset: int, aborted: list[AbortedTransaction]) -> tuple[set[int], int]:
    """Take whole batches, and leave out aborted ones as a client does, which knows only where they begin."""
    end = 0
    while end + 12 <= len(data) and (after := end + 12 + int.from_bytes(data[end + 8 : end + 12])) <= len(
        data
    ):
        end = after
    waiting = sorted(aborted, key=lambda one: one.first_offset)
    aborting: set[int] = set()
    seen, behind = set(), offset
    for batch in iterate_batches(data[:end]):
        while waiting and waiting[0].first_offset <= batch.last_offset:
            aborting.add(waiting.pop(0).producer_id)
        if batch.is_control:
            if marker_of(batch.bytes) == (ABORT, 0):
                aborting.discard(batch.header.producer_id)
        elif not (batch.is_transactional and batch.header.producer_id in aborting):
            seen.update(record.offset for record in batch.records() if record.offset >= offset)
        behind = batch.last_offset + 1
    return seen, behind


@settings(max_examples=rounds(400), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_slow_readers_miss_nothing_beside_all_that_happens_to_segments(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        patched.setattr(reader, "OPEN_SEGMENTS", 2)
        readers = SlowReaders(Path(directory), seed)
        with closing(readers.reader):
            readers.run(100)


def test_those_who_ask_for_a_time_share_one_search(writer, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Check that nothing is kept of one that all have given up."""
    monkeypatch.setattr(record_search, "BEGUN_WITH_BYTES", 10)
    monkeypatch.setattr(record_search, "SEARCHED_AT_ONCE_BYTES", 10)
    w = writer()
    w.append(100, timestamp=T0)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    asking = [offset_of_time(lambda: reader, T0 + 99, 0, bound) for _ in range(3)]
    for one in asking:
        next(one)
    (search,) = reader._searches.values()
    asking.pop().close()
    assert list(reader._searches.values()) == [search]
    assert [at_once(one) for one in asking] == [FoundOffset(T0 + 99, 99)] * 2
    assert search.is_over
    assert next(offset_of_time(lambda: reader, T0 + 99, 0, bound), None) is None, "it is remembered"
    given_up = offset_of_time(lambda: reader, T0 + 98, 0, bound)
    next(given_up)
    given_up.close()
    assert list(reader._searches.values()) == [search]


def test_a_large_batch_is_not_read_before_its_turn(writer) -> None:  # type: ignore[no-untyped-def]
    w = writer()
    w.append(100, size=1_000, timestamp=T0)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    for asking, expected in (
        (offset_of_time(lambda: reader, T0 + 50, 0, bound), 50),
        (offset_of_largest_time(lambda: reader, bound, 0), 99),
    ):
        before = len(reader._searches)
        next(asking)
        assert len(reader._searches) == before
        assert at_once(asking).offset == expected


def test_only_so_many_searches_are_remembered(writer) -> None:  # type: ignore[no-untyped-def]
    w = writer()
    w.append(2 * REMEMBERED_SEARCHES, timestamp=T0)
    reader, bound = PartitionReader(w.log.directory), bound_of(w)
    for i in range(2 * REMEMBERED_SEARCHES):
        assert reader.find_timestamp(T0 + i, 0, bound).offset == i
    assert len(reader._searches) == REMEMBERED_SEARCHES


def rolled_and_cleaned(directory: Path, *, merged: bool) -> tuple[Segments, Bound, PartitionReader]:
    """A bound is read; then its segment is followed by others and compacted before a reader opens it.

    The new file has records behind the bound, too, and with `merged` the name of an earlier segment.
    """
    log = Segments(directory)
    for number in range(3 * PER_SEGMENT):
        log.append(
            [(b"often" if number % 3 else b"%d" % number, bytes(number % 7))],
            timestamp=CLEANED_AT_MS + number,
        )
        if merged and number == PER_SEGMENT:
            log.roll()
    bound = end_of(log)
    for count in range(2):
        log.append([(b"more", b"%d" % count)])
        log.roll()
        log.append([(b"again", bytes(500))], timestamp=CLEANED_AT_MS + DAY_MS)
    reader = PartitionReader(directory)
    put_in_place(log, Cleaner(log.task(), Buffers()))
    return log, bound, reader


@pytest.mark.parametrize("merged", [False, True])
def test_a_bound_of_a_segment_that_was_compacted_since(tmp_path: Path, merged: bool) -> None:
    log, bound, reader = rolled_and_cleaned(tmp_path, merged=merged)
    left = [batch.header.base_offset for batch in log.batches() if batch.header.base_offset < bound.offset]
    assert bound.segment_base not in log.bases or not merged
    with closing(reader):
        seen = []
        offset = 0
        while (piece := reader.fetch_slice(offset, 1, bound)) is not None:
            (batch,) = iterate_batches(reader.read(piece))
            seen.append(batch.header.base_offset)
            offset = batch.header.base_offset + 1
        assert seen == left
        last_ms = CLEANED_AT_MS + left[-1]
        assert reader.max_timestamp(bound) == (last_ms, left[-1])
        assert reader.find_timestamp(last_ms, 0, bound) == (last_ms, left[-1])
        assert reader.find_timestamp(last_ms + 1, 0, bound) == NOTHING_FOUND


def test_a_bound_in_a_segment_that_others_follow_is_kept_to(tmp_path: Path) -> None:
    """As a last stable offset: the file is its own, and the reader cannot know."""
    log = Segments(tmp_path)
    for number in range(9):
        log.append([(b"%d" % number, b"")])
        if number == 4:
            bound = end_of(log)
    log.roll()
    log.append([(b"x", b"")])
    with closing(PartitionReader(tmp_path)) as reader:
        piece = reader.fetch_slice(0, 1 << 20, bound)
        assert piece is not None
        assert piece.length == bound.position
        assert reader.locate(4, bound) is not None
        assert reader.fetch_slice(5, 1 << 20, bound) is None
