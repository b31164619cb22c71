"""Records of a topic, read through the broker as any consumer reads them: forwards, or the newest first.

The records, bytes and seconds of an answer are bounded; with a filter it may be empty. It has the position in
each partition from which the next answer continues.

Producers decide how large a batch is after decompression. To bound memory, an answer counts the decompressed
bytes, the whole process decompresses one batch at a time, and only some of its records are objects at once.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpbroker.client.admin import Admin
from mpbroker.client.consumer import Fetched, Limits
from mpbroker.client.errors import ApiFailed
from mpbroker.client.positions import Ends, Start
from mpbroker.client.topics import Topic, no_partition, partitions_of
from mpbroker.console.record_view import (
    WHOLE_BYTES,
    has_text,
    marker_view,
    problem_view,
    record_of,
    size_of,
    size_of_data,
)
from mpbroker.protocol.errors import ErrorCode
from mpbroker.protocol.numbers import READ_UNCOMMITTED
from mpbroker.records.errors import CorruptBatch
from mpbroker.records.iterate import Batch
from mpbroker.records.record import Record

if TYPE_CHECKING:
    from mpbroker.registry.json_values import Decoder

SCAN_BYTES_MAX: Final = 64 << 20
SCAN_S_MAX: Final = 3.0
# The limit of one decompressed batch.
DECODED_BYTES_MAX: Final = 64 << 20
# The bytes of one fetch; a single batch may have more.
FETCH_BYTES_MAX: Final = 4 << 20
FETCH_WAIT_MS: Final = 100
# Backwards, the first window of a partition has as many records as are wanted, and each next one more.
WINDOW_GROWTH: Final = 4
WINDOW_MAX: Final = 20_000
Shown = dict[str, Any]
Step = tuple[int, Shown | None]
"""The offset after the last record read, and a wanted record or None."""
_DECODES: Final = threading.Lock()


@dataclass(frozen=True)
class RecordQuery:
    """The wanted records. `partition` -1: all. `positions`: from an earlier answer, to continue there."""

    topic: str
    partition: int = -1
    start: Start | None = None  # None: the newest first
    limit: int = 50
    text: bytes = b""
    isolation: int = READ_UNCOMMITTED
    with_markers: bool = True
    positions: Mapping[int, int] | None = None
    most: int = 0  # bytes of a key, value or header
    decoder: Decoder | None = None

    @property
    def offset(self) -> int:
        """Return the offset to begin at; -1 if the start is not an offset."""
        return self.start.number if self.start is not None and self.start.kind == "offset" else -1


@dataclass
class Scan:
    """A read's remaining budget: time until `deadline`, and bytes to fetch, decompress and keep."""

    bytes_left: int = field(default_factory=lambda: SCAN_BYTES_MAX)
    deadline: float = field(default_factory=lambda: time.monotonic() + SCAN_S_MAX)
    offsets: int = 0

    @property
    def is_over(self) -> bool:
        return self.bytes_left <= 0 or time.monotonic() > self.deadline


