"""Uploads one sealed segment: its `.log`, its `.indexes`, its `.rsm-manifest`, in this order.

All batches are checked while they are read, before the last byte is on its way: what does not check out is
reported and never becomes an object. The objects have a new id each time, so that an upload that was given up
harms none that comes later; only a ledger entry makes them part of the log.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from mpbroker.log.io import background_io
from mpbroker.log.partition.batch_walker import Walk, header_of
from mpbroker.records.batch import BATCH_HEADER_BYTES, checksum
from mpbroker.remote.layout.object_names import SegmentObjects
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.store.object_store import ObjectStore
from mpbroker.remote.tier.backlog import Candidate
from mpbroker.remote.tier.places import PlaceGone, Places, held
from mpbroker.remote.tier.segment_indexes import IndexEntries, SegmentDamaged, read_indexes
from mpbroker.storage.checkpoints import opened, read_epochs
from mpbroker.storage.leader_epochs import NO_EPOCH, Epochs, epoch_of
from mpbroker.storage.names import INDEX_SUFFIX, segment_name
from shm.clock import wall_ms

# The bytes of one read.
PIECE_BYTES: Final = 256 << 10
log = logging.getLogger("mpbroker.remote")


class Uploader:
    """Uploads segments to a store. `paced(count)` is called for each piece read, and may raise to give up."""

    def __init__(
        self, store: ObjectStore, places: Places, broker_id: int, paced: Callable[[int], None]
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._places = places
        self._paced = paced

    def upload(self, candidate: Candidate) -> SegmentAdded:
        """Upload a segment; return the event that makes it part of the log.

        Raises SegmentDamaged, CheckpointCorrupt, TransactionIndexCorrupt, PlaceGone, OSError, StoreError, and
        what `paced` raises.
        """
        place, segment = candidate
        with held(place) as directory:
            try:
                with opened(directory / segment_name(segment.base)) as fd:
                    return self._upload(candidate, directory, fd)
            except FileNotFoundError as error:
                raise PlaceGone(f"{place.directory} no longer has offset {segment.base}") from error

    def _upload(self, candidate: Candidate, directory: Path, fd: int) -> SegmentAdded:
        place, segment = candidate
        # With log.flush.policy=os nothing else has synced it. Local files are deleted by what is uploaded.
        os.fdatasync(fd)
        indexes = read_indexes(directory, segment.base, segment.end, fd)
        entries = IndexEntries(indexes.parts.offset, segment.base)
        pieces = CheckedPieces(fd, segment.base, segment.end, read_epochs(directory), entries, self._paced)
        objects = SegmentObjects(
            place.topic, place.topic_id, place.partition, segment.base, uuid.uuid4().bytes
        )
        self._store.put(objects.log, pieces, pieces.size)
        if not entries.finish():
            log.warning(
                "%s: %s is damaged: the object store gets one that is rebuilt from the records",
                place.directory,
                segment_name(segment.base, INDEX_SUFFIX),
            )
            indexes = read_indexes(directory, segment.base, segment.end, fd, rebuilds_offset=True)
        joined = indexes.parts.joined
        self._store.put(objects.indexes, [joined], len(joined))
        added = SegmentAdded(
            topic_id=place.topic_id,
            partition=place.partition,
            topic=place.topic,
            segment_id=objects.segment_id,
            base=segment.base,
            end=segment.end,
            size=pieces.size,
            largest_ms=indexes.largest_ms,
            epochs=indexes.epochs,
            index_sizes=indexes.parts.sizes,
            has_aborted=bool(indexes.parts.transactions),
            log_crc=pieces.checksum,
            indexes_crc=checksum(joined),
        )
        manifest = added.manifest(self._broker_id, wall_ms())
        self._store.put(objects.manifest, [manifest], len(manifest))
        if not self._places.is_current(place):
            raise PlaceGone(f"{place.directory} was deleted or moved while it was read")
        return added


class CheckedPieces:
    """Iterates over the bytes of a segment, and checks all of its batches before it yields the last ones.

    `entries` is given the batches. `checksum` is the CRC-32C of what was yielded.
    """

    def __init__(
        self,
        fd: int,
        base: int,
        end: int,
        epochs: Epochs,
        entries: IndexEntries,
        paced: Callable[[int], None],
    ) -> None:
        self._fd = fd
        self._end = end
        self._size = os.fstat(fd).st_size
        self._epochs = epochs
        self._entries = entries
        self._walk = Walk(base, 0, base, ())
        self._base = base
        self._paced = paced
        self.checksum = 0

    @property
    def size(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        """Raises SegmentDamaged, OSError."""
        background_io.no_read_ahead(self._fd)
        position, rest = 0, b""
        while position < self._size:
            count = min(PIECE_BYTES, self._size - position)
            piece, _ = background_io.read(self._fd, count, position, leaves_cache=True)
            if len(piece) < count:
                raise SegmentDamaged(f"it has become shorter than {self._size} bytes")
            if not position:
                self._begin(piece)
            position += count
            self._paced(count)
            rest = self._check(rest + piece)
            self.checksum = checksum(piece, self.checksum)
            yield piece

    def _begin(self, piece: bytes) -> None:
        """Have leader epochs checked too, if the checkpoint, which has no CRC, fits the first batch."""
        if len(piece) >= BATCH_HEADER_BYTES:
            last_offset, epoch = header_of(piece)
            if epoch_of(self._epochs, last_offset) in (NO_EPOCH, epoch):
                self._walk = Walk(self._base, 0, self._base, self._epochs)

    def _check(self, data: bytes) -> bytes:
        """Check the batches in `data`; return the start of one that is not whole. Raises SegmentDamaged."""
        walk = self._walk
        before = walk.position
        reason = walk.feed(data, self._size)
        if reason:
            # It may be the memory that is wrong: the next try shall read the disk.
            background_io.drop(self._fd, walk.position, len(data))
            raise SegmentDamaged(f"at byte {walk.position} a batch is bad: {reason}")
        if walk.next_offset > self._end:
            raise SegmentDamaged(f"its offsets reach beyond {self._end}, where the next segment begins")
        length = walk.position - before
        self._entries.feed(memoryview(data)[:length], before)
        return data[length:]
