"""Segments of a compacted topic, written as a log process does: what the cleaner's tests begin with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mpbroker.log.compaction.cleaner import Buffers, Cleaned, Cleaner, Task
from mpbroker.log.format.names import (
    CLEANED_FILE_SUFFIX,
    DELETED_FILE_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_name,
)
from mpbroker.log.partition.segment_swap import begin_swap, swap_in
from mpbroker.log.read.reader import Bound
from mpbroker.records.batch import assign_offset_and_epoch
from mpbroker.records.builder import build_batch
from mpbroker.records.compression import Codec
from mpbroker.records.iterate import Batch, iterate_batches
from mpbroker.records.record import NewRecord, Record

T0 = 1_700_000_000_000
DAY_MS = 86_400_000
FILES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
KeyValue = tuple[bytes | None, bytes | None]


@dataclass
class Segments:
    """A partition's sealed segments in a directory; what is appended goes to the last one."""

    directory: Path
    end: int = 0
    bases: list[int] = field(default_factory=lambda: [0])
    clean_up_to: int = 0

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
        return self.put(batch, len(records))

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

    def task(self, *, now_ms: int = T0, segment_bytes: int = 1 << 20, producers: bytes = b"") -> Task:
        """Return a task over all segments but the active one."""
        return Task(
            self.directory,
            self.bases[:-1],
            self.clean_up_to,
            self.bases[-1],
            segment_bytes,
            10 << 20,
            100,
            DAY_MS,
            now_ms,
            producers,
        )

    def clean(
        self, *, now_ms: int = T0, segment_bytes: int = 1 << 20, producers: bytes = b"", keys: int = 1000
    ) -> Cleaner:
        """Cleans once and puts the new segments in place, as if nobody was looking."""
        buffers = Buffers(dedupe_bytes=24 * (keys + 1), load_factor=1.0, io_bytes=4096)
        cleaner = Cleaner(self.task(now_ms=now_ms, segment_bytes=segment_bytes, producers=producers), buffers)
        for new in cleaner.run():
            self.replace(new)
        self.clean_up_to = cleaner.end
        return cleaner

    def replace(self, new: Cleaned) -> None:
        for suffix in (*FILES, ".txnindex"):
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
