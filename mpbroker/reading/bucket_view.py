"""Reads the ledger of a bucket: its topics, their readable offsets, and the objects of their segments.

Of a partition the ledger names segments, and the newest cut has the files after them. Records are read below
the high watermark of the cut, or below its last stable offset. Segments may have been added since: all their
transactions have ended, but some perhaps in a later segment, which is nowhere in the bucket yet. So what is
committed ends at the first of those.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple

from mpbroker.protocol.topic_names import METADATA_TOPIC, METADATA_TOPIC_ID
from mpbroker.reading.bucket_store import BUCKET, open_bucket, read_stored, store_errors
from mpbroker.reading.errors import CorruptLog, SourceUnavailable
from mpbroker.reading.plan import Restores, StoredBytes, StoredSegment
from mpbroker.records.aborted import AbortedRange
from mpbroker.remote.cuts.manifest import (
    CutEnd,
    CutFile,
    CutManifest,
    bundle_name,
    cut_name,
    decode_manifest,
)
from mpbroker.remote.ledger.entries import decode_entry, entry_name
from mpbroker.remote.ledger.events import CutTaken, SegmentAdded, Started, TakenOver
from mpbroker.remote.ledger.reader import LedgerReader
from mpbroker.remote.store.object_store import ObjectMissing, ObjectStore
from mpbroker.storage.checkpoints import CheckpointCorrupt, epochs_in
from mpbroker.storage.leader_epochs import FIRST, Epochs
from mpbroker.storage.names import (
    INDEX_SUFFIX,
    LEADER_EPOCHS,
    LOG_SUFFIX,
    METADATA_DIRECTORY,
    TXN_INDEX_SUFFIX,
    parse_partition,
    parse_segment,
    segment_name,
)
from mpbroker.storage.producer_state import Producers, SnapshotCorrupt
from mpbroker.storage.transaction_index import (
    AbortedTransaction,
    TransactionIndexCorrupt,
    aborted_between,
    aborted_in,
)

Key = tuple[bytes, int]
"""A topic's id and a partition."""

_TO_THE_END: Final = (1 << 63) - 1
_REMEMBERED: Final = 1024
_CUTS_TRIED: Final = 3


class BucketSegment(NamedTuple):
    """A segment, and what only planning needs: pieces of its time index and of its aborted transactions.

    `largest_ms` is its records' largest timestamp, None if that is not known.
    """

    stored: StoredSegment
    times: tuple[StoredBytes, ...]
    aborted: tuple[StoredBytes, ...]
    largest_ms: int | None


class _Tail(NamedTuple):
    """A partition in the newest cut: its ends, the segments after those in the ledger, its leader epochs."""

    end: CutEnd
    segments: list[BucketSegment]
    epochs: tuple[StoredBytes, ...]


