"""Plans a restore: finds the objects that it needs, and checks that all are there. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final, NamedTuple

from mpbroker.protocol.uuids import uuid_text
from mpbroker.records.batch import checksum
from mpbroker.remote.cuts.manifest import (
    CutManifest,
    Piece,
    bundle_name,
    cut_name,
    decode_manifest,
    shipped_name,
)
from mpbroker.remote.ledger.events import CutTaken, SegmentAdded
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.ledger.state import RemoteTopic
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore

READERS: Final = 4
_READ_BYTES: Final = 16 << 20


class RestoreRefused(Exception):
    """Raised where nothing can be restored; the message says why, and what to do. Nothing was written."""


class Plan(NamedTuple):
    """A cut, and the segments of the ledger that belong to it, by partition directory (`0/orders-3`).

    `ledger` was read to its end, and knows later segments too. `removed` counts segments that retention or
    users have removed since the cut: these are not restored, but for those that are `revivable` (see
    `revival`). `topics` are those of the cut that had segments then. `generation` is that of the cut's owner.
    `takes_shipped`: what was shipped after the cut belongs to it.
    """

    cut: CutTaken
    manifest: CutManifest
    segments: dict[str, list[SegmentAdded]]
    removed: int
    ledger: LedgerReader
    generation: int
    takes_shipped: bool = False
    revivable: Mapping[str, list[SegmentAdded]] = {}
    topics: Mapping[bytes, RemoteTopic] = {}

    @property
    def bundle_bytes(self) -> int:
        """Return how many bytes are to be downloaded."""
        return sum(self.manifest.bundles.values())

    @property
    def segment_bytes(self) -> int:
        """Return the size of the segments that stay in the store."""
        return sum(one.size for segments in self.segments.values() for one in segments)


def make_plan(store: ObjectStore, before_ms: int | None = None, ledger: LedgerReader | None = None) -> Plan:
    """Find the newest cut (`before_ms`: the newest up to that time), and what belongs to it.

    `ledger` is what was read to its end already. Raises RestoreRefused, LedgerDamaged, StoreError.
    """
    if ledger is None:
        ledger = LedgerReader(store)
        if ledger.read_format() is None:
            raise RestoreRefused(
                "no ledger is there: name the URL that the broker had as mpbroker.remote.url"
            )
        ledger.read_to_end()
    cuts = [one.event for one in ledger.state.cuts]
    if not cuts:
        raise RestoreRefused("the ledger has no cut: the broker was lost before its first one was made")
    wanted = [one for one in cuts if before_ms is None or one.taken_ms <= before_ms]
    if not wanted:
        raise RestoreRefused(f"the oldest cut that is kept is of {time_text(cuts[0].taken_ms)}")
    cut = wanted[-1]
    try:
        manifest = decode_manifest(cut, store.get(cut_name(cut.cut_id)))
    except ObjectMissing as error:
        raise RestoreRefused(f"{error}: the cut cannot be restored") from error
    then = LedgerReader(store)
    then.read_to_end(cut.after)
    segments: dict[str, list[SegmentAdded]] = {}
    revivable: dict[str, list[SegmentAdded]] = {}
    removed = 0
    for partition in manifest.remote:
        key = partition.topic_id, partition.partition
        of_cut = [one for one in then.state.segments_of(*key) if one.end <= partition.remote_end]
        there = {one.segment_id for one in ledger.state.segments_of(*key)}
        # Only the oldest ones go, if not all: what is left ends where the cut's files begin.
        kept = [one for one in of_cut if one.segment_id in there]
        gone = of_cut[: len(of_cut) - len(kept)]
        if before_ms is not None and (some := _revivable(store, ledger, gone)):
            revivable[partition.directory] = some
        removed += len(gone)
        segments[partition.directory] = kept
    return Plan(
        *(cut, manifest, segments, removed, ledger, then.generation, before_ms is None),
        revivable,
        then.state.topics,
    )


def _revivable(store: ObjectStore, ledger: LedgerReader, gone: list[SegmentAdded]) -> list[SegmentAdded]:
    """Return the last ones of removed segments, as many as the store still has without a gap."""
    found: list[SegmentAdded] = []
    for one in reversed(gone):
        objects = one.objects
        wanted = (objects.log, one.size), (objects.indexes, sum(one.index_sizes))
        is_there = one.segment_id in ledger.state.removed
        if not (is_there and all(store.size(name) == size for name, size in wanted)):
            break
        found.insert(0, one)
    return found


def check_objects(store: ObjectStore, plan: Plan) -> None:
    """Look whether all objects are there, with their sizes. Raises RestoreRefused, StoreError."""
    problems = [
        *_missing_bundles(store, plan),
        *_missing_segments(store, plan),
        *_missing_shipped(store, plan),
    ]
    if problems:
        more = f" and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise RestoreRefused(
            "objects are missing or have other sizes, so nothing is restored; try an older cut with "
            f"--before {time_text(plan.cut.taken_ms)}: " + "; ".join(problems[:10]) + more
        )


def read_all(store: ObjectStore, plan: Plan, seen: Callable[[int], object]) -> None:
    """Read all objects and compare their checksums. `seen(count)` is called with bytes read.

    Raises RestoreRefused, StoreError.
    """
    pieces = pieces_by_bundle(plan.manifest)

    def check_bundle(bundle: bytes) -> list[str]:
        data = store.get(bundle_name(bundle))
        seen(len(data))
        return [
            f"{bundle_name(bundle)} is damaged at byte {one.position}"
            for one in {piece.piece for piece in pieces[bundle]}
            if checksum(data[one.position : one.position + one.length]) != one.crc
        ]

    def check_segment(segment: SegmentAdded) -> list[str]:
        objects, crc = segment.objects, 0
        for start in range(0, segment.size, _READ_BYTES):
            data = store.get(objects.log, start, min(_READ_BYTES, segment.size - start))
            crc = checksum(data, crc)
            seen(len(data))
        indexes = store.get(objects.indexes)
        found = {
            objects.log: segment.may_be_log(crc),
            objects.indexes: checksum(indexes) == segment.indexes_crc,
        }
        return [f"{name} is damaged" for name, is_right in found.items() if not is_right]

    with ThreadPoolExecutor(READERS) as readers:
        bundles = readers.map(check_bundle, pieces)
        segments = readers.map(check_segment, (one for some in plan.segments.values() for one in some))
        problems = [text for texts in (*bundles, *segments) for text in texts]
    if problems:
        raise RestoreRefused("; ".join(problems))


class PlacedPiece(NamedTuple):
    """A piece, and where in which file it belongs."""

    piece: Piece
    path: str
    at: int


def pieces_by_bundle(manifest: CutManifest) -> Mapping[bytes, list[PlacedPiece]]:
    """Return the pieces of all files, by the bundle that has them."""
    found: dict[bytes, list[PlacedPiece]] = {}
    for file in manifest.files:
        at = 0
        for piece in file.pieces:
            found.setdefault(piece.bundle, []).append(PlacedPiece(piece, file.path, at))
            at += piece.length
    return found


def time_text(time_ms: int) -> str:
    """Return a time of UTC, in whole seconds."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _missing_bundles(store: ObjectStore, plan: Plan) -> Iterator[str]:
    with ThreadPoolExecutor(READERS) as readers:
        names = [bundle_name(bytes.fromhex(one)) for one in plan.manifest.bundles]
        sizes = readers.map(store.size, names)
        for name, size, wanted in zip(names, sizes, plan.manifest.bundles.values(), strict=True):
            if size != wanted:
                yield f"{name} has {size} of {wanted} bytes"


def _missing_shipped(store: ObjectStore, plan: Plan) -> Iterator[str]:
    for _, object_id in plan.ledger.state.shipped if plan.takes_shipped else ():
        if object_id and store.size(shipped_name(object_id)) is None:
            yield f"{shipped_name(object_id)} is missing"


def _missing_segments(store: ObjectStore, plan: Plan) -> Iterator[str]:
    by_topic: dict[str, list[SegmentAdded]] = {}
    for one in _all_segments(plan.segments.values()):
        by_topic.setdefault(f"{one.topic}-{uuid_text(one.topic_id)}/", []).append(one)
    for prefix, segments in by_topic.items():
        sizes = {found.name: found.size for found in store.list(prefix)}
        for one in segments:
            objects = one.objects
            for name, wanted in ((objects.log, one.size), (objects.indexes, sum(one.index_sizes))):
                if sizes.get(name) != wanted:
                    yield f"{name} has {sizes.get(name)} of {wanted} bytes"


def _all_segments(partitions: Iterable[list[SegmentAdded]]) -> Iterator[SegmentAdded]:
    for segments in partitions:
        yield from segments
