"""The events of an entry of the ledger, in the order in which they happened.

JSON, an event a line; `event` is its kind, ids and other bytes are in Base64. A kind that is not known here
was written by a later version.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mpbroker.remote.layout.indexes import IndexSizes
from mpbroker.remote.layout.manifest import encode_manifest
from mpbroker.remote.layout.object_names import SegmentObjects


class _Event(msgspec.Struct, frozen=True, gc=False, tag_field="event"):
    pass


class _OfPartition(_Event, frozen=True):
    topic_id: bytes
    partition: int

    @property
    def key(self) -> tuple[bytes, int]:
        """Return the topic's id and the partition."""
        return self.topic_id, self.partition


class _Who(_Event, frozen=True):
    """Says which broker writes from here on. The header of its entry has its owner and start."""

    cluster_id: str
    broker_id: int
    host: str


class _Leader(_Who, frozen=True, kw_only=True):
    """Says how clients reach the broker, and how long its lease is.

    `listeners` have the advertised host and port by the name of the listener. `acks` is "local" or "ledger".
    The lease is in force while a standby is named. `lease_ms` is 0 in entries of older versions.
    """

    listeners: dict[str, tuple[str, int]] = {}
    rack: str = ""
    lease_ms: int = 0
    acks: str = "local"


class Started(_Leader, tag="start", frozen=True):
    """A tier process has begun to write."""


class TakenOver(_Leader, tag="take_over", frozen=True):
    """Another broker owns the ledger from here on, in the next generation: a restored one, or a standby.

    The entry before is the last one of the owner before. Segments that are not of the cut are removed by
    further events of this entry. A restored broker knows of no standbys: they have to be named again. It has
    no `Shipped` above the number `shipped`, if that is not -1. `imported`: store and log directories were
    Apache Kafka's before.
    """

    cut_id: bytes
    by_standby: bool = False
    shipped: int = -1
    imported: bool = False


class Exported(_Who, tag="exported", frozen=True):
    """The stopped broker has given the store to Apache Kafka: only an import may follow."""


class StandbySet(_Event, tag="standby", frozen=True):
    """A broker stands by: while it is named it may take over when the owner's lease has run out."""

    broker_id: int
    host: str
    rack: str
    listeners: dict[str, tuple[str, int]]


class StandbyGone(_Event, tag="standby_gone", frozen=True):
    """A broker stands by no longer."""

    broker_id: int


class Released(_Event, tag="released", frozen=True):
    """The owner has stopped, and all that it had is in the store. A standby need not wait for the lease."""


