"""The cleaner against a model, and rule by rule (Kafka: LogCleanerTest)."""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.log.compaction import cleaner
from mpbroker.log.compaction.cleaned_transactions import CleanedTransactions
from mpbroker.log.compaction.cleaner import Buffers, Cleaner, CleaningFailed
from mpbroker.log.compaction.offset_map import SLOT_BYTES, OffsetMap, siphash
from mpbroker.reading.transactions import aborted_in
from mpbroker.records.batch import BATCH_HEADER_BYTES, NO_TIMESTAMP
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, COMMIT, marker_of
from mpbroker.records.record import NewRecord, Record
from mpbroker.storage import transaction_index
from mpbroker.storage.index import read_offset_entries, read_time_entries
from mpbroker.storage.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from mpbroker.storage.producer_state import Producers
from mpbroker.storage.transaction_index import AbortedTransaction, packed, read_aborted
from tests.support.compacted_segments import DAY_MS, T0, KeyValue, Segments
from tests.support.forms import rounds
from tests.support.full_disk import failing_with


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


def clean_again(log: Segments, *, now_ms: int = T0, producers: bytes = b"") -> None:
    """Clean all of it once more, as if something behind it was dirty."""
    log.clean_up_to = 0
    log.clean(now_ms=now_ms, producers=producers)


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
    clean_again(log, now_ms=T0 + DAY_MS - 1)
    assert shown(log.records()) == "b1 a- c1"
    assert log.batches()[1].delete_horizon_ms == T0 + DAY_MS
    clean_again(log, now_ms=T0 + DAY_MS)
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
    clean_again(log, producers=producers.snapshot())
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


# ---- transactions ----


def write(log: Segments, text: str, *, epoch: int = 0) -> None:
    """Append what the words say.

    `a1`: a record; `5:a1`: one in a transaction of producer 5; `5!` aborts it, `5.` commits it; `/`: a roll.
    """
    for word in text.split():
        if word == "/":
            log.roll()
        elif word[-1] in MARKERS:
            log.end_transaction(MARKERS[word[-1]], int(word[:-1]), epoch)
        elif ":" in word:
            producer_id, _, pair = word.partition(":")
            log.append(pairs(pair), producer=(int(producer_id), epoch, log.end), transactional=True)
        else:
            log.append(pairs(word))


MARKERS = {"!": ABORT, ".": COMMIT}


def written(log: Segments) -> str:
    """Return the words of what is in the log. `5:` is an emptied batch, `5?` an emptied marker."""
    words = []
    for batch in log.batches():
        producer_id = batch.header.producer_id
        if batch.is_control:
            marker = marker_of(batch.bytes)
            sign = "?" if marker is None else {kind: sign for sign, kind in MARKERS.items()}[marker[0]]
            words.append(f"{producer_id}{sign}")
        else:
            owner = f"{producer_id}:" if batch.is_transactional else ""
            words.append(owner + shown(batch.records()))
    return " ".join(words)


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
    write(log, "5:a9 5:b9 5! z1 /")
    wanted = log.aborted()
    assert wanted == [AbortedTransaction(5, 0, 2, 3)]
    write_some = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write_some(fd, data[:20]))
    log.clean()
    monkeypatch.undo()
    assert log.aborted() == wanted
    assert shown(log.records()) == "z1"


