"""Segments of a compacted topic, written as a log process does: what the cleaner's tests begin with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.config.broker import BrokerConfig
from mpbroker.config.topic_config import resolve
from mpbroker.ipc.calls import ToClean
from mpbroker.log.compaction.cleanable import Dirty, Limits, dirty_part
from mpbroker.log.compaction.cleaner import Buffers, Cleaned, Cleaner
from mpbroker.log.partition.partition_log import Segment
from mpbroker.log.partition.segment_swap import begin_swap, swap_in
from mpbroker.records.batch import assign_offset_and_epoch
from mpbroker.records.builder import build_batch, build_transaction_marker
from mpbroker.records.compression import Codec
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.records.markers import ABORT
from mpbroker.records.record import NewRecord, Record
from mpbroker.storage.names import (
    CLEANED_FILE_SUFFIX,
    DELETED_FILE_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_name,
)
from mpbroker.storage.producer_state import Producers
from mpbroker.storage.reader import Bound
from mpbroker.storage.transaction_index import AbortedTransaction, add_aborted, read_aborted

T0 = 1_700_000_000_000
DAY_MS = 86_400_000
FILES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
KeyValue = tuple[bytes | None, bytes | None]
COMPACTED = resolve(BrokerConfig(), {"cleanup.policy": "compact"})


@dataclass
class Segments:
    """A partition's segments in a directory; what is appended goes to the last one, which is active."""

    directory: Path
    end: int = 0
    bases: list[int] = field(default_factory=lambda: [0])
    start: int = 0
    clean_up_to: int = 0
    producers: Producers = field(default_factory=Producers)

    def append(
        self,
        pairs: Iterable[KeyValue],
        *,
        codec: Codec = Codec.NONE,
        timestamp: int = T0,
        append_time: int | None = None,
        producer: tuple[int, int, int] = (-1, -1, -1),
        transactional: bool = False,
    ) -> int:
        """One batch; returns its base offset. Timestamps follow offsets."""
        records = [
            NewRecord(key=key, value=value, timestamp=timestamp + i) for i, (key, value) in enumerate(pairs)
        ]
        batch = build_batch(
            records,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            append_time=append_time,
            transactional=transactional,
        )
        base = self.put(batch, len(records))
        if producer[0] >= 0:
            self.producers.update(*producer, len(records), base, timestamp, transactional)
        return base

    def end_transaction(self, kind: int, producer_id: int, epoch: int = 0) -> int:
        """Append a marker, ABORT or COMMIT, and the entry of an aborted transaction; returns its offset."""
        first = self.producers.open_from(producer_id)
        marker = build_transaction_marker(
            kind, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, timestamp=T0
        )
        at = self.put(marker, 1)
        if kind == ABORT and first >= 0:
            others = self.producers.first_open(but=producer_id)
            entry = AbortedTransaction(producer_id, first, at, others if others >= 0 else at + 1)
            add_aborted(self.path(self.bases[-1], TXN_INDEX_SUFFIX), entry)
        self.producers.ended(producer_id, epoch, 0, T0)
        return at

    def aborted(self) -> list[AbortedTransaction]:
        """Return the entries of all segments."""
        paths = [self.path(base, TXN_INDEX_SUFFIX) for base in self.bases]
        return [entry for path in paths if path.exists() for entry in read_aborted(path)]

    @property
    def last_stable_offset(self) -> int:
        first = self.producers.first_open()
        return max(first, self.start) if first >= 0 else self.end

    def put(self, batch: bytearray, count: int) -> int:
        base = self.end
        assign_offset_and_epoch(batch, base, 3)
        with self.path(self.bases[-1]).open("ab") as file:
            file.write(batch)
        self.end += count
        return base

    def path(self, base: int, suffix: str = LOG_SUFFIX) -> Path:
        return self.directory / segment_name(base, suffix)

    def roll(self) -> None:
        if self.end > self.bases[-1]:
            self.bases.append(self.end)
            self.path(self.end).touch()

    def delete_records(self, offset: int) -> None:
        """Move the log start, and remove the segments below it."""
        self.start = max(self.start, offset)
        ends = self.bases[1:]
        for base, end in zip(self.bases.copy(), ends, strict=False):
            if end <= self.start:
                for suffix in (*FILES, TXN_INDEX_SUFFIX):
                    self.path(base, suffix).unlink(missing_ok=True)
                self.bases.remove(base)

    def dirty(self, now_ms: int = T0, young: int = 0) -> Dirty:
        """Return the dirty part; the last sealed segments, `young` of them, may not be cleaned yet."""
        ends = [*self.bases[1:], self.end]
        segments = [
            Segment(base, end, self.path(base).stat().st_size, T0, is_active=base == self.bases[-1])
            for base, end in zip(self.bases, ends, strict=True)
        ]
        safe_end = min(self.last_stable_offset, self.bases[max(len(self.bases) - 1 - young, 0)])
        limits = Limits(self.start, self.end, safe_end, self.clean_up_to, now_ms)
        return dirty_part(segments, [T0] * len(segments), COMPACTED, limits)

    def task(
        self, *, now_ms: int = T0, segment_bytes: int = 1 << 20, producers: bytes = b"", young: int = 0
    ) -> ToClean:
        """Return a task over all segments that may be cleaned."""
        dirty = self.dirty(now_ms, young)
        return ToClean(
            1,
            str(self.directory),
            False,
            [base for base in self.bases if base < dirty.end],
            dirty.first_dirty,
            dirty.end,
            segment_bytes,
            10 << 20,
            100,
            DAY_MS,
            now_ms,
            producers,
        )

    def clean(
        self,
        *,
        now_ms: int = T0,
        segment_bytes: int = 1 << 20,
        producers: bytes = b"",
        keys: int = 1000,
        young: int = 0,
        swaps: int | None = None,
    ) -> Cleaner:
        """Cleans once and puts the new segments in place, as if nobody was looking.

        `swaps`: the number of new segments after which it is killed.
        """
        buffers = Buffers(dedupe_bytes=24 * (keys + 1), load_factor=1.0, io_bytes=4096)
        task = self.task(now_ms=now_ms, segment_bytes=segment_bytes, producers=producers, young=young)
        cleaner = Cleaner(task, buffers)
        for number, new in enumerate(cleaner.run(), 1):
            if swaps is not None and number > swaps:
                return cleaner
            self.replace(new)
        self.clean_up_to = cleaner.end
        return cleaner

    def replace(self, new: Cleaned) -> None:
        for suffix in (*FILES, TXN_INDEX_SUFFIX):
            for base in new.bases:
                self.path(base, suffix).unlink(missing_ok=True)
            cleaned = self.path(new.bases[0], suffix + CLEANED_FILE_SUFFIX)
            if cleaned.exists():
                cleaned.rename(self.path(new.bases[0], suffix))
        self.bases = [base for base in self.bases if base not in new.bases[1:]]

    def batches(self, base: int | None = None) -> list[Batch]:
        bases = self.bases if base is None else [base]
        return [batch for one in bases for batch in iterate_batches(self.path(one).read_bytes())]

    def records(self) -> list[Record]:
        return [record for batch in self.batches() if not batch.is_control for record in batch.records()]