class ShippedRange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Bytes at the end of a partition's log. `directory` begins with the number of its log directory.

    `pieces` are (base of the segment, position, length). The log ends at `end`: offset, base of the segment,
    position. `log_start` is its log start offset.
    """

    directory: str
    topic_id: bytes
    log_start: int
    pieces: tuple[tuple[int, int, int], ...]
    end: tuple[int, int, int]


class Shipped(_Event, tag="shipped", frozen=True):
    """Bytes that the owner has appended since a cut, once they are durable (`mpbroker.remote.acks=ledger`).

    `number` grows through all of the ledger. The bytes of all pieces, one after the other, are `data`, or the
    object `object_id` of `size` bytes; `crc` is the object's CRC-32C. They are as they were in the files.
    """

    number: int
    ranges: tuple[ShippedRange, ...]
    data: bytes = b""
    object_id: bytes = b""
    size: int = 0
    crc: int = 0


class SnapshotWritten(_Event, tag="snapshot", frozen=True):
    """The snapshot of entry `seq` is in the store, and was read back.

    Entries before `first` may be deleted, but for those that begin a generation or a start.
    """

    seq: int
    first: int


class TopicSet(_Event, tag="topic", frozen=True):
    """A topic is tiered, or has changed: enough to bring it back after it was deleted.

    It comes before the topic's first segment. `settings` are those that differ from the defaults.
    """

    name: str
    topic_id: bytes
    partitions: int
    settings: dict[str, str]


class TopicDeleted(_Event, tag="topic_deleted", frozen=True):
    """A topic was deleted. Its segments stay until they are removed by an event of their own."""

    topic_id: bytes


class TopicRestored(_Event, tag="topic_restored", frozen=True):
    """A deleted topic is there again, under its id, with the segments that were not removed."""

    topic_id: bytes


class SegmentAdded(_OfPartition, tag="segment", frozen=True):
    """The objects of a segment are in the store: offsets [base, end) of a partition.

    `size` and `log_crc` (CRC-32C) are those of `.log`, `indexes_crc` that of `.indexes`. What Kafka has
    uploaded has no `log_crc`, only the checksums of its batches. `epochs` are leader epochs with their first
    offsets.
    """

    topic: str
    segment_id: bytes
    base: int
    end: int
    size: int
    largest_ms: int
    epochs: tuple[tuple[int, int], ...]
    index_sizes: IndexSizes
    has_aborted: bool
    log_crc: int | None
    indexes_crc: int

    def manifest(self, broker_id: int, time_ms: int) -> bytes:
        """Return the bytes of its manifest, as of a broker and the time of its upload."""
        return encode_manifest(
            self.objects,
            end=self.end,
            size=self.size,
            largest_ms=self.largest_ms,
            epochs=self.epochs,
            index_sizes=self.index_sizes,
            broker_id=broker_id,
            time_ms=time_ms,
        )

    @property
    def objects(self) -> SegmentObjects:
        """Return the names of its objects."""
        return SegmentObjects(self.topic, self.topic_id, self.partition, self.base, self.segment_id)

    def may_be_log(self, crc: int) -> bool:
        """Return whether bytes with this CRC-32C may be those of `.log`."""
        return self.log_crc in (None, crc)


class SegmentsRemoved(_OfPartition, tag="removed", frozen=True):
    """Segments of a partition are no longer part of it. Their objects may be deleted, some time later."""

    segment_ids: tuple[bytes, ...]


class SegmentRevived(_Event, tag="revived", frozen=True):
    """A copy of a segment that was removed is part of its partition again, before those that are there."""

    segment: SegmentAdded


class ObjectsDeleted(_Event, tag="objects_deleted", frozen=True):
    """The objects of removed segments are no longer in the store."""

    segment_ids: tuple[bytes, ...]


class LogStartMoved(_OfPartition, tag="log_start", frozen=True):
    """A partition's log start offset is now this one."""

    offset: int


class CutTaken(_Event, tag="cut", frozen=True):
    """A cut is in the store: what a restore needs besides the segments, as of one instant (see `cuts`).

    `digest` is the SHA-256 of its manifest, `size` the manifest's bytes, `taken_ms` the instant by the
    owner's clock, `after` the entry before this one. `added` are bundles that no cut before had named,
    `dropped` those that this one names no longer. `Shipped` up to number `shipped` are in the cut. Those
    above it are later; they are in entries above `since`.
    """

    cut_id: bytes
    taken_ms: int
    size: int
    digest: str
    after: int
    added: tuple[bytes, ...]
    dropped: tuple[bytes, ...]
    shipped: int = 0
    since: int = 0


class CutsRemoved(_Event, tag="cuts_removed", frozen=True):
    """Cuts and bundles are no longer kept; their objects may be deleted."""

    cut_ids: tuple[bytes, ...]
    bundle_ids: tuple[bytes, ...]


Event: TypeAlias = (
    Started
    | TakenOver
    | Exported
    | StandbySet
    | StandbyGone
    | Released
    | Shipped
    | SnapshotWritten
    | TopicSet
    | TopicDeleted
    | TopicRestored
    | SegmentAdded
    | SegmentsRemoved
    | SegmentRevived
    | ObjectsDeleted
    | LogStartMoved
    | CutTaken
    | CutsRemoved
)