def test_aborted_transactions_that_cannot_be_read_end_it(
    log: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check it also with Path.exists false for such a file, as from Python 3.14 on."""
    write(log, "a1 5:a9 5! /")
    task = log.task()

    monkeypatch.setattr(transaction_index, "read_whole", failing_with(errno.EIO))
    monkeypatch.setattr(Path, "exists", lambda *_: False)
    with pytest.raises(OSError, match="Input/output error"):
        list(Cleaner(task, Buffers()).run())


def test_what_was_aborted_goes_and_its_marker_later(log: Segments) -> None:
    write(log, "a1 5:a9 5:b9 6:b1 5! 6. z1 /")
    entries = log.aborted()
    assert entries == [AbortedTransaction(5, 1, 4, 3)]
    log.clean()
    # Aborted records are not in the map, so a1 is the latest; its batches go, its marker is kept so far.
    assert written(log) == "a1 6:b1 5! 6. z1"
    assert log.aborted() == entries
    clean_again(log)
    assert [b.delete_horizon_ms for b in log.batches() if b.is_control] == [T0 + DAY_MS, None]
    assert not log.path(0, TXN_INDEX_SUFFIX).exists()
    clean_again(log, now_ms=T0 + DAY_MS)
    assert written(log) == "a1 6:b1 6. z1"


@pytest.mark.parametrize("behind", ["5!", "b2 / 5!", "6:c1 / 6! / 6:c1 / 5! 6!"])
def test_a_marker_in_a_later_segment_aborts(log: Segments, behind: str) -> None:
    """Check that the committed value stays, whether the marker's segment is sealed, young or active."""
    write(log, "4:a1 4. / 5:a2 5:a- / " + behind)
    log.clean(young=len(log.bases) - 3)
    # A header keeps the last offset.
    assert written(log) == f"4:a1 4. 5: {behind.replace('/ ', '')}"


def test_nothing_above_the_last_stable_offset_is_cleaned(log: Segments) -> None:
    write(log, "a1 / a2 / b1 5:a3 / a4 /")
    assert log.clean().end == 2
    assert written(log) == "a2 b1 5:a3 a4"
    log.end_transaction(ABORT, 5)
    assert log.clean().end == 5
    assert written(log) == "b1 a4 5!"


@pytest.mark.parametrize("between", ["", "/"])
def test_earlier_transactions_of_the_producer_do_not_count(log: Segments, between: str) -> None:
    """Check that a deleted key stays deleted, its tombstone being of a producer that aborted before.

    The dirty part begins with a segment, or within one.
    """
    write(log, f"k1 5:x1 5! 5:y1 5! z1 {between} 5:k- 5. z2 /")
    log.clean_up_to = 6
    log.clean()
    assert written(log) == "5! 5! 5:k- 5. z2"
    clean_again(log, now_ms=T0 + DAY_MS)
    assert log.batches()[2].header.producer_id == 5
    assert shown(log.records()) == "z2"


def test_an_entry_that_was_left_behind_aborts_nothing_later(log: Segments) -> None:
    """Check an entry of a transaction of which nothing is left, from a kill amid a swap."""
    write(log, "a1 b1 5:a2 5. 5:b2 5. z1 /")
    log.path(0, TXN_INDEX_SUFFIX).write_bytes(packed([AbortedTransaction(5, 0, 1, 2)]))
    log.clean()
    assert written(log) == "5:a2 5. 5:b2 5. z1"
    assert log.aborted() == []


@pytest.mark.parametrize("swaps", [0, 1, None])
def test_a_transaction_across_two_new_segments(log: Segments, swaps: int | None) -> None:
    """Check it also when a kill interrupted the cleaning, before or after the first swap."""
    write(log, "4:a1 5:b1 6:c1 / 4:a2 5:b2 6:c2 / 4! 5. 6:c3 6. z1 /")
    entries = log.aborted()
    two_bytes = log.path(0).stat().st_size + log.path(3).stat().st_size
    if swaps is not None:
        log.clean(segment_bytes=two_bytes, swaps=swaps)
        assert log.clean_up_to == 0
    log.clean(segment_bytes=two_bytes)
    assert written(log) == "5:b2 4! 5. 6:c3 6. z1"
    assert log.bases[0] == 0
    if swaps is None:
        assert log.bases == [0, 6, 11]
        # Read_committed consumers of the old first segment need it.
        assert read_aborted(log.path(6, TXN_INDEX_SUFFIX)) == entries
    clean_again(log)
    assert log.aborted() == []
    assert written(log) == "5:b2 4! 5. 6:c3 6. z1"
    assert [b.delete_horizon_ms is None for b in log.batches() if b.is_control] == [False, True, True]


def test_a_transaction_whose_beginning_was_deleted(log: Segments) -> None:
    write(log, "a1 4:a2 5:b2 / a3 4:a4 5:b4 / 4! 5. z1 /")
    log.delete_records(4)
    assert log.bases == [3, 6, 9]
    assert (log.aborted()[0].first_offset, log.dirty().first_dirty) == (1, 4)
    log.clean()
    assert written(log) == "a3 5:b4 4! 5. z1"
    log.delete_records(6)
    write(log, "/ z2 /")
    clean_again(log)
    assert written(log) == "a3 5:b4 4! 5. z2"


def test_a_log_that_begins_behind_all_data_of_its_markers(log: Segments) -> None:
    write(log, "4:a1 5:b1 / 4! 5. z1 /")
    log.delete_records(2)
    log.clean()
    assert log.aborted() == []
    clean_again(log, now_ms=T0 + DAY_MS)
    assert written(log) == "z1"


def test_a_new_epoch_of_the_producer_changes_nothing(log: Segments) -> None:
    """Check markers of a raised epoch (KIP-890), and a fenced producer's transaction."""
    write(log, "a1 5:a2")
    write(log, "5! 5:a3", epoch=1)
    write(log, "5. 5:a4", epoch=2)
    write(log, "5! z1 /", epoch=3)
    log.clean()
    assert written(log) == "5! 5:a3 5. 5! z1"
    assert [entry.last_offset for entry in log.aborted()] == [2, 6]


def test_a_marker_without_a_transaction_goes(log: Segments) -> None:
    write(log, "5! 6. 5:a1 5. 5! z1 /")
    log.clean()
    assert [b.delete_horizon_ms is None for b in log.batches()] == [False, False, True, True, False, True]
    clean_again(log, now_ms=T0 + DAY_MS)
    assert written(log) == "5:a1 5. z1"


def test_headers_that_stay_keep_marker_and_entry(log: Segments) -> None:
    write(log, "5:a1 5:b1 /")
    producers = log.producers.snapshot()
    write(log, "5! z1 /", epoch=1)
    entries = log.aborted()
    for _ in range(2):
        clean_again(log, now_ms=T0 + DAY_MS, producers=producers)
        assert written(log) == "5: 5! z1"
        assert log.aborted() == entries
    # The marker's new epoch ended the sequence. The marker of that epoch stays, with or without a record.
    for now_ms, left in ((0, "5! z1"), (0, "5! z1"), (3 * DAY_MS, "5? z1")):
        clean_again(log, now_ms=T0 + now_ms, producers=log.producers.snapshot())
        assert written(log) == left
    assert log.aborted() == []
    clean_again(log)
    assert written(log) == "z1"


@pytest.mark.parametrize("sign", MARKERS)
def test_a_header_without_an_entry_keeps_its_marker(log: Segments, sign: str) -> None:
    """Check that no start takes the transaction for open, also where the index of a clean segment is lost."""
    write(log, f"5:a1 5{sign} a2 /")
    producers = log.producers.snapshot()
    for _ in range(3):
        log.clean(producers=producers, now_ms=T0 + 5 * DAY_MS)
        assert written(log) == f"5: 5{sign} a2"
        log.path(0, TXN_INDEX_SUFFIX).unlink(missing_ok=True)
        log.clean_up_to = 0


def test_the_last_batch_stays_though_the_map_is_full_and_it_is_aborted(log: Segments) -> None:
    write(log, "a1 b1 c1 d1 5:a9 / 5!")
    assert log.clean(keys=2).end == 2
    assert written(log) == "a1 b1 c1 d1 5: 5!"


def test_ranges_of_one_producer_that_overlap(log: Segments) -> None:
    """Check that a batch of any of them is aborted, and entries that two indexes have."""
    write(log, "a1 5:b1 5:a2 5:b2 5! 5:a3 5! z1 / y1")
    entries = [AbortedTransaction(5, 2, 4, 7), AbortedTransaction(5, 1, 6, 7)]
    for base in log.bases:
        log.path(base, TXN_INDEX_SUFFIX).write_bytes(packed(entries))
    log.clean()
    assert written(log) == "a1 5! 5! z1 y1"
    assert read_aborted(log.path(0, TXN_INDEX_SUFFIX)) == entries


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([], "the marker at offset 2 aborts records of producer 5"),
        ([AbortedTransaction(5, 1, 4, 5)], "the marker at offset 2 aborts"),
        ([AbortedTransaction(5, 1, 2, 3), AbortedTransaction(5, 3, 5, 6)], "the marker at offset 4 commits"),
        ([AbortedTransaction(6, 1, 2, 3)], "the marker at offset 2 aborts"),
    ],
)
def test_an_index_that_contradicts_the_markers_ends_it(
    log: Segments, entries: list[AbortedTransaction], says: str
) -> None:
    """Check that nothing is taken for committed, or aborted, because an entry is lost or wrong."""
    write(log, "a1 5:a2 5! 5:a3 5. z1 /")
    before = log.path(0).read_bytes()
    log.path(0, TXN_INDEX_SUFFIX).write_bytes(packed(entries))
    with pytest.raises(CleaningFailed, match=rf"{log.path(0)}: {says}.*\. Stop the broker"):
        log.clean()
    assert log.path(0).read_bytes() == before


