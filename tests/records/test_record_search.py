"""The search for a time in a batch finds what a look at every record finds, in however many pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpbroker.records import record_search
from mpbroker.records.batch import BATCH_HEADER_BYTES, LOG_APPEND_TIME_BIT
from mpbroker.records.builder import build_batch, with_records
from mpbroker.records.compression import Codec, compress
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.record import NewRecord
from mpbroker.records.record_search import BEGUN_WITH_BYTES, RecordSearch
from mpbroker.records.stream import RecordWriter, seal

T0 = 1_000
BASE = 50


@pytest.fixture(name="tiny_pieces", scope="module", autouse=True)
def _tiny_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_search, "BEGUN_WITH_BYTES", 40)
        patch.setattr(record_search, "SEARCHED_AT_ONCE_BYTES", 40)
        yield


def batch_of(
    records: Sequence[tuple[int, int]],
    codec: Codec = Codec.NONE,
    append_time: int | None = None,
    value: bytes = b"v" * 30,
) -> bytes:
    """A batch of (offset delta, timestamp) records, which may have gaps."""
    writer = RecordWriter(T0)
    for delta, timestamp in records:
        writer.add(NewRecord(value, b"k", timestamp), delta)
    whole = writer.finish()
    if codec is not Codec.NONE:
        whole = with_records(compress(codec, memoryview(whole)[BATCH_HEADER_BYTES:]))
    return sealed(whole, records, codec, append_time)


def sealed(
    whole: bytearray, records: Sequence[tuple[int, int]], codec: Codec, append_time: int | None = None
) -> bytes:
    largest = max(timestamp for _, timestamp in records)
    seal(
        whole,
        base_offset=BASE,
        leader_epoch=0,
        attributes=codec | (0 if append_time is None else LOG_APPEND_TIME_BIT),
        last_offset_delta=records[-1][0],
        base_timestamp=T0,
        max_timestamp=largest if append_time is None else append_time,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=len(records),
    )
    return bytes(whole)


def expected(data: bytes, timestamp_ms: int, from_offset: int) -> tuple[int, int] | None:
    (batch,) = iterate_batches(data)
    left = [(one.timestamp, one.offset) for one in batch.records() if one.offset >= from_offset]
    late = [one for one in left if one[0] >= timestamp_ms]
    return late[0] if late else max(left, key=lambda one: one[0], default=None)


def found(data: bytes, timestamp_ms: int, from_offset: int) -> tuple[tuple[int, int] | None, int]:
    """The answer, and in how many steps it came."""
    search, steps = RecordSearch(data, timestamp_ms, from_offset), 1
    while not search.step():
        steps += 1
    return search.found, steps


RECORDS = st.lists(st.tuples(st.integers(1, 3), st.integers(T0 - 5, T0 + 20)), min_size=1, max_size=30).map(
    lambda some: [(sum(gap for gap, _ in some[:i]), one[1]) for i, one in enumerate(some)]
)


@given(
    records=RECORDS,
    codec=st.sampled_from(Codec),
    append_time=st.none() | st.just(T0 + 7),
    timestamp_ms=st.integers(T0 - 6, T0 + 21),
    from_offset=st.integers(BASE - 1, BASE + 100),
)
def test_it_finds_what_a_look_at_each_record_finds(
    records: list[tuple[int, int]],
    codec: Codec,
    append_time: int | None,
    timestamp_ms: int,
    from_offset: int,
) -> None:
    data = batch_of(records, codec, append_time)
    (header,) = (one.header for one in iterate_batches(data))
    # Nobody searches a batch whose header says that all is earlier.
    timestamp_ms = min(timestamp_ms, header.max_timestamp)
    assert found(data, timestamp_ms, from_offset)[0] == expected(data, timestamp_ms, from_offset)


@pytest.mark.parametrize("codec", Codec)
def test_it_is_done_in_pieces(codec: Codec) -> None:
    records = [(i, T0 + i) for i in range(100)]
    data = batch_of(records, codec, value=b"")
    answer, steps = found(data, T0 + 99, BASE)
    assert answer == (T0 + 99, BASE + 99)
    assert steps > 5
    # A library may keep the first bytes back for a while.
    answer, fewer = found(data, T0, BASE)
    assert answer == (T0, BASE)
    assert fewer < steps


def garbage(records: Sequence[tuple[int, int]], append_time: int | None = None) -> bytes:
    """A batch whose records cannot be unpacked."""
    return sealed(with_records(b"no frame of zstd"), records, Codec.ZSTD, append_time)


@pytest.mark.parametrize(
    ("records", "append_time", "from_offset", "answer"),
    [
        ([(0, T0)], None, 0, (T0, BASE)),
        ([(0, T0)], None, BASE, (T0, BASE)),
        ([(0, T0), (1, T0), (2, T0)], T0 + 9, 0, (T0 + 9, BASE)),
        ([(0, T0), (1, T0), (2, T0)], T0 + 9, BASE + 2, (T0 + 9, BASE + 2)),
    ],
)
def test_the_header_tells_what_is_the_same_for_all_records(
    records: Sequence[tuple[int, int]], append_time: int | None, from_offset: int, answer: tuple[int, int]
) -> None:
    assert found(garbage(records, append_time), T0, from_offset) == (answer, 1)


@pytest.mark.parametrize(
    ("records", "append_time", "from_offset"),
    [
        ([(0, T0), (1, T0)], None, 0),
        ([(1, T0)], None, 0),
        ([(0, T0), (2, T0)], T0, 0),
        ([(0, T0)], None, BASE + 1),
    ],
)
def test_whoever_has_to_unpack_is_told_of_damage_each_time(
    records: Sequence[tuple[int, int]], append_time: int | None, from_offset: int
) -> None:
    search = RecordSearch(garbage(records, append_time), T0, from_offset)
    for _ in range(2):
        with pytest.raises(CorruptBatch, match="zstd"):
            search.step()
    assert search.is_over


@pytest.mark.parametrize(
    "stream", [b"", b"\x01" + bytes(30), b"\xff" * 40, b"\x02\x00", bytes(30), b"\x7e\x00"]
)
def test_malformed_records_are_told(stream: bytes) -> None:
    for codec in (Codec.NONE, Codec.ZSTD):
        whole = with_records(stream if codec is Codec.NONE else compress(codec, stream))
        with pytest.raises(CorruptBatch):
            found(sealed(whole, [(0, T0), (1, T0 + 1)], codec), T0 + 1, BASE)


def test_records_that_do_not_fill_the_batch_are_told() -> None:
    records = [(0, T0), (1, T0 + 1)]
    whole = with_records(batch_of(records)[BATCH_HEADER_BYTES:] + b"\0")
    with pytest.raises(CorruptBatch):
        found(sealed(whole, records, Codec.NONE), T0 + 2, BASE)


def test_what_is_no_batch_is_told_at_once() -> None:
    data = bytearray(batch_of([(0, T0), (1, T0)]))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch):
        RecordSearch(data, T0, BASE)


def test_a_bomb_is_begun_with_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a search that waits for its turn has not unpacked much."""
    monkeypatch.setattr(record_search, "BEGUN_WITH_BYTES", BEGUN_WITH_BYTES)
    data = build_batch([NewRecord(bytes(1 << 20), timestamp=T0 + i) for i in range(2)], codec=Codec.ZSTD)
    search = RecordSearch(bytes(data), T0 + 1, 0)
    assert not search.step()
    assert search._unpacking is not None
    # zstd unpacks a block of 128 KiB at once.
    assert len(search._unpacking.stream) <= BEGUN_WITH_BYTES + (128 << 10)
