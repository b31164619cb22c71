"""What was aborted stays out, whoever says what was: a Fetch response or an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpbroker.reading.columns import SCHEMA, Columns
from mpbroker.records.aborted import NOT_ENDED, AbortedRange, AbortedRanges, from_fetch
from mpbroker.records.arrow_batches import arrow_batches
from mpbroker.records.batch import ATTRIBUTES_AT, CONTROL_BIT, LAST_OFFSET_DELTA_AT, PRODUCER_ID_AT
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import iterate_batches
from mpbroker.records.markers import ABORT, COMMIT
from mpbroker.records.record import NewRecord
from tests.support.forms import rounds

PRODUCERS_MAX = 3
OFFSETS = pa.schema([SCHEMA.field("offset")])


class Batch(NamedTuple):
    """What stands in a log: some records, or a marker (`kind`)."""

    producer_id: int
    base: int
    count: int
    kind: int | None = None
    transactional: bool = True

    @property
    def data(self) -> bytearray:
        if self.kind is not None:
            return build_transaction_marker(
                self.kind,
                producer_id=self.producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp=0,
                base_offset=self.base,
            )
        return build_batch(
            [NewRecord(value=b"%d" % self.producer_id, timestamp=1)] * self.count,
            base_offset=self.base,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=self.transactional,
        )


steps = st.lists(
    st.tuples(
        st.integers(0, PRODUCERS_MAX - 1),
        st.sampled_from(["write", "write", "write", "plain", "commit", "abort", "gap"]),
        st.integers(1, 3),
    ),
    max_size=60,
)


def log_of(steps: list[tuple[int, str, int]]) -> tuple[list[Batch], list[AbortedRange]]:
    """The batches, and what was aborted, of producers that take turns."""
    batches: list[Batch] = []
    aborted: list[AbortedRange] = []
    begun: dict[int, int] = {}
    offset = 0
    for producer_id, step, count in steps:
        if step == "write":
            begun.setdefault(producer_id, offset)
            batches.append(Batch(producer_id, offset, count))
        elif step == "plain":
            batches.append(Batch(producer_id + PRODUCERS_MAX, offset, count, transactional=False))
        elif step in ("commit", "abort"):
            count = 1
            batches.append(Batch(producer_id, offset, 1, ABORT if step == "abort" else COMMIT))
            first = begun.pop(producer_id, None)
            if step == "abort" and first is not None:
                aborted.append(AbortedRange(producer_id, first, offset))
        offset += count
    return batches, aborted


def as_a_consumer(batches: list[Batch], aborted: list[tuple[int, int]]) -> Iterator[int]:
    """The offsets that Kafka's consumer returns: it goes from batch to batch and keeps who is aborted."""
    waiting = sorted(aborted, key=lambda one: one[1])
    in_aborted: set[int] = set()
    for batch in batches:
        while waiting and waiting[0][1] <= batch.base + batch.count - 1:
            in_aborted.add(waiting.pop(0)[0])
        if batch.kind is not None:
            if batch.kind == ABORT:
                in_aborted.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in in_aborted):
            yield from range(batch.base, batch.base + batch.count)


def decoded(data: bytes, aborted: AbortedRanges) -> list[int]:
    """The offsets that Arrow's decoder returns; a walk over the batches finds the same ones."""
    columns = Columns(OFFSETS, "t", 0, check_crcs=True)
    batches = columns.decode(data, 0, len(data), 0, 1 << 40, aborted)
    found = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    left = (one for one in iterate_batches(data) if not one.is_control and not aborted.is_aborted(one))
    assert [record.offset for batch in left for record in batch.records()] == found
    return found