def test_an_index_of_a_later_segment_counts_for_what_it_says(log: Segments) -> None:
    """Check a damaged one, one that the log process is writing to, and one that retention removes."""
    write(log, "a1 5:a2 / 5! / b1 6:c1 6!")
    task = log.task(young=1)
    sealed, active = log.path(2, TXN_INDEX_SUFFIX), log.path(3, TXN_INDEX_SUFFIX)
    whole = sealed.read_bytes()
    sealed.write_bytes(whole[:20])
    with pytest.raises(CleaningFailed, match=rf"{sealed} ends within an entry.*\. Stop the broker"):
        list(Cleaner(task, Buffers()).run())
    sealed.unlink()
    sealed.symlink_to("gone")
    with pytest.raises(FileNotFoundError):
        list(Cleaner(task, Buffers()).run())
    sealed.unlink()
    # As if the marker was in the active segment.
    active.write_bytes(whole + whole[:20])
    for new in Cleaner(task, Buffers()).run():
        log.replace(new)
    assert written(log) == "a1 5: 5! b1 6:c1 6!"


def test_each_new_segment_has_the_entries_of_its_markers(log: Segments) -> None:
    write(log, "4:a1 4! 5:a1 a2 / 5! 4:a3 4! b1 / b2")
    first, second, third = log.aborted()
    log.clean(segment_bytes=log.path(0).stat().st_size)
    assert read_aborted(log.path(0, TXN_INDEX_SUFFIX)) == [first]
    assert read_aborted(log.path(4, TXN_INDEX_SUFFIX)) == [second, third]


