"""Checks an object store by itself: its ledger from the first entry on, and each object that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from mpbroker.log.partition.batch_walker import Walk
from mpbroker.records.batch import checksum
from mpbroker.remote.layout.object_names import parse_object
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.ledger.reader import FORMAT_NAME, LedgerReader
from mpbroker.remote.ledger.snapshots import decode_snapshot, snapshot_name
from mpbroker.remote.ledger.state import RemoteState
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore, StoreError
from mpbroker.remote.tier.collector import ORPHAN_MS

# The bytes of one read of a segment.
PIECE_BYTES: Final = 8 << 20


class NoLedger(Exception):
    """Raised for a prefix where nothing of mpbroker is."""


class Problem(NamedTuple):
    """An object, and what is wrong with it."""

    name: str
    what: str


@dataclass
class Verified:
    """The result of a check. `orphans` counts unnamed objects that are a day older than the newest one."""

    cluster_id: str
    entries: int
    topics: int
    segments: int
    # Of all `.log` objects.
    bytes: int
    orphans: int = 0
    problems: list[Problem] = field(default_factory=list)


def verify(store: ObjectStore, *, deep: bool, progress: Callable[[int, int], object]) -> Verified:
    """Check a store. `deep`: read all segments, and check their checksums and batches.

    `progress` is called with the bytes that are checked and those that will be. Raises NoLedger, StoreError,
    and LedgerDamaged for a ledger that cannot be read to its end.
    """
    reader = LedgerReader(store)
    found = reader.read_format()
    if found is None:
        raise NoLedger(f"there is no {FORMAT_NAME}: no broker has used this place")
    reader.read_to_end(by_snapshot=False)
    state = reader.state
    segments = [one for some in state.segments.values() for one in some]
    listed = list(store.list(""))
    there = {one.name: one.size for one in listed}
    whole = sum(one.size for one in segments)
    verified = Verified(found.cluster_id, reader.seq, len(state.topics), len(segments), whole)
    named = {one.segment_id for one in segments} | state.removed.keys()
    # Younger ones may be of an upload that is under way.
    before_ms = max((one.modified_ms for one in listed), default=0) - ORPHAN_MS
    old = (parse_object(one.name) for one in listed if one.modified_ms < before_ms)
    verified.orphans = sum(one is not None and one.segment_id not in named for one in old)
    for key, some in state.segments.items():
        verified.problems += _gaps(some, state.log_starts.get(key, 0))
    verified.problems += _snapshots(store, state)
    done = 0
    for one in segments:
        bad = list(_sizes(one, there))
        if deep and not bad:
            bad = list(_contents(store, one))
        verified.problems += bad
        done += one.size
        progress(done, whole)
    return verified


def _snapshots(store: ObjectStore, state: RemoteState) -> Iterator[Problem]:
    """Yield what is wrong with the snapshots that the ledger names: it is read from the oldest one on."""
    for one in state.snapshots:
        name = snapshot_name(one.event.seq)
        try:
            if decode_snapshot(store.get(name)) is None:
                yield Problem(name, "it is damaged")
        except ObjectMissing:
            yield Problem(name, "it is missing")


def _gaps(segments: list[SegmentAdded], log_start: int) -> Iterator[Problem]:
    """Yield where a segment of a partition does not begin where the one before ends."""
    for before, after in pairwise(segments):
        if before.end < after.base and log_start < after.base:
            what = f"offsets {before.end:,} to {after.base - 1:,} before it are in no segment"
            yield Problem(after.objects.log, what)


def _sizes(segment: SegmentAdded, there: dict[str, int]) -> Iterator[Problem]:
    objects = segment.objects
    for name, size in (
        (objects.log, segment.size),
        (objects.indexes, sum(segment.index_sizes)),
        (objects.manifest, None),
    ):
        found = there.get(name)
        if found is None:
            yield Problem(name, "it is missing")
        elif size is not None and found != size:
            yield Problem(name, f"it has {found:,} bytes; the ledger says {size:,}")


def _contents(store: ObjectStore, segment: SegmentAdded) -> Iterator[Problem]:
    """Yield what is wrong with the bytes of a segment and of its indexes. Raises StoreError."""
    objects = segment.objects
    try:
        indexes = store.get(objects.indexes)
        if checksum(indexes) != segment.indexes_crc:
            yield Problem(objects.indexes, "its checksum is another one than the ledger has")
        yield from _batches(store, objects.log, segment)
    except ObjectMissing as error:
        yield Problem(objects.log, f"it went while it was read: {error}")


def _batches(store: ObjectStore, name: str, segment: SegmentAdded) -> Iterator[Problem]:
    walk = Walk(segment.base, 0, segment.base)
    position, crc, rest, reason = 0, 0, b"", ""
    while position < segment.size:
        piece = store.get(name, position, min(PIECE_BYTES, segment.size - position))
        if not piece:
            raise StoreError(f"{name} ends at byte {position:,}; the store lists {segment.size:,}")
        crc = checksum(piece, crc)
        position += len(piece)
        if not reason:
            data, before = rest + piece, walk.position
            reason = walk.feed(data, segment.size)
            rest = data[walk.position - before :]
    if not segment.may_be_log(crc):
        yield Problem(name, "its checksum is another one than the ledger has")
    if reason:
        yield Problem(name, f"at byte {walk.position:,} a batch is bad: {reason}")
    elif walk.position != segment.size or walk.next_offset > segment.end:
        yield Problem(name, f"its batches end at byte {walk.position:,} and offset {walk.next_offset:,}")