# In `twelve_segments`.
PER_SEGMENT = 45


def twelve_segments(directory: Path, sizes: tuple[int, ...] = (20,)) -> Segments:
    """Twelve sealed segments and an active one, of one-record batches; the cleaner takes the first 20."""
    log = Segments(directory)
    for number in range(12):
        for i in range(PER_SEGMENT):
            is_often = i == 0 if number else i < 20
            key = b"often" if is_often else b"%d" % log.end
            log.append([(key, bytes(sizes[log.end % len(sizes)]))])
        log.roll()
    log.append([(b"last", b"")])
    return log


def clean_each(log: Segments) -> None:
    """Compact each segment by itself."""
    put_in_place(log, Cleaner(log.task(segment_bytes=log.path(0).stat().st_size), Buffers()))


def put_in_place(log: Segments, cleaner: Cleaner) -> None:
    """Run the cleaner and swap in what it makes, as a log worker does; the old files are removed."""
    fd = os.open(log.directory, os.O_RDONLY)
    for new in cleaner.run():
        begin_swap(fd, new.bases[0])
        swap_in(fd, new.bases)
        log.bases = [base for base in log.bases if base not in new.bases[1:]]
    os.close(fd)
    for path in log.directory.glob(f"*{DELETED_FILE_SUFFIX}"):
        path.unlink()


def end_of(log: Segments) -> Bound:
    return Bound(log.end, log.bases[-1], log.path(log.bases[-1]).stat().st_size)