class BucketView:
    """The bucket at `url`. `topics` are the ids of topics by name. One thread uses a view.

    Methods raise SourceUnavailable, CorruptLog, OptionError.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_bucket(url)
        self.topics: dict[str, bytes] = {}
        self._ledger = LedgerReader(self.store)
        self._read_seq = 0
        self._cut_id = b""
        self._tails: dict[Key, _Tail] = {}
        self._partitions: dict[bytes, set[int]] = {}
        self._aborted = lru_cache(_REMEMBERED)(partial(_read_aborted, self.store))
        self._read_epochs = lru_cache(_REMEMBERED)(partial(_read_epochs, self.store))
        self._first_open = lru_cache(_REMEMBERED)(partial(_read_first_open, self.store))
        with store_errors():
            if self._ledger.read_format() is None:
                raise SourceUnavailable(
                    f"{BUCKET}: {url} has no ledger: name the URL that the broker has as mpbroker.remote.url"
                )
        self.refresh()

    @property
    def generation(self) -> int:
        """Return the generation of the ledger, which a restore or a standby that takes over begins."""
        return self._ledger.generation

    def refresh(self) -> bool:
        """Read new entries of the ledger. Return False if there are none."""
        with store_errors():
            self._ledger.read_to_end()
            if self._ledger.seq == self._read_seq:
                return False
            self._read_cut()
        state = self._ledger.state
        self.topics, self._partitions = {}, {}
        for (topic_id, partition), tail in self._tails.items():
            topic = state.topics.get(topic_id)
            name = parse_partition(tail.end.directory.partition("/")[2]).topic
            if name != METADATA_TOPIC and (topic is None or topic.deleted_ms is None):
                self.topics[name] = topic_id
                self._partitions.setdefault(topic_id, set()).add(partition)
        for topic in state.topics.values():
            if topic.deleted_ms is None:
                # It may have been made after the cut, in place of one that was deleted.
                self.topics[topic.name] = topic.topic_id
                self._partitions.setdefault(topic.topic_id, set()).update(range(topic.partitions))
        self._read_seq = self._ledger.seq
        return True

    def partitions(self, topic_id: bytes) -> list[int]:
        return sorted(self._partitions[topic_id])

    def sealed_end(self, key: Key) -> int:
        """Return where the segments in the ledger end."""
        segments = self._ledger.state.segments_of(*key)
        return segments[-1].end if segments else 0

    def bounds(self, key: Key, *, committed: bool) -> tuple[int, int]:
        """Return the readable offsets [log start, end) of a partition."""
        sealed, tail = self._ledger.state.segments_of(*key), self._tails.get(key)
        log_start = self._ledger.state.log_starts.get(key, 0)
        end = 0
        if tail is not None:
            log_start = max(log_start, tail.end.log_start)
            end = tail.end.last_stable if committed else tail.end.high_watermark
        if sealed and sealed[-1].end > end:
            end = max(end, self._stable_end(sealed[-1]) if committed else sealed[-1].end)
        first = next(self.segments(key, 0, _TO_THE_END), None)
        log_start = max(log_start, end if first is None else first.stored.base)
        return log_start, max(log_start, end)

    def segments(self, key: Key, start: int, end: int) -> Iterator[BucketSegment]:
        """Yield the segments with the offsets [start, end), in their order."""
        sealed = self._ledger.state.segments_of(*key)
        for place in range(max(bisect_right(sealed, start, key=_base) - 1, 0), len(sealed)):
            one = sealed[place]
            if one.base >= end:
                return
            if one.end > start:
                yield _sealed(one)
        start = max(start, self.sealed_end(key))
        for later in self._tails[key].segments if key in self._tails else ():
            if later.stored.end > start and later.stored.base < end:
                yield later

    def aborted(self, key: Key, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that can have records in [start, end), by their markers."""
        indexes = (
            self._aborted(one.aborted) for one in self.segments(key, start, _TO_THE_END) if one.aborted
        )
        with store_errors():
            return list(aborted_between(indexes, start, end))

    def epochs(self, key: Key) -> Epochs:
        """Return the leader epochs of a partition: those of the cut, and of segments that are newer."""
        tail, found = self._tails.get(key), []
        if tail is not None and tail.epochs:
            with store_errors():
                found += self._read_epochs(tail.epochs)
        start = 0 if tail is None else tail.end.high_watermark
        for one in self._ledger.state.segments_of(*key):
            if one.end > start:
                found += [entry for entry in one.epochs if not found or entry[0] > found[-1][0]]
        return found or FIRST

    def restores(self, generation: int, *, committed: bool) -> Restores:
        """Return the ends that restores since a generation have kept: other records may follow them now.

        A restore keeps what its cut has, and so does a standby that takes over. They keep everything, and are
        left out, if the broker acknowledged records only when the bucket had them, and the cut is not an
        earlier one. An import from Kafka is left out, too: the log directories have everything.
        """
        found = []
        with store_errors():
            later: TakenOver | None = None
            for seq in reversed(self._ledger.state.firsts):
                entry = decode_entry(seq, self.store.get(entry_name(seq)))
                first = entry.events[0]
                assert isinstance(first, Started | TakenOver)
                keeps_all = later is not None and later.shipped == -1 and first.acks == "ledger"
                if later is not None and not (keeps_all or later.imported):
                    found.append(self._kept(later.cut_id, committed=committed))
                if entry.header.generation <= generation:
                    break
                later = first if isinstance(first, TakenOver) else None
        return found

    def _kept(self, cut_id: bytes, *, committed: bool) -> Mapping[Key, int]:
        """Return the ends of a cut's partitions; none if the cut is no longer kept."""
        for one in self._ledger.state.cuts:
            if one.event.cut_id == cut_id:
                ends = self._manifest(one.event).ends
                return {
                    (end.topic_id, end.partition): end.last_stable if committed else end.high_watermark
                    for end in ends
                }
        return {}

    def _read_cut(self) -> None:
        """Read the newest cut, if it is another one. Raises LedgerDamaged, StoreError."""
        cuts = self._ledger.state.cuts
        if not cuts:
            self._tails = {}
            return
        if cuts[-1].event.cut_id == self._cut_id:
            return
        try:
            for one in reversed(cuts[-_CUTS_TRIED:]):
                manifest = self._manifest(one.event)
                if not _was_before_partitions_opened(manifest):
                    break
        except ObjectMissing:
            # The owner may have made a newer cut, and deleted this one.
            self._ledger.read_to_end()
            if self._ledger.state.cuts[-1:] == cuts[-1:]:
                raise
            self._read_cut()
            return
        files: dict[str, list[CutFile]] = {}
        for file in manifest.files:
            files.setdefault(file.path.rpartition("/")[0], []).append(file)
        self._tails = {
            (end.topic_id, end.partition): _tail(end, files.get(end.directory, ())) for end in manifest.ends
        }
        self._cut_id = cuts[-1].event.cut_id

    def _manifest(self, event: CutTaken) -> CutManifest:
        return decode_manifest(event, self.store.get(cut_name(event.cut_id)))

    def _stable_end(self, last: SegmentAdded) -> int:
        """Return the first offset of a transaction that is open where a segment ends; else where it ends."""
        with store_errors():
            first = self._first_open(_part(last, "producer_snapshot"))
        return last.end if first is None else min(first, last.end)


