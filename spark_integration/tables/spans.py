"""The offsets that a table has, as its snapshots say them. Knows nothing of Spark and of stores.

Each commit of the job writes into its snapshot, as the property `mpbroker.offsets`, the offsets of everything
in the table. Snapshots of compactions and of other writers have no such property: the newest one that has it
counts. A copy among the properties of the table stays when that snapshot expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import msgspec

from spark_integration.jobs.frame import JobError

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

OFFSETS: Final = "mpbroker.offsets"
# The process that made a commit, and the number that the commit has there.
RUN: Final = "mpbroker.run"
BATCH: Final = "mpbroker.batch"
# How many rows of a commit have an error instead of a decoded value.
ERROR_ROWS: Final = "mpbroker.error-rows"
FORMAT: Final = 1
NO_EPOCH: Final = -1

TopicIdPartition = tuple[str | None, int]
"""A partition of one topic: the topic's id (None if the broker has no ids), and the partition's number."""


class Span(msgspec.Struct, frozen=True):
    """Offsets [start, end) of a partition; `epoch` is its leader epoch at that time (-1: unknown)."""

    topic_id: str | None
    partition: int
    start: int
    end: int
    epoch: int = NO_EPOCH

    @property
    def key(self) -> TopicIdPartition:
        return self.topic_id, self.partition


class _Stored(msgspec.Struct, frozen=True):
    """The value of `mpbroker.offsets`: by topic id ("": none) partition, from, to and epoch of each span.

    It is short, since the table's metadata have it once for each snapshot.
    """

    format: int
    topic: str
    spans: dict[str, list[tuple[int, int, int, int]]]


class Covered(msgspec.Struct, frozen=True):
    """The offsets in a table. Spans of one log ascend; between them records were lost."""

    topic: str
    spans: tuple[Span, ...] = ()

    def ends(self) -> dict[TopicIdPartition, Span]:
        """Return the last span of each log."""
        return {span.key: span for span in self.spans}

    def with_spans(self, added: Iterable[Span]) -> Covered:
        """Add spans. Raises JobError if one begins before the end of its log's last span."""
        ends = self.ends()
        for span in added:
            before = ends.get(span.key)
            if span.start > span.end or (before is not None and span.start < before.end):
                raise JobError(
                    f"offsets [{span.start}, {span.end}) of {self.topic}-{span.partition} do not follow "
                    f"{before}: nothing was written; report this"
                )
        return Covered(self.topic, _joined([*self.spans, *added]))

    def cut(self, at: Mapping[TopicIdPartition, int]) -> Covered:
        """Remove all offsets of a log from `at` on."""
        kept = []
        for span in self.spans:
            end = min(span.end, at.get(span.key, span.end))
            if end > span.start:
                kept.append(msgspec.structs.replace(span, end=end))
        return Covered(self.topic, tuple(kept))

    def text(self) -> str:
        """Return the value of the property `mpbroker.offsets`."""
        stored = _Stored(FORMAT, self.topic, {})
        for span in self.spans:
            of_topic = stored.spans.setdefault(span.topic_id or "", [])
            of_topic.append((span.partition, span.start, span.end, span.epoch))
        return msgspec.json.encode(stored).decode()


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Make one span of spans that follow each other without a gap; the epoch is the last one's."""
    found: list[Span] = []
    for _, of_log in groupby(sorted(spans, key=_order), key=lambda span: span.key):
        last, *rest = of_log
        for span in rest:
            if span.start == last.end:
                last = Span(*last.key, last.start, span.end, span.epoch)
            else:
                found.append(last)
                last = span
        found.append(last)
    return tuple(found)


def _order(span: Span) -> tuple[str, int, int]:
    return span.topic_id or "", span.partition, span.start


def newest_first(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield a table's present snapshot and those before it, as far as they have not expired."""
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)


def covered(table: Table) -> Covered | None:
    """Return what the newest snapshot of the job says; None if no job has written. Raises JobError."""
    for snapshot in newest_first(table.metadata):
        text = property_of(snapshot, OFFSETS)
        if text is not None:
            return _decoded(table, text)
    text = table.properties.get(OFFSETS)
    return None if text is None else _decoded(table, text)


def has_batch(table: Table, run: str, batch: int) -> bool:
    """Return whether the table has the commit of this run and number."""
    for snapshot in newest_first(table.metadata):
        if property_of(snapshot, RUN) == run and property_of(snapshot, BATCH) == str(batch):
            return True
    return False


def property_of(snapshot: Snapshot, name: str) -> str | None:
    """Return a property of a snapshot, None if it has none of this name."""
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)


def _decoded(table: Table, text: str) -> Covered:
    try:
        found = msgspec.json.decode(text, type=_Stored)
    except msgspec.DecodeError as error:
        raise JobError(f"{'.'.join(table.name())} has an unreadable property {OFFSETS}: {error}") from error
    if found.format != FORMAT:
        raise JobError(
            f"{'.'.join(table.name())} was written by another version: {OFFSETS} has format {found.format}, "
            f"this version knows {FORMAT} only"
        )
    spans = (Span(name or None, *one) for name, of_topic in found.spans.items() for one in of_topic)
    return Covered(found.topic, tuple(spans))
