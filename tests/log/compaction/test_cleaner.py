"""The cleaner against a model, and rule by rule (Kafka: LogCleanerTest)."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.log.compaction import cleaner
from mpbroker.log.compaction.cleaned_transactions import CleanedTransactions
from mpbroker.log.compaction.cleaner import Buffers, Cleaner, CleaningFailed
from mpbroker.log.compaction.offset_map import SLOT_BYTES, OffsetMap, siphash
from mpbroker.log.format import transaction_index
from mpbroker.log.format.index import read_offset_entries, read_time_entries
from mpbroker.log.format.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from mpbroker.log.format.producer_state import Producers
from mpbroker.log.format.transaction_index import AbortedTransaction, packed, read_aborted
from mpbroker.records.batch import BATCH_HEADER_BYTES, NO_TIMESTAMP
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.compression import Codec
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.record import NewRecord, Record
from tests.support.compacted_segments import DAY_MS, T0, KeyValue, Segments


@pytest.fixture
def log(tmp_path: Path) -> Segments:
    return Segments(tmp_path)


def pairs(text: str) -> list[KeyValue]:
    """`a1 b2 a-`: key a with value 1, b with 2, a tombstone of a."""
    found: list[KeyValue] = []
    for word in text.split():
        found.append((word[:1].encode(), None if word[1:] == "-" else word[1:].encode()))
    return found


def shown(records: list[Record]) -> str:
    parts = ((r.key or b"?").decode() + ("-" if r.value is None else r.value.decode()) for r in records)
    return " ".join(parts)


# ---- the offset map ----


def test_the_hash_is_siphash() -> None:
    """Compare with test vectors of the reference implementation."""
    key = bytes(range(16))
    assert siphash(b"", key).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash(b"\0", key).hex() == "da87c1d86b99af44347659119b22fc45"


@given(st.lists(st.tuples(st.binary(max_size=20), st.integers(0, 1 << 40))), st.integers(1, 40))
def test_the_map_is_a_dictionary_with_a_bound(puts: list[tuple[bytes, int]], room: int) -> None:
    offsets, model = OffsetMap(SLOT_BYTES * (room + 1), 1.0, 1 << 20), dict[bytes, int]()
    assert offsets.room == room
    for key, offset in puts:
        fits = key in model or len(model) < room
        assert offsets.put(key, offset) == fits
        if fits:
            model[key] = max(offset, model.get(key, -1))
    assert {key: offsets.get(key) for key, _ in puts} == {key: model.get(key, -1) for key, _ in puts}
    assert len(offsets) == len(model)


# ---- rule by rule ----


def test_the_latest_record_of_each_key_stays_where_it_was(log: Segments) -> None:
    log.append(pairs("a1 b1 a2"))
    log.append(pairs("c1 b2"))
    log.roll()
    log.append(pairs("a3"))  # in the active segment: of no concern
    cleaner = log.clean()
    assert shown(log.records()) == "a2 c1 b2 a3"
    assert [(r.offset, r.timestamp) for r in log.records()] == [
        (2, T0 + 2), (3, T0), (4, T0 + 1), (5, T0)
    ]  # fmt: skip
    assert cleaner.end == 5
    assert (cleaner.statistics.records_read, cleaner.statistics.records_kept) == (5, 3)


def test_batches_keep_their_offsets_their_producer_and_their_bytes(log: Segments) -> None:
    log.append(pairs("a1 b1"), producer=(7, 1, 0))
    log.append(pairs("a2 c1"), producer=(7, 1, 2))
    log.roll()
    whole = bytes(log.batches()[1].bytes)
    log.clean()
    first, second = log.batches()
    assert (first.header.base_offset, first.header.last_offset_delta, first.header.record_count) == (0, 1, 1)
    assert (first.header.producer_id, first.header.producer_epoch, first.header.base_sequence) == (7, 1, 0)
    assert (first.header.base_timestamp, first.header.max_timestamp) == (T0 + 1, T0 + 1)
    assert first.header.leader_epoch == 3
    assert bytes(second.bytes) == whole


@pytest.mark.parametrize("codec", list(Codec))
def test_the_codec_stays(log: Segments, codec: Codec) -> None:
    log.append(pairs("a1 b1 c1"), codec=codec)
    log.append(pairs("b2"), codec=codec)
    log.roll()
    log.clean()
    assert shown(log.records()) == "a1 c1 b2"
    assert [batch.codec for batch in log.batches()] == [codec, codec]


def test_the_time_of_the_broker_stays(log: Segments) -> None:
    log.append(pairs("a1 b1"), append_time=T0 + 77)
    log.append(pairs("a2"), append_time=T0 + 99)
    log.roll()
    log.clean()
    assert [(r.offset, r.timestamp, r.timestamp_type) for r in log.records()] == [
        (1, T0 + 77, 1),
        (2, T0 + 99, 1),
    ]


def test_a_tombstone_stays_until_its_horizon(log: Segments) -> None:
    log.append(pairs("a1 b1"))
    log.append(pairs("a-"), timestamp=T0 + 5)
    log.append(pairs("c1"))
    log.roll()
    log.clean()
    assert shown(log.records()) == "b1 a- c1"
    assert [batch.delete_horizon_ms for batch in log.batches()] == [None, T0 + DAY_MS, None]
    assert log.records()[1].timestamp == T0 + 5
    log.clean_up_to = 0  # as if something behind it was dirty
    log.clean(now_ms=T0 + DAY_MS - 1)
    assert shown(log.records()) == "b1 a- c1"
    assert log.batches()[1].delete_horizon_ms == T0 + DAY_MS
    log.clean_up_to = 0
    log.clean(now_ms=T0 + DAY_MS)
    assert shown(log.records()) == "b1 c1"


def test_records_without_a_key_go(log: Segments) -> None:
    log.append([(None, b"1"), (b"a", b"1")])
    log.roll()
    log.clean()
    assert shown(log.records()) == "a1"


def test_the_last_batch_stays_with_or_without_records(log: Segments) -> None:
    """Check that the cleaned part ends at the offset where it ended before."""
    log.append(pairs("a1"))
    log.append([(None, b"1"), (None, b"2")])
    log.roll()
    log.clean()
    last = log.batches()[-1]
    assert (last.header.record_count, last.header.length, last.last_offset) == (0, BATCH_HEADER_BYTES, 2)
    assert (last.header.base_timestamp, last.header.max_timestamp) == (NO_TIMESTAMP, T0 + 1)
    assert read_time_entries(log.path(0, TIME_INDEX_SUFFIX), 0) == [(T0, 0)]


def test_a_header_stays_for_the_last_sequence_of_a_producer(log: Segments) -> None:
    producers = Producers()
    log.append(pairs("a1"), producer=(1, 0, 0))
    log.append(pairs("b1"), producer=(1, 0, 1))
    log.append(pairs("a2 b2"), producer=(2, 0, 0))
    log.append(pairs("c2"), producer=(2, 0, 2))
    log.roll()
    producers.update(1, 0, 1, 1, 1, T0)
    producers.update(2, 0, 2, 1, 4, T0)
    log.clean(producers=producers.snapshot())
    found = [(b.header.producer_id, b.header.base_sequence, b.header.record_count) for b in log.batches()]
    assert found == [(1, 1, 0), (2, 0, 2), (2, 2, 1)]
    log.clean_up_to = 0
    log.clean(producers=producers.snapshot())
    assert found == [
        (b.header.producer_id, b.header.base_sequence, b.header.record_count) for b in log.batches()
    ]


def test_small_segments_become_one_and_large_ones_stay(log: Segments) -> None:
    for i in range(8):
        log.append([(b"%d" % i, bytes(100))])
        log.roll()
    size = log.path(0).stat().st_size
    log.clean(segment_bytes=3 * size)
    assert log.bases == [0, 3, 6, 8]
    assert [r.offset for r in log.records()] == list(range(8))


def test_the_new_segment_has_indexes_of_its_own(log: Segments) -> None:
    for i in range(10):
        log.append([(b"a", bytes(50)), (b"%d" % i, bytes(100))], timestamp=T0 + 10 * i)
    log.roll()
    log.clean()
    at = {b.last_offset: b.header.position for b in log.batches(0)}
    entries = read_offset_entries(log.path(0, INDEX_SUFFIX), 0)
    assert len(entries) > 3
    assert all(at[offset] == position for offset, position in entries)
    times = read_time_entries(log.path(0, TIME_INDEX_SUFFIX), 0)
    assert times[-1] == (T0 + 91, 19)


def test_a_full_map_cleans_what_it_has_seen(log: Segments) -> None:
    for key in "abcdef":
        log.append(pairs(f"{key}1"))
    log.append(pairs("a2 b2 c2 d2 e2 f2"))
    log.roll()
    assert log.clean(keys=4).end == 4
    assert shown(log.records()) == "a1 b1 c1 d1 e1 f1 a2 b2 c2 d2 e2 f2"
    log.clean_up_to = 6
    with pytest.raises(CleaningFailed, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        log.clean(keys=4)


def test_a_damaged_batch_ends_it(log: Segments) -> None:
    log.append(pairs("a1"))
    log.append(pairs("b1"))
    log.roll()
    data = bytearray(log.path(0).read_bytes())
    data[-3] ^= 1
    log.path(0).write_bytes(data)
    with pytest.raises(CleaningFailed, match=rf"damaged at byte {len(data) // 2}: the CRC"):
        log.clean()
    log.path(0).write_bytes(data[:-5])
    with pytest.raises(CleaningFailed, match=rf"damaged at byte {len(data) // 2}: it is cut off"):
        log.clean()


def test_it_is_synced_bit_by_bit(log: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the copy is synced piece by piece, since an overlay does not pass write-back on."""
    log.append([(b"%d" % number, b"x" * 40_000) for number in range(5)])
    log.roll()
    synced: list[int] = []

    def told_sync(fd: int) -> float:
        synced.append(os.fstat(fd).st_size)
        return 0.25

    monkeypatch.setattr(cleaner, "SYNC_EVERY_BYTES", 65_536)
    monkeypatch.setattr(cleaner, "sync", told_sync)
    told: list[float] = []
    (new,) = Cleaner(log.task(), Buffers(), lambda _count, disk_s: told.append(disk_s)).run()
    assert synced == [65_536 * number for number in range(1, new.size // 65_536 + 1)]
    assert sum(disk_s >= 0.25 for disk_s in told) == len(synced) == 3, "the disk is left alone for it, too"


def test_pace_is_told_of_all_bytes_and_may_end_it(log: Segments) -> None:
    log.append(pairs("a1 a2"))
    log.roll()
    task = log.task()
    old_size = log.path(0).stat().st_size
    told: list[tuple[int, float]] = []
    (new,) = Cleaner(task, Buffers(), lambda count, disk_s: told.append((count, disk_s))).run()
    assert [count for count, _ in told if count] == [old_size, old_size, new.size]
    # What was written was waited for; what was read had just been written.
    assert [disk_s > 0 for count, disk_s in told if count] == [False, False, True]

    class Enough(Exception):
        pass

    def enough(_count: int, _disk_s: float) -> None:
        raise Enough

    with pytest.raises(Enough):
        list(Cleaner(task, Buffers(), enough).run())


# ---- transactions, in logs that Kafka wrote ----


def marker(log: Segments, kind: int, producer_id: int) -> None:
    log.put(
        build_transaction_marker(
            kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=T0
        ),
        1,
    )


def test_an_empty_control_batch_marks_nothing() -> None:
    """Check a batch that was kept only for the last sequence number of its producer."""
    empty = build_batch([], producer_id=5, producer_epoch=0, transactional=True, control=True)
    (batch,) = iterate_batches(empty)
    assert CleanedTransactions([AbortedTransaction(5, 0, 0, 1)]).marks_nothing(batch)
    other = build_batch([NewRecord(b"\0\0\0\2", b"", T0)], control=True)
    (batch,) = iterate_batches(other)
    assert not CleanedTransactions([]).marks_nothing(batch)


def test_a_disk_that_takes_a_part_at_a_time(log: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it with a nearly full disk.

    Half an entry would make the whole segment unreadable for read_committed.
    """
    log.append(pairs("a9 b9"), producer=(5, 0, 0), transactional=True)
    marker(log, ABORT, 5)
    log.append(pairs("z1"))
    log.roll()
    entry = AbortedTransaction(5, 0, 2, 3)
    log.path(0, TXN_INDEX_SUFFIX).write_bytes(packed([entry]))
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
    log.clean()
    monkeypatch.undo()
    assert read_aborted(log.path(0, TXN_INDEX_SUFFIX)) == [entry]
    assert shown(log.records()) == "z1"


def test_aborted_transactions_that_cannot_be_read_end_it(
    log: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it also with Path.exists false for such a file, as from Python 3.14 on."""
    log.append(pairs("a1"))
    log.append(pairs("a9"), producer=(5, 0, 0), transactional=True)
    marker(log, ABORT, 5)
    log.roll()
    log.path(0, TXN_INDEX_SUFFIX).write_bytes(packed([AbortedTransaction(5, 1, 2, 1)]))

    def fails(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(transaction_index, "read_whole", fails)
    monkeypatch.setattr(Path, "exists", lambda *_: False)
    with pytest.raises(OSError, match="Input/output error"):
        list(Cleaner(log.task(), Buffers()).run())


def test_what_was_aborted_goes_and_its_marker_later(log: Segments) -> None:
    log.append(pairs("a1"))
    log.append(pairs("a9 b9"), producer=(5, 0, 0), transactional=True)
    log.append(pairs("b1"), producer=(6, 0, 0), transactional=True)
    marker(log, ABORT, 5)
    marker(log, COMMIT, 6)
    log.append(pairs("z1"))
    log.roll()
    entry = AbortedTransaction(5, 1, 4, 3)
    log.path(0, TXN_INDEX_SUFFIX).write_bytes(packed([entry]))
    log.clean()
    # Aborted records are not in the map, so a1 is the latest; its batches go, its marker is kept so far.
    assert shown(log.records()) == "a1 b1 z1"
    assert [b.header.producer_id for b in log.batches() if b.is_control] == [5, 6]
    assert read_aborted(log.path(0, TXN_INDEX_SUFFIX)) == [entry]
    log.clean_up_to = 0
    log.clean()
    assert [b.delete_horizon_ms for b in log.batches() if b.is_control] == [T0 + DAY_MS, None]
    assert not log.path(0, TXN_INDEX_SUFFIX).exists()
    log.clean_up_to = 0
    log.clean(now_ms=T0 + DAY_MS)
    assert [b.header.producer_id for b in log.batches() if b.is_control] == [6]
    assert shown(log.records()) == "a1 b1 z1"


# ---- the model ----

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b""])
PAIRS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=8))), min_size=1, max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), PAIRS, st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4])),
        st.just(("roll",)),
        st.tuples(st.just("clean"), st.integers(6, 12), st.integers(200, 3000), st.integers(0, 2)),
    ),
    max_size=40,
)


