"""Reads the headers of the record batches in a log's segment files, even damaged ones, for audits.

Unlike other readers, this module continues after damage, at the next whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from mpbroker.inspection.segment import batches, mapped
from mpbroker.reading.catalogs import open_catalog
from mpbroker.reading.errors import SourceUnavailable
from mpbroker.reading.options import ReadOptions
from mpbroker.reading.plan import LocalFiles, OffsetRange, selected
from mpbroker.records.batch import CONTROL_BIT, BatchFrame
from mpbroker.records.errors import CorruptBatch
from mpbroker.storage.checkpoints import read_offsets
from mpbroker.storage.names import CLEANER_OFFSETS, segment_name
from mpbroker.storage.reader import Bound
from mpbroker.storage.segments import segments_of

HEADERS: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("file", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("firstOffset", pa.int64()),
        pa.field("lastOffset", pa.int64()),
        pa.field("records", pa.int32()),
        pa.field("firstTimeMs", pa.int64()),
        pa.field("lastTimeMs", pa.int64()),
        pa.field("isControl", pa.bool_()),
        pa.field("producerId", pa.int64()),
        pa.field("producerEpoch", pa.int32()),
        pa.field("sequence", pa.int32()),
        pa.field("codec", pa.int32()),
        pa.field("fault", pa.string()),
    ]
)
"""The schema. Each batch has a row, and so has each range of damaged bytes, with `fault` and no numbers."""
ROWS: Final = 10_000


@dataclass(frozen=True)
class Segment:
    """A segment file of a partition, to be read up to `bound`, or to the file's end if `bound` is None."""

    topic: str
    partition: int
    path: str
    base: int
    bound: Bound | None


class ReadableLog(NamedTuple):
    """The part of a partition that may be read: offsets [start, end).

    Compaction may have removed some of the offsets below `cleaned`.
    """

    topic: str
    partition: int
    start: int
    end: int
    cleaned: int
    segments: tuple[Segment, ...]


def readable_logs(options: ReadOptions) -> list[ReadableLog]:
    """Return the selected partitions, with their files. Raises SourceUnavailable, OptionError."""
    with closing(open_catalog(options)) as catalog:
        bounds = catalog.bounds(selected(catalog, options))
        found = []
        for (topic, number), (start, end, _) in sorted(bounds.items()):
            tasks = catalog.tasks(OffsetRange((topic, number), start, end), 1, None) if end > start else []
            if any(task.files is None for task in tasks):
                raise SourceUnavailable(
                    f"an audit reads files, and those of {topic}-{number} are not here. Run it on the "
                    "broker's host, with log.dir"
                )
            files = tasks[0].files if tasks else None
            found.append(_log(topic, number, start, end, files))
    return found


def _log(topic: str, number: int, start: int, end: int, files: LocalFiles | None) -> ReadableLog:
    if files is None:
        return ReadableLog(topic, number, start, end, 0, ())
    directory = Path(files.directory)
    bases = segments_of(directory)
    # Records below the log's start are in its first segment, but count as deleted.
    first = max((base for base in bases if base <= start), default=start)
    segments = []
    for base in bases:
        if first <= base <= files.bound.segment_base:
            bound = files.bound if base == files.bound.segment_base else None
            segments.append(Segment(topic, number, str(directory / segment_name(base)), base, bound))
    cleaned = read_offsets(directory.parent / CLEANER_OFFSETS).get((topic, number), 0)
    return ReadableLog(topic, number, start, end, cleaned, tuple(segments))


def headers(segment: Segment) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches with a row for each record batch, in the schema `HEADERS`. Raises OSError."""
    rows: list[tuple[object, ...]] = []
    unreadable: list[int] = []
    with mapped(Path(segment.path), unreadable) as view:
        published = _published_bytes(segment)
        end = len(view) if published is None else min(published, len(view))
        for row in _rows(segment, view[:end]) if end else ():
            rows.append(row)
            if len(rows) >= ROWS:
                yield _arrow(rows)
                rows = []
        if published is not None and published > end:
            text = f"the file has {end} bytes, {published} were published as readable"
            rows.append(_fault(segment, end, text))
    rows += [_fault(segment, at, "the disk cannot read this page") for at in unreadable[:1]]
    if rows:
        yield _arrow(rows)


def _rows(segment: Segment, view: memoryview) -> Iterator[tuple[object, ...]]:
    for found in batches(view, segment.base):
        if isinstance(found, CorruptBatch):
            yield _fault(segment, found.position, found.reason)
        elif segment.bound is not None and found.base_offset >= segment.bound.offset:
            return
        else:
            yield _row(segment, found)


def _published_bytes(segment: Segment) -> int | None:
    """Return the number of bytes of the segment that may be read; None if the whole file may be read.

    The bound's position applies only to the last segment: when other segments follow, the cleaner may have
    replaced the file after the bound was published.
    """
    if segment.bound is None or segments_of(Path(segment.path).parent)[-1] != segment.base:
        return None
    return segment.bound.position


def _row(segment: Segment, found: BatchFrame) -> tuple[object, ...]:
    return (
        *(segment.topic, segment.partition, segment.path, found.position, found.length),
        *(found.base_offset, found.base_offset + found.last_offset_delta, found.record_count),
        *(found.base_timestamp, found.max_timestamp, bool(found.attributes & CONTROL_BIT)),
        *(found.producer_id, found.producer_epoch, found.base_sequence, found.codec, None),
    )


def _fault(segment: Segment, position: int, text: str) -> tuple[object, ...]:
    return (segment.topic, segment.partition, segment.path, position, *[None] * 11, text)


def _arrow(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), HEADERS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=HEADERS)