class Reader:
    """A reader of one topic's partitions."""

    def __init__(self, client: Admin, wanted: RecordQuery, max_wait_ms: int = FETCH_WAIT_MS) -> None:
        self.wanted = wanted
        self._client = client
        self._whole: dict[tuple[int, int], Record] = {}
        self.topic: Topic = client.topic(wanted.topic)
        there = partitions_of(self.topic)
        if wanted.partition >= 0 and wanted.partition not in there:
            why = no_partition(self.topic, wanted.partition)
            raise ApiFailed(f"topic {wanted.topic}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
        self.partitions = [wanted.partition] if wanted.partition >= 0 else there
        self.consumer = client.consumer(
            wanted.topic,
            wanted.isolation,
            expected=(ErrorCode.CORRUPT_MESSAGE,),
            limits=Limits(max_wait_ms, FETCH_BYTES_MAX),
        )

    def ends(self, time_ms: int | None = None) -> dict[int, Ends]:
        """Return each partition's start and end, and the offset of its first record from `time_ms` on."""
        return self._client.ends(self.topic, self.partitions, time_ms, self.wanted.isolation)

    def add_json(self, rows: list[Shown]) -> str:
        """Add to `rows` the JSON of keys and values with a schema. Return the registry's error, or ""."""
        whole, self._whole = self._whole, {}
        if self.wanted.decoder is None:
            return ""
        from mpbroker.console.schemas import add_json

        return add_json(rows, whole, self.wanted.decoder, self.wanted.most)

    def taken(
        self, fetched: Fetched, position: int, scan: Scan, stop: int | None = None
    ) -> Generator[Step, None, None]:
        """Yield the offset after each record from `position` on, and the record if it is wanted, else None.

        Ends soon after `scan`, its budget, is used up. At unreadable bytes, yields the reason in place of a
        record, and the offset of the next batch (if unknown, the next offset); then ends. Close the generator
        unless it is exhausted: it may hold the lock that other requests need to decompress batches.
        """
        if fetched.error_code:
            why = "the broker cannot read it (CORRUPT_MESSAGE); mpbroker log verify finds the place"
            yield position + 1, problem_view(fetched.partition, position, why)
            return
        at = position
        try:
            for batch, is_read in fetched.batches():
                if stop is not None and batch.header.base_offset >= stop:
                    yield stop, None
                    return
                if batch.last_offset < position:
                    continue
                if batch.is_control:
                    shown = marker_view(fetched.partition, batch) if self.wanted.with_markers else None
                    yield batch.last_offset + 1, shown if not self.wanted.text else None
                elif is_read:
                    is_whole = yield from self._of_batch(fetched.partition, batch, at, scan, stop)
                    if not is_whole:
                        return
                at = batch.last_offset + 1
                yield at, None
                if scan.is_over:
                    return
        except CorruptBatch as error:
            # Show the damage at its first offset, wherever it was found.
            offsets = error.offsets
            if offsets is None or offsets.stop <= at:
                offsets = range(at, at + 1)
            if stop is not None and offsets.start >= stop:
                yield stop, None
                return
            after = offsets.stop if stop is None else min(offsets.stop, stop)
            why = f"a damaged or too large batch of {len(offsets):,} offset(s): {error}"
            yield after, problem_view(fetched.partition, offsets.start, why)

    def _of_batch(
        self, partition: int, batch: Batch, position: int, scan: Scan, stop: int | None
    ) -> Generator[Step, None, bool]:
        """Yield records in [position, stop). Return False if the scan ended earlier. Raises CorruptBatch."""
        with _DECODES:
            stream = batch.stream(DECODED_BYTES_MAX)
            scan.bytes_left -= memoryview(stream).nbytes
            for piece in batch.pieces(stream, position):
                after = position
                for record in piece:
                    if record.offset < position:
                        continue
                    if stop is not None and record.offset >= stop:
                        return True
                    after = record.offset + 1
                    if has_text(record, self.wanted.text):
                        shown = record_of(partition, batch, record, self.wanted.most)
                        scan.bytes_left -= size_of(shown)
                        if self.wanted.decoder is not None and (size := size_of_data(record)) <= WHOLE_BYTES:
                            self._whole[partition, record.offset] = record
                            scan.bytes_left -= size
                        yield after, shown
                yield after, None
                # Records before the position are no progress, and the next answer would pass them again.
                if scan.is_over and after > position and after <= batch.last_offset:
                    return False
        return True


def read(client: Admin, wanted: RecordQuery) -> dict[str, Any]:
    """Return one answer to a query for records. Raises ClientError."""
    reader = Reader(client, wanted)
    ends = reader.ends(wanted.start.time_ms if wanted.start is not None else None)
    scan = Scan()
    found = _forwards(reader, ends, scan) if wanted.start is not None else _backwards(reader, ends, scan)
    return {
        "topic": reader.topic.name,
        "records": found.records,
        "registry": reader.add_json(found.records),
        "positions": {str(number): offset for number, offset in found.positions.items()},
        "unread": found.unread,
        "ends": {str(number): [one.start, one.end] for number, one in ends.items()},
        "is_end": all(_is_at_end(wanted, ends[n], offset) for n, offset in found.positions.items()),
        "scanned": scan.offsets,
        "scanned_bytes": SCAN_BYTES_MAX - scan.bytes_left,
    }


class Found(NamedTuple):
    """Records, positions to continue from, and (partition, first, last + 1) of skipped ranges of offsets."""

    records: list[Shown]
    positions: dict[int, int]
    unread: list[tuple[int, int, int]]


def _is_at_end(wanted: RecordQuery, ends: Ends, offset: int) -> bool:
    return offset <= ends.start if wanted.start is None else offset >= ends.end


def _forwards(reader: Reader, ends: Mapping[int, Ends], scan: Scan) -> Found:
    wanted = reader.wanted
    assert wanted.start is not None
    positions = {number: wanted.start.within(one) for number, one in ends.items()}
    positions |= {n: at for n, at in (wanted.positions or {}).items() if n in positions}
    positions = {number: max(at, ends[number].start) for number, at in positions.items()}
    stops = {number: one.end for number, one in ends.items()}
    found, positions = _scanned(reader, positions, stops, scan, wanted.limit)
    records, left = _merged(found, wanted.limit, _time)
    # Omitted records begin the next answer.
    positions |= {number: one["offset"] for number, one in left.items()}
    return Found(records, positions, [])


def _backwards(reader: Reader, ends: Mapping[int, Ends], scan: Scan) -> Found:
    """Read backwards from the end, window by window. Each window is read in the order of the log."""
    wanted = reader.wanted
    stops = {number: one.end for number, one in ends.items()}
    stops |= {
        n: min(max(at, ends[n].start), ends[n].end) for n, at in (wanted.positions or {}).items() if n in ends
    }
    found: dict[int, list[Shown]] = {number: [] for number in stops}
    unread: list[tuple[int, int, int]] = []
    window = wanted.limit
    while not scan.is_over and sum(map(len, found.values())) < wanted.limit:
        starts = {number: max(ends[number].start, stop - window) for number, stop in stops.items()}
        if starts == stops:
            break
        newer, reached = _scanned(reader, starts, stops, scan)
        missed = [(number, at, stops[number]) for number, at in reached.items() if at < stops[number]]
        if missed and window > wanted.limit:
            break  # the next answer begins with this window
        unread += _newest(reader, stops, missed, newer)
        for number, mine in newer.items():
            found[number] += mine[::-1]
        # A damaged batch is shown at its first offset, which may lie before the window.
        stops = {
            number: min([starts[number], *(one["offset"] for one in newer[number])]) for number in starts
        }
        window = min(window * WINDOW_GROWTH, WINDOW_MAX)
    records, left = _merged(found, wanted.limit, lambda one: -_time(one))
    stops |= {number: one["offset"] + 1 for number, one in left.items()}
    return Found(records, stops, unread)


def _newest(
    reader: Reader,
    stops: Mapping[int, int],
    missed: list[tuple[int, int, int]],
    found: dict[int, list[Shown]],
) -> list[tuple[int, int, int]]:
    """Read the last record of each range in `missed` and add it to `found`. Return the unread ranges."""
    lasts = {number: stops[number] - 1 for number, _, _ in missed}
    if not lasts:
        return []
    newest, reached = _scanned(reader, lasts, stops, Scan())
    for number, mine in newest.items():
        found[number] += mine
    ends = {number: stops[number] if at <= lasts[number] else lasts[number] for number, at in reached.items()}
    return [(number, at, ends[number]) for number, at, _ in missed if at < ends[number]]


def _merged(
    found: Mapping[int, list[Shown]], limit: int, key: Callable[[Shown], int]
) -> tuple[list[Shown], dict[int, Shown]]:
    """Return up to `limit` records merged by `key`, and the first unused record of each partition."""
    records = list(islice(heapq.merge(*found.values(), key=key), limit))
    taken = Counter(one["partition"] for one in records)
    left = {number: mine[taken[number]] for number, mine in found.items() if taken[number] < len(mine)}
    return records, left


def _time(shown: Shown) -> int:
    time_ms: int = shown["timestamp"]
    return time_ms


def _scanned(
    reader: Reader, starts: Mapping[int, int], stops: Mapping[int, int], scan: Scan, enough: int | None = None
) -> tuple[dict[int, list[Shown]], dict[int, int]]:
    """Read from starts to stops. Return the wanted records and the reached position of each partition."""
    at = dict(starts)
    found: dict[int, list[Shown]] = {number: [] for number in starts}
    while pending := {number: offset for number, offset in at.items() if offset < stops[number]}:
        if scan.is_over or (enough is not None and sum(map(len, found.values())) >= enough):
            break
        moved = False
        for fetched in reader.consumer.fetch(pending):
            if moved and scan.is_over:
                break
            number = fetched.partition
            left = scan.bytes_left - len(memoryview(fetched.records))
            with closing(reader.taken(fetched, at[number], scan, stops[number])) as taken:
                for after, shown in taken:
                    moved = moved or after > at[number]
                    scan.offsets += max(after - at[number], 0)
                    at[number] = max(at[number], after)
                    if shown is not None:
                        found[number].append(shown)
                    if enough is not None and len(found[number]) > enough:
                        break  # the last one is where the next answer begins
            scan.bytes_left = min(scan.bytes_left, left)
        if not moved:
            break  # compacted away, or deleted meanwhile
    return found, at