# ---- the model ----

PAIRS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b""]), st.one_of(st.none(), st.binary(max_size=4))),
    min_size=1,
    max_size=3,
)
CODECS = st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4])
PRODUCERS = st.integers(1, 2)
APPEND = st.tuples(st.just("append"), PAIRS, CODECS)
TRANSACT = st.tuples(st.just("append"), PAIRS, CODECS, PRODUCERS)
END = st.tuples(st.just("end"), PRODUCERS, st.sampled_from([ABORT, COMMIT]), st.sampled_from([0, 0, 1]))
ROLL = st.just(("roll",))
DELETE = st.tuples(st.just("delete"), st.integers(1, 10))
CLEAN = st.tuples(
    st.just("clean"),
    st.fixed_dictionaries(
        {
            "keys": st.integers(4, 12),
            "segment_bytes": st.sampled_from([100, 300, 600, 3000]),
            "times": st.integers(1, 3),
            "days": st.integers(0, 2),
            "young": st.sampled_from([0, 0, 0, 1]),
            "swaps": st.sampled_from([None, None, None, 0, 1]),
            "with_producers": st.booleans(),
        }
    ),
)
STEPS = st.lists(
    st.one_of(APPEND, TRANSACT, TRANSACT, END, END, ROLL, CLEAN, CLEAN, DELETE), min_size=12, max_size=60
)