@given(STEPS)
def test_any_sequence_of_produces_and_cleanings(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    """Check that a reader from any offset ends up with the same values as a reader of the whole log."""
    with tempfile.TemporaryDirectory() as name:
        log = Segments(Path(name))
        log.path(0).touch()
        produced: list[Record] = []
        day = 0
        for step in steps:
            if step[0] == "append":
                base = log.append(step[1], codec=step[2], timestamp=T0 + log.end)
                produced += [
                    Record(base + i, T0 + base + i, 0, key, value, ())
                    for i, (key, value) in enumerate(step[1])
                ]
            elif step[0] == "roll":
                log.roll()
            elif log.bases[-1] > log.clean_up_to:
                day += step[3]
                log.clean(keys=step[1], segment_bytes=step[2], now_ms=T0 + day * DAY_MS)
            check(log, produced)


def check(log: Segments, produced: list[Record]) -> None:
    left = log.records()
    by_offset = {record.offset: record for record in produced}
    assert all(by_offset[record.offset] == record for record in left)
    assert [record.offset for record in left] == sorted({record.offset for record in left})
    assert [r for r in left if r.offset >= log.bases[-1]] == produced[log.bases[-1] :]
    if log.end:
        assert log.batches()[-1].last_offset == log.end - 1
    for start in range(0, log.end + 1, 3):
        of_all = {r.key: r.value for r in produced if r.offset >= start}
        of_left = {r.key: r.value for r in left if r.offset >= start}
        newest = {r.key: r.offset for r in produced}
        for key, value in of_all.items():
            if newest[key] >= start:
                # A tombstone may be gone: then so is everything that it deleted.
                assert of_left.get(key) == value
    clean = [r.key for r in left if r.offset < log.clean_up_to]
    assert len(clean) == len(set(clean))


def test_a_disk_that_is_slow_to_begin_is_given_more_at_a_time(
    log: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that pieces grow, up to the size of a buffer."""
    for key in range(64):
        log.append([(b"%d" % key, b"x" * (1 << 18))])
    log.roll()
    pieces: list[int] = []
    write = cleaner.write

    def slow(fd: int, piece: memoryview, position: int) -> float:
        pieces.append(len(piece))
        write(fd, piece, position)
        return 0.01

    monkeypatch.setattr(cleaner, "write", slow)
    before = log.path(0).read_bytes()
    for new in Cleaner(log.task(segment_bytes=1 << 30), Buffers(io_bytes=1 << 19)).run():
        log.replace(new)
    assert log.path(0).read_bytes() == before
    assert (pieces[0], max(pieces)) == (cleaner.PIECE_BYTES, 1 << 18)