def _was_before_partitions_opened(cut: CutManifest) -> bool:
    """Return whether a cut has partitions without their ends, but for that of the metadata log.

    The first cut of a start may be made before partitions are open.
    """
    has_ends = any(end.topic_id != METADATA_TOPIC_ID for end in cut.ends)
    return not has_ends and any(not one.endswith(f"/{METADATA_DIRECTORY}") for one in cut.directories)


def _base(segment: SegmentAdded) -> int:
    return segment.base


def _part(segment: SegmentAdded, name: str) -> tuple[StoredBytes, ...]:
    """Return where a part of a segment's `.indexes` is (a field of IndexSizes); nothing if it is empty."""
    sizes = segment.index_sizes
    place = StoredBytes(segment.objects.indexes, getattr(sizes.positions, name), getattr(sizes, name))
    return (place,) if place.length else ()


def _sealed(one: SegmentAdded) -> BucketSegment:
    log = (StoredBytes(one.objects.log, 0, one.size),)
    stored = StoredSegment(one.base, one.end, log, _part(one, "offset"))
    return BucketSegment(stored, _part(one, "time"), _part(one, "transactions"), one.largest_ms)


def _tail(end: CutEnd, files: Sequence[CutFile]) -> _Tail:
    """Return what a partition's files are: segments with offsets below the high watermark, leader epochs."""
    by_name = {one.path.rpartition("/")[2]: one for one in files}
    bases = sorted(base for name in by_name if (base := parse_segment(name)) is not None)
    found = []
    for base, following in zip(bases, [*bases[1:], end.high_watermark], strict=True):
        log, index, aborted = (
            _pieces(by_name.get(segment_name(base, suffix)))
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TXN_INDEX_SUFFIX)
        )
        until = min(following, end.high_watermark)
        if base < until:
            # A time index has no checksum: who looks for a time reads the records.
            found.append(BucketSegment(StoredSegment(base, until, log, index), (), aborted, None))
    return _Tail(end, found, _pieces(by_name.get(LEADER_EPOCHS)))


def _pieces(file: CutFile | None) -> tuple[StoredBytes, ...]:
    pieces = () if file is None else file.pieces
    return tuple(StoredBytes(bundle_name(one.bundle), one.position, one.length) for one in pieces)


def _read_aborted(store: ObjectStore, pieces: tuple[StoredBytes, ...]) -> list[AbortedTransaction]:
    try:
        return aborted_in(read_stored(store, pieces, 0, _TO_THE_END), pieces[0].name)
    except TransactionIndexCorrupt as error:
        raise CorruptLog(f"{error}. Cannot determine which records are committed") from error


def _read_first_open(store: ObjectStore, snapshot: tuple[StoredBytes, ...]) -> int | None:
    """Return the first offset of an open transaction in a producer snapshot; None if none is open."""
    producers = Producers()
    try:
        producers.load(read_stored(store, snapshot, 0, _TO_THE_END))
    except SnapshotCorrupt as error:
        raise CorruptLog(f"{snapshot[0].name}: {error}. Cannot determine what is committed") from error
    first: int = producers.first_open()
    return None if first < 0 else first


def _read_epochs(store: ObjectStore, pieces: tuple[StoredBytes, ...]) -> list[tuple[int, int]]:
    """Read a partition's `leader-epoch-checkpoint`."""
    try:
        return epochs_in(read_stored(store, pieces, 0, _TO_THE_END), pieces[0].name)
    except CheckpointCorrupt as error:
        raise CorruptLog(str(error)) from error


def as_ranges(found: Sequence[AbortedTransaction], start: int, end: int) -> list[AbortedRange]:
    """Return those of the transactions that can have records in [start, end)."""
    return [
        AbortedRange(one.producer_id, one.first_offset, one.last_offset)
        for one in aborted_between([found], start, end)
    ]