@dataclass
class Model:
    """What was produced, and what became of it.

    `undecided`: the offsets in open transactions, by producer.
    """

    log: Segments
    produced: dict[int, Record] = field(default_factory=dict)
    undecided: dict[int, list[int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    epochs: dict[int, int] = field(default_factory=dict)
    day: int = 0

    def append(self, of: list[KeyValue], codec: Codec, producer_id: int = -1) -> None:
        log = self.log
        producer = (
            (producer_id, self.epochs.get(producer_id, 0), log.end) if producer_id >= 0 else (-1, -1, -1)
        )
        base = log.append(
            of, codec=codec, timestamp=T0 + log.end, producer=producer, transactional=producer_id >= 0
        )
        for offset, (key, value) in enumerate(of, base):
            self.produced[offset] = Record(offset, T0 + offset, 0, key, value, ())
            if producer_id >= 0:
                self.undecided.setdefault(producer_id, []).append(offset)

    def end(self, producer_id: int, kind: int, bump: int) -> None:
        self.epochs[producer_id] = self.epochs.get(producer_id, 0) + bump
        self.log.end_transaction(kind, producer_id, self.epochs[producer_id])
        offsets = self.undecided.pop(producer_id, [])
        if kind == ABORT:
            self.aborted.update(offsets)

    def clean(self, times: int, days: int, young: int, with_producers: bool, **how: Any) -> None:
        """Clean, and again as if the checkpoint was lost."""
        log = self.log
        for _ in range(times):
            self.day += days
            now_ms = T0 + self.day * DAY_MS
            if not log.dirty(now_ms, young).bytes_dirty:
                return
            producers = log.producers.snapshot() if with_producers else b""
            log.clean(now_ms=now_ms, young=young, producers=producers, **how)
            check(self)
            log.clean_up_to = 0

    def committed(self) -> list[Record]:
        end = self.log.last_stable_offset
        return [one for at, one in self.produced.items() if at < end and at not in self.aborted]


@given(STEPS)
@settings(max_examples=rounds(600), deadline=None)
def test_any_sequence_of_produces_and_cleanings(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    """Check that a reader from any offset ends up with the same values as a reader of the whole log."""
    with tempfile.TemporaryDirectory() as name:
        model = Model(Segments(Path(name)))
        log = model.log
        log.path(0).touch()
        for what, *given_with in steps:
            match what:
                case "append":
                    model.append(*given_with)
                case "end":
                    model.end(*given_with)
                case "roll":
                    log.roll()
                case "clean":
                    model.clean(**given_with[0])
                case "delete":
                    log.delete_records(min(log.start + given_with[0], log.end))
        check(model)


def check(model: Model) -> None:
    log, left = model.log, model.log.records()
    assert all(model.produced[record.offset] == record for record in left)
    assert [record.offset for record in left] == sorted({record.offset for record in left})
    active = [at for at in model.produced if at >= log.bases[-1]]
    assert [r.offset for r in left if r.offset >= log.bases[-1]] == active
    batches = log.batches()
    if batches or not log.start:
        assert not log.end or batches[-1].last_offset == log.end - 1
    committed = model.committed()
    newest = {r.key: r.offset for r in committed}
    for start in range(log.start, log.end + 1, 3):
        seen = read_committed(log, start)
        assert {r.offset for r in seen} <= {r.offset for r in committed}
        of_all = {r.key: r.value for r in committed if r.offset >= start}
        of_left = {r.key: r.value for r in seen}
        for key, value in of_all.items():
            if newest[key] >= start:
                # A tombstone may be gone: then so is everything that it deleted.
                assert of_left.get(key) == value
    clean = [r.key for r in left if log.start <= r.offset < log.clean_up_to]
    assert len(clean) == len(set(clean))
    markers = {b.last_offset: b.header.producer_id for b in batches if b.is_control and b.header.record_count}
    for base, end in zip(log.bases, [*log.bases[1:], log.end], strict=True):
        path = log.path(base, TXN_INDEX_SUFFIX)
        for entry in read_aborted(path) if path.exists() else ():
            assert base <= entry.last_offset < end
            assert markers[entry.last_offset] == entry.producer_id


def read_committed(log: Segments, start: int) -> list[Record]:
    """Return what a consumer has from an offset on (Kafka: CompletedFetch, read_committed)."""
    end = log.last_stable_offset
    begun = sorted(aborted_in(log.directory, start, end), key=lambda one: -one.first_offset)
    aborting: set[int] = set()
    found: list[Record] = []
    for batch in log.batches():
        if batch.last_offset < start or batch.last_offset >= end:
            continue
        while begun and begun[-1].first_offset <= batch.last_offset:
            aborting.add(begun.pop().producer_id)
        producer_id = batch.header.producer_id
        if batch.is_control:
            marker = marker_of(batch.bytes)
            if marker is not None and marker[0] == ABORT:
                aborting.discard(producer_id)
        elif not (batch.is_transactional and producer_id in aborting):
            found += [record for record in batch.records() if record.offset >= start]
    return found


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
