"""A partition whose sealed segments are in an object store, and the store; as log worker and tier do."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.records.batch import checksum, frame_at
from mpbroker.remote.layout.indexes import SegmentIndexes
from mpbroker.remote.ledger.events import SegmentAdded
from mpbroker.remote.store.object_store import StoreError
from mpbroker.remote.tier.cache import PartitionKey
from mpbroker.remote.tier.window_reads import StoredPartition
from mpbroker.storage.names import (
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
)
from tests.support.compacted_segments import Segments
from tests.support.fault_store import MemoryStore

TOPIC_ID = bytes(range(16))


class ReadStore(MemoryStore):
    """An object store in memory, which counts the reads. `fails(name)` says which of them fail.

    Reads wait while `gate` is closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, int, int | None]] = []
        self.fails: Callable[[str], bool] = lambda _name: False
        self.gate = threading.Event()
        self.gate.set()

    def get(self, name: str, position: int = 0, length: int | None = None) -> bytes:
        self.gets.append((name, position, length))
        self.gate.wait()
        if self.fails(name):
            raise StoreError(f"{name}: the store is down")
        return super().get(name, position, length)

    def windows_read(self) -> list[tuple[str, int]]:
        """Return the (name, position) of each read of records, but for those of a first offset alone."""
        return [(name, at) for name, at, length in self.gets if name.endswith(LOG_SUFFIX) and length != 8]


@dataclass
class TieredLog(Segments):
    """Segments with indexes: an entry for each batch that begins `interval` bytes after the last entry's."""

    interval: int = 200
    _indexed_at: int = field(default=0, init=False)
    _largest: tuple[int, int] = field(default=(-1, 0), init=False)
    _timed: int = field(default=-1, init=False)

    def put(self, batch: bytearray, count: int) -> int:
        segment = self.bases[-1]
        path = self.path(segment)
        position = path.stat().st_size if path.exists() else 0
        base = super().put(batch, count)
        frame = frame_at(bytes(batch), 0)
        assert frame is not None
        last = base + frame.last_offset_delta - segment
        if frame.max_timestamp > self._largest[0]:
            self._largest = frame.max_timestamp, last
        if position - self._indexed_at >= self.interval:
            self._indexed_at = position
            with self.path(segment, INDEX_SUFFIX).open("ab") as file:
                file.write(struct.pack(">ii", last, position))
            self._add_time()
        return base

    def _add_time(self) -> None:
        if self._largest[0] > self._timed:
            self._timed = self._largest[0]
            with self.path(self.bases[-1], TIME_INDEX_SUFFIX).open("ab") as file:
                file.write(struct.pack(">qi", *self._largest))

    def roll(self) -> None:
        self._add_time()
        self._indexed_at, self._largest, self._timed = 0, (-1, 0), -1
        super().roll()

    def store(self, store: ReadStore, end: int | None = None) -> StoredPartition:
        """Copy the sealed segments, below offset `end`, to a store."""
        segments = []
        for base, following in zip(self.bases, self.bases[1:], strict=False):
            if end is None or following <= end:
                segments.append(self._store(store, base, following))
        return StoredPartition(PartitionKey(TOPIC_ID, 0), "t-0", self.directory, segments)

    def _store(self, store: ReadStore, base: int, end: int) -> SegmentAdded:
        log = self.path(base).read_bytes()
        offset, time, aborted = (
            path.read_bytes() if (path := self.path(base, suffix)).exists() else b""
            for suffix in INDEX_SUFFIXES
        )
        parts = SegmentIndexes(offset, time, b"a snapshot", b"epochs", aborted)
        stored = SegmentAdded(
            topic_id=TOPIC_ID,
            partition=0,
            topic="t",
            segment_id=hashlib.sha256(log).digest()[:16],
            base=base,
            end=end,
            size=len(log),
            largest_ms=0,
            epochs=(),
            index_sizes=parts.sizes,
            has_aborted=bool(aborted),
            log_crc=checksum(log) if log else 0,
            indexes_crc=checksum(parts.joined),
        )
        store.put(stored.objects.log, [log], len(log))
        store.put(stored.objects.indexes, [parts.joined], len(parts.joined))
        return stored

    def delete_local(self, end: int) -> None:
        """Remove the local files of the segments below an offset."""
        for base, following in list(zip(self.bases, self.bases[1:], strict=False)):
            if following <= end:
                for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
                    self.path(base, suffix).unlink(missing_ok=True)
                self.bases.remove(base)


def tiered_log(directory: Path, batches: int = 60, per_segment: int = 20, **options: int) -> TieredLog:
    """Return a log with `batches` batches of three records, the last segment being active."""
    log = TieredLog(directory, **options)
    for number in range(batches):
        if number and number % per_segment == 0:
            log.roll()
        log.append([(b"k%d" % log.end, bytes(50)) for _ in range(3)], timestamp=1000 + 10 * number)
    return log