@settings(max_examples=rounds(300), deadline=None)
@given(steps, st.data())
def test_a_fetch_is_read_as_kafka_s_consumer_reads_it(
    steps: list[tuple[int, str, int]], data: st.DataObject
) -> None:
    """Some of the log is fetched; the broker names what overlaps it, and perhaps a little more."""
    batches, aborted = log_of(steps)
    begin = data.draw(st.integers(0, len(batches)))
    end = data.draw(st.integers(begin, len(batches)))
    fetched = batches[begin:end]
    if not fetched:
        return
    start = fetched[0].base
    overlapping = [one for one in aborted if one.last_offset >= start]
    named = [(one.producer_id, one.first_offset) for one in overlapping]
    raw = b"".join(batch.data for batch in fetched)
    assert decoded(raw, from_fetch(raw, named)) == list(as_a_consumer(fetched, named))
    # What an index says is the same, its ends known.
    assert decoded(raw, AbortedRanges(overlapping)) == list(as_a_consumer(fetched, named))
    assert decoded(raw, AbortedRanges()) == [
        n for one in fetched if one.kind is None for n in range(one.base, one.base + one.count)
    ]


def test_a_transaction_ends_at_its_next_abort_marker() -> None:
    log = [
        Batch(1, 0, 2),
        Batch(2, 2, 1),
        Batch(1, 3, 1, ABORT),
        Batch(1, 4, 1),
        Batch(2, 5, 1, COMMIT),
        Batch(1, 6, 1, COMMIT),
        Batch(1, 7, 1),
    ]
    raw = b"".join(batch.data for batch in log)
    assert list(from_fetch(raw, [(1, 0)])) == [(1, 0, 3)]
    assert list(from_fetch(raw, [(1, 7), (1, 0), (2, 2), (9, 1)])) == [
        (1, 0, 3),
        (1, 7, NOT_ENDED),
        (2, 2, NOT_ENDED),
        (9, 1, NOT_ENDED),
    ]
    assert list(from_fetch(raw, [])) == []
    assert list(from_fetch(b"", [(1, 0)])) == [(1, 0, NOT_ENDED)]


ranges = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 30)).map(
        lambda drawn: AbortedRange(drawn[0], min(drawn[1:]), max(drawn[1:]))
    ),
    max_size=12,
)


@settings(max_examples=rounds(200), deadline=None)
@given(ranges)
def test_ranges_may_overlap_and_come_in_any_order(found: list[AbortedRange]) -> None:
    batches = [Batch(producer_id, offset, 1) for offset in range(31) for producer_id in range(4)]
    raw = b"".join(batch.data for batch in batches)
    wanted = [
        batch.base
        for batch in batches
        if not any(
            one.producer_id == batch.producer_id and one.first_offset <= batch.base <= one.last_offset
            for one in found
        )
    ]
    assert decoded(raw, AbortedRanges(found)) == wanted
    assert len(AbortedRanges(found)) == len(found)


def test_thousands_of_aborted_transactions() -> None:
    """Each of as many producers aborts its first transaction and commits its second."""
    producers = 5000
    aborted = [AbortedRange(one, one, producers + one) for one in range(producers)]
    log = [Batch(one, one, 1) for one in range(producers)]
    log += [Batch(one, producers + one, 1, ABORT) for one in range(producers)]
    log += [Batch(one, 2 * producers + one, 1) for one in range(producers)]
    raw = b"".join(batch.data for batch in log)
    assert decoded(raw, AbortedRanges(aborted)) == list(range(2 * producers, 3 * producers))


@pytest.mark.parametrize(
    ("position", "flip"),
    [
        (ATTRIBUTES_AT + 1, CONTROL_BIT),
        (PRODUCER_ID_AT + 7, 5 ^ 7),
        (LAST_OFFSET_DELTA_AT, 0x80),
    ],
    ids=["control", "producer", "last offset"],
)
def test_a_flipped_bit_does_not_hide_a_batch(position: int, flip: int) -> None:
    """It would look like a marker, like one of an aborted transaction, or like one below the range."""
    raw = Batch(5, 10, 3).data
    aborted = AbortedRanges([(7, 0, 100)])
    (batch,) = arrow_batches(raw, OFFSETS, aborted=aborted)
    assert batch.num_rows == 3
    raw[position] ^= flip
    with pytest.raises(CorruptBatch, match="CRC"):
        list(arrow_batches(raw, OFFSETS, aborted=aborted))
