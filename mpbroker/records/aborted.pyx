"""Finds the batches of aborted transactions, which read_committed readers must not return (KIP-98).

The Arrow decoder, readers of segment files and readers of fetched bytes use `AbortedRanges`.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint8_t

from mpbroker.records.batch cimport BASE_OFFSET_AT, CONTROL_BIT, BatchInfo, load_i64
from mpbroker.records.markers cimport ABORT, Marker, read_marker

from bisect import bisect_right
from typing import NamedTuple, TYPE_CHECKING

from mpbroker.records.batch import frame_at
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.markers import marker_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing_extensions import Buffer
    from mpbroker.records.iterate import Batch

NOT_ENDED = (1 << 63) - 1


class AbortedRange(NamedTuple):
    """A range [first_offset, last_offset] in which the producer's transactional records were aborted.

    `last_offset` is the offset of the abort marker, or NOT_ENDED. Where ranges of a producer
    overlap, `last_offset` may be the offset of a later abort marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int


cdef class AbortedRanges:
    """A set of aborted transactions. `found` has tuples (producer id, first offset, last offset).

    The tuples are sorted once, so that the look-up for a batch takes logarithmic time. `complete` means that
    `found` has all aborted transactions of the range that is read. Then `note_batch` raises
    CorruptBatch for an abort marker of any other transaction whose records were returned.
    """

    def __cinit__(self, found: Iterable[tuple[int, int, int]] = (), *, complete: bool = False):
        # The producers with records handed out since their last marker.
        self.handed_out = set() if complete else None
        ordered = sorted(found)
        cdef Range *previous
        cdef Py_ssize_t number
        self.ranges = <Range *>PyMem_Malloc(max(len(ordered), 1) * sizeof(Range))
        if self.ranges == NULL:
            raise MemoryError
        for number, (producer_id, first_offset, last_offset) in enumerate(ordered):
            self.ranges[number] = Range(producer_id, first_offset, last_offset)
            if number == 0:
                continue
            previous = &self.ranges[number - 1]
            # `covers` reads the last range that begins at or before an offset: where ranges of a producer
            # overlap, it must reach as far as those before it.
            if previous.producer_id == producer_id and previous.last_offset > last_offset:
                self.ranges[number].last_offset = previous.last_offset
        self.count = len(ordered)

    def __dealloc__(self):
        PyMem_Free(self.ranges)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[AbortedRange]:
        cdef Py_ssize_t number
        for number in range(self.count):
            one = self.ranges[number]
            yield AbortedRange(one.producer_id, one.first_offset, one.last_offset)

    @property
    def unmarked(self) -> frozenset[int]:
        """Return the ids of producers whose returned records have no marker yet; empty unless `complete`."""
        return frozenset(self.handed_out or ())

    def is_aborted(self, batch: Batch) -> bool:
        """Return whether an `iterate.Batch` belongs to an aborted transaction."""
        header = batch.header
        return batch.is_transactional and self.covers(header.producer_id, header.base_offset)

    cdef bint covers(self, int64_t producer_id, int64_t offset) noexcept nogil:
        """Return whether a transactional batch with this producer and base offset was aborted."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.count
        cdef Py_ssize_t middle
        cdef Range *one
        while low < high:
            middle = (low + high) // 2
            one = &self.ranges[middle]
            if one.producer_id < producer_id or (
                one.producer_id == producer_id and one.first_offset <= offset
            ):
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return False
        one = &self.ranges[low - 1]
        return one.producer_id == producer_id and offset <= one.last_offset

    cdef int note_batch(
        self, const uint8_t *p, int64_t length, const BatchInfo *info, bint is_handed_out, int64_t position
    ) except -1:
        """Record that a transactional batch was read; do nothing without `complete`.

        Raises CorruptBatch for an abort marker if records of its producer were returned and this set lacks
        the marker's transaction. (If this set has the transaction, the returned records belong to an earlier
        transaction, whose marker compaction has removed.)
        """
        cdef Marker marker
        cdef bint ends_none
        if self.handed_out is None:
            return 0
        if is_handed_out:
            if info.count:
                self.handed_out.add(info.producer_id)
        elif info.attributes & CONTROL_BIT and read_marker(p, length, &marker):
            ends_none = not self.covers(info.producer_id, load_i64(p + <int>BASE_OFFSET_AT))
            if marker.kind == ABORT and ends_none and info.producer_id in self.handed_out:
                raise CorruptBatch(
                    position,
                    f"the marker aborts a transaction of producer {info.producer_id} that no .txnindex entry "
                    "names: run mpbroker log verify"
                )
            self.handed_out.discard(info.producer_id)
        return 0


def from_fetch(records: Buffer, aborted: Iterable[tuple[int, int]]) -> AbortedRanges:
    """Return the AbortedRanges of a partition in a Fetch response.

    `aborted` has the response's (producer id, first offset) of each transaction; `records` are the response's
    batches. A transaction ends at its producer's next abort marker in `records`; without one its last offset
    is NOT_ENDED. Raises CorruptBatch. (Kafka: CompletedFetch.consumeAbortedTransactionsUpTo.)
    """
    listed = set(aborted)
    markers = _abort_markers(records, {producer_id for producer_id, _ in listed}) if listed else {}
    ranges = []
    for producer_id, first_offset in listed:
        offsets = markers.get(producer_id, [])
        after = bisect_right(offsets, first_offset)
        ranges.append((producer_id, first_offset, offsets[after] if after < len(offsets) else NOT_ENDED))
    return AbortedRanges(ranges)


def _abort_markers(records, producer_ids):
    """Return the ascending offsets of the abort markers in `records`, by producer id."""
    view = memoryview(records)
    found = {}
    position = 0
    while (frame := frame_at(view, position, False)) is not None:
        end = position + frame.length
        if frame.attributes & CONTROL_BIT and frame.producer_id in producer_ids:
            marker = marker_of(view[position:end])
            if marker is not None and marker[0] == ABORT:
                found.setdefault(frame.producer_id, []).append(frame.base_offset)
        position = end
    return found
